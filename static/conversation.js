// @ts-check
/** A conversation: what was said by whom. Remembered between visits. */

import { parsed, readOwn, writeOwn } from "./remember.js";

/** @typedef {{role: "user"|"assistant", content: string}} Turn */

const KEY = "tabgpt.chat";

export class Conversation {
  system = "";
  /** @type {Turn[]} */
  turns = [];

  constructor() {
    const data = parsed(readOwn(KEY));
    if (typeof data?.system === "string") this.system = data.system;
    if (Array.isArray(data?.turns) && data.turns.every(isTurn)) this.turns = data.turns;
  }

  /** What the model is to answer. */
  get messages() {
    const system = this.system.trim() ? [{ role: "system", content: this.system }] : [];
    return [...system, ...this.turns];
  }

  /** @param {Turn["role"]} role @param {string} content */
  say(role, content) {
    this.turns = [...this.turns, { role, content }];
    this.save();
  }

  /** Forget a turn and all that came after it. @param {number} place */
  cut(place) {
    this.turns = this.turns.slice(0, place);
    this.save();
  }

  /** @param {number} place @param {string} content */
  replace(place, content) {
    this.turns = this.turns.map((turn, at) => (at === place ? { ...turn, content } : turn));
    this.save();
  }

  save() {
    writeOwn(KEY, JSON.stringify({ system: this.system, turns: this.turns }));
  }
}

/** @param {any} data */
const isTurn = (data) => ["user", "assistant"].includes(data?.role) && typeof data.content === "string";
