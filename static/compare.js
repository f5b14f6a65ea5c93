// @ts-check
/** The continuations of one place side by side, to choose from. */

import { plural } from "./format.js";
import { generated, textOf } from "./document.js";

/** How much of the text before is shown, in characters. */
const LEAD = 90;

export class Compare {
  #box = /** @type {HTMLElement} */ (document.getElementById("compare"));
  #scroll = /** @type {HTMLElement} */ (document.getElementById("scroll"));
  #frame = 0;
  /** Whether more continuations are about to be written. */
  expecting = false;
  /** What is drawn, so that the same is not drawn again. @type {unknown[]} */
  #drawn = [];

  /** @param {import("./editor.js").Editor} editor @param {(chosen: number) => void} choose */
  constructor(editor, choose) {
    this.editor = editor;
    this.choose = choose;
    this.#box.addEventListener("keydown", (event) => {
      const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
      if (!step) return;
      const buttons = [...this.#box.querySelectorAll("button")];
      const at = buttons.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
      buttons[(at + step + buttons.length) % buttons.length]?.focus();
    });
  }

  get isOpen() {
    return !this.#box.hidden;
  }

  open() {
    this.#box.hidden = false;
    this.#scroll.hidden = true;
    this.draw();
    this.#box.querySelector("button")?.focus();
  }

  close() {
    this.#box.hidden = true;
    this.#scroll.hidden = false;
    this.#drawn = [];
  }

  /** Put the focus where one is chosen. Whether there is anything to choose. */
  focus() {
    const first = this.isOpen ? this.#box.querySelector("button") : null;
    first?.focus();
    return first !== null;
  }

  /** At the next frame. */
  drawSoon() {
    if (this.isOpen) this.#frame ||= requestAnimationFrame(() => this.draw());
  }

  draw() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    if (!this.isOpen) return;
    const { live, generation } = this.editor;
    const takes = live ? live.takes : (generation?.takes ?? []);
    if (!live && takes.length < 2) return this.expecting ? undefined : this.close();
    const before = live?.before ?? generation?.before ?? [];
    const lead = textOf(before).slice(-LEAD).replace(/^\S*\s/, "… ");
    const now = [...takes, lead, live ? live.tokens.length : -1, generation?.chosen];
    if (now.length === this.#drawn.length && now.every((one, place) => one === this.#drawn[place])) return;
    // While one is written only its own card changes.
    const same = takes.every((take, place) => take === this.#drawn[place]) && this.#box.childElementCount > takes.length;
    this.#drawn = now;
    if (live && same && this.#box.lastElementChild) {
      const text = this.#box.lastElementChild.querySelector(".model");
      if (text) text.textContent = textOf(generated(live.tokens, ""));
      return;
    }
    const cards = takes.map((take, place) => {
      const count = take.pieces.reduce((sum, piece) => sum + (piece.tokens?.length ?? 0), 0);
      const card = this.#card(lead, textOf(take.pieces), `Seed ${take.seed}, ${plural(count, "token")}`, place);
      card.classList.toggle("chosen", !live && place === generation?.chosen);
      return card;
    });
    if (live) cards.push(this.#card(lead, textOf(generated(live.tokens, "")), "Writing", -1));
    this.#box.replaceChildren(...cards);
  }

  /** @param {string} lead @param {string} text @param {string} about @param {number} place -1: still being written */
  #card(lead, text, about, place) {
    const card = document.createElement("article");
    card.className = "take-card";
    const [body, before, written, foot, facts] = ["p", "span", "span", "div", "span"].map((tag) => document.createElement(tag));
    body.className = "take-text";
    body.tabIndex = 0;
    before.className = "lead";
    before.textContent = lead;
    written.className = "model";
    written.textContent = text;
    body.append(before, written);
    facts.className = "hint";
    facts.textContent = about;
    foot.className = "take-foot";
    foot.append(facts);
    if (place >= 0) {
      const keep = document.createElement("button");
      keep.type = "button";
      keep.className = "button small";
      keep.textContent = "Keep";
      keep.setAttribute("aria-label", `Keep continuation ${place + 1}`);
      keep.disabled = this.editor.live !== null;
      keep.addEventListener("click", () => this.choose(place));
      foot.append(keep);
    }
    card.append(body, foot);
    return card;
  }
}
