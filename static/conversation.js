// @ts-check
/**
 * A conversation: what was said by whom. Nothing that was said is lost: an edited question and a regenerated answer are
 * further branches of a tree, each with the turns that came after it. Remembered between visits.
 */

import { parsed, readOwn, writeOwn } from "./remember.js";

/** @typedef {"user"|"assistant"} Role */
/** `after`: place in `#said` of the turn that this one follows; -1: it begins the conversation. @typedef {{role: Role, content: string, after: number}} Said */
/** A turn of the branch that is shown. `version` of `versions`, counted from 0. @typedef {{id: number, role: Role, content: string, version: number, versions: number}} Turn */

const KEY = "tabgpt.chat";
const START = -1;

export class Conversation {
  system = "";
  /** Another one after each change. */
  version = 0;
  /** All turns of all branches in the order in which they were said: a turn stands behind the one it follows. @type {Said[]} */
  #said = [];
  /** The last turn of the branch that is shown. */
  #end = START;
  /** What `clear` took away. @type {{said: Said[], end: number}|null} */
  #dropped = null;

  constructor() {
    const data = parsed(readOwn(KEY));
    if (typeof data?.system === "string") this.system = data.system;
    if (!Array.isArray(data?.said) || !data.said.every(isSaid)) return;
    if (!Number.isInteger(data.end) || data.end < START || data.end >= data.said.length) return;
    this.#said = data.said;
    this.#end = data.end;
  }

  /** The turns of the branch that is shown, first to last. @returns {Turn[]} */
  get turns() {
    const turns = [];
    for (let id = this.#end; id !== START; id = this.#said[id].after) {
      const { role, content } = this.#said[id];
      const versions = this.#versions(id);
      turns.unshift({ id, role, content, version: versions.indexOf(id), versions: versions.length });
    }
    return turns;
  }

  /** What the model is to answer. */
  get messages() {
    const system = this.system.trim() ? [{ role: "system", content: this.system }] : [];
    return [...system, ...this.turns.map(({ role, content }) => ({ role, content }))];
  }

  get isEmpty() {
    return this.#end === START;
  }

  /** Where the branch that is shown ends; `goTo` comes back to it. */
  get end() {
    return this.#end;
  }

  /** Go on from the end of what is shown. @param {Role} role @param {string} content */
  say(role, content) {
    this.#dropped = null;
    this.#said.push({ role, content, after: this.#end });
    this.#end = this.#said.length - 1;
    this.save();
  }

  /** Show what was said before a turn: what is said next is another version of it. Until then nothing is saved. @param {number} id */
  before(id) {
    this.#end = this.#said[id].after;
  }

  /** @param {number} end a turn, or START */
  goTo(end) {
    this.#end = end;
    this.save();
  }

  /** Show the next version of a turn, or the one before it, with the latest that was said after it. @param {number} id @param {number} by */
  flip(id, by) {
    const versions = this.#versions(id);
    let end = versions[versions.indexOf(id) + by];
    if (end === undefined) return;
    for (let next = end; next !== START; next = this.#said.findLastIndex(({ after }) => after === end)) end = next;
    this.goTo(end);
  }

  /** @param {number} id @param {string} content */
  replace(id, content) {
    this.#said[id].content = content;
    this.save();
  }

  /** Begin anew. What was said can be brought back until something else is said, or the page is left. */
  clear() {
    this.#dropped = { said: this.#said, end: this.#end };
    this.#said = [];
    this.goTo(START);
  }

  get canBringBack() {
    return this.isEmpty && this.#dropped !== null;
  }

  bringBack() {
    if (!this.#dropped) return;
    this.#said = this.#dropped.said;
    this.goTo(this.#dropped.end);
    this.#dropped = null;
  }

  save() {
    this.version += 1;
    writeOwn(KEY, JSON.stringify({ system: this.system, said: this.#said, end: this.#end }));
  }

  /** @param {number} id @returns {number[]} */
  #versions(id) {
    return this.#said.flatMap(({ after }, place) => (after === this.#said[id].after ? [place] : []));
  }
}

/** @param {any} data @param {number} place */
const isSaid = (data, place) =>
  ["user", "assistant"].includes(data?.role) &&
  typeof data.content === "string" &&
  Number.isInteger(data.after) &&
  data.after >= START &&
  data.after < place;
