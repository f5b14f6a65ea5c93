// @ts-check
/**
 * The writing surface. The text is a textarea whose letters are transparent; a copy of it beneath shows them, with the
 * model's part tinted, and each token on its own where that is asked for. Text only ever enters the page as text nodes.
 */

import { textOf } from "./document.js";
import { shade, tokenName } from "./chips.js";

/** @typedef {import("./document.js").Piece} Piece */
/** @typedef {import("./document.js").Pieces} Pieces */
/** @typedef {import("./document.js").Token} Token */

/** How far from the end, in pixels, still counts as reading along. */
const NEAR_END = 64;
/** What stays free below the last line that is written. */
const MARGIN = 40;

export class Sheet {
  #area = /** @type {HTMLTextAreaElement} */ (document.getElementById("text"));
  #ink = /** @type {HTMLElement} */ (document.getElementById("ink"));
  #scroll = /** @type {HTMLElement} */ (document.getElementById("scroll"));
  /** Pieces never change, so one that was drawn need not be drawn again. @type {WeakMap<Piece, HTMLElement>} */
  #drawn = new WeakMap();
  /** @type {HTMLElement|null} */
  #live = null;
  /** @type {Token[]} */
  #waiting = [];
  #frame = 0;
  #chips = false;

  /** @param {{typed: (text: string, caret: number) => void, moved: (caret: number) => void}} listener */
  constructor(listener) {
    const area = this.#area;
    area.addEventListener("input", () => listener.typed(area.value, area.selectionEnd));
    const look = () => {
      if (document.activeElement === area && !area.readOnly) listener.moved(area.selectionEnd);
    };
    document.addEventListener("selectionchange", look);
    // Not every browser tells of a textarea's.
    for (const event of ["keyup", "pointerup"]) area.addEventListener(event, look);
  }

  get area() {
    return this.#area;
  }

  /** The tokens' elements, in the order of `places`. */
  get chips() {
    return /** @type {NodeListOf<HTMLElement>} */ (this.#ink.querySelectorAll(".chip"));
  }

  /** Whether each token is shown on its own. Draw again after a change. */
  get showsChips() {
    return this.#chips;
  }

  set showsChips(shown) {
    this.#chips = shown;
    this.#drawn = new WeakMap();
    this.#ink.classList.toggle("chipped", shown);
  }

  /** @param {Pieces} pieces @param {number} caret */
  draw(pieces, caret) {
    const text = textOf(pieces);
    this.#live = null;
    if (this.#area.value !== text) this.#area.value = text;
    if (this.#area.selectionEnd !== caret || this.#area.selectionStart !== caret) this.#area.setSelectionRange(caret, caret);
    this.#lay(pieces.map((piece) => this.#elementOf(piece)));
  }

  /** The model begins to write between these. @param {Pieces} before @param {Pieces} after */
  begin(before, after) {
    this.#area.readOnly = true;
    this.#area.value = textOf(before) + textOf(after);
    this.#live = span("model live");
    this.#lay([
      ...before.map((piece) => this.#elementOf(piece)),
      this.#live,
      ...after.map((piece) => this.#elementOf(piece)),
    ]);
  }

  /** Show a token at the next frame: they may come faster than the screen. @param {Token} token */
  append(token) {
    this.#waiting.push(token);
    this.#frame ||= requestAnimationFrame(() => this.#flush());
  }

  /** It has written. Draw again after this. */
  end() {
    cancelAnimationFrame(this.#frame);
    this.#flush();
    this.#area.readOnly = false;
  }

  focus() {
    this.#area.focus({ preventScroll: true });
  }

  #flush() {
    this.#frame = 0;
    const tokens = this.#waiting;
    this.#waiting = [];
    if (!tokens.length || !this.#live) return;
    const follow = this.#overhang(this.#live) < NEAR_END;
    if (this.#chips) this.#live.append(...tokens.flatMap((token) => (token.text ? [chip(token)] : [])));
    else this.#live.append(tokens.map((token) => token.text).join(""));
    const over = follow ? this.#overhang(this.#live) : 0;
    if (over <= 0) return;
    if (this.#ownScroll) this.#scroll.scrollTop += over;
    else scrollBy(0, over);
  }

  /** Wide, the paper scrolls; narrow, the whole page does, and then it is the foot that the text runs under. */
  get #ownScroll() {
    return getComputedStyle(this.#scroll).overflowY === "auto";
  }

  /** How far an element's end is below what can be seen. @param {HTMLElement} element */
  #overhang(element) {
    const foot = document.querySelector(".foot")?.getBoundingClientRect().top ?? innerHeight;
    const end = element.getBoundingClientRect().bottom;
    return end ? end + MARGIN - foot : 0;
  }

  /** @param {Piece} piece */
  #elementOf(piece) {
    let element = this.#drawn.get(piece);
    if (element) return element;
    element = span(piece.tokens ? "model" : "typed");
    if (piece.tokens && this.#chips) element.append(...piece.tokens.flatMap((token) => (token.text ? [chip(token)] : [])));
    else element.textContent = piece.text;
    this.#drawn.set(piece, element);
    return element;
  }

  /** Bring the copy in line, moving as little as possible. @param {HTMLElement[]} elements */
  #lay(elements) {
    const there = [...this.#ink.children];
    let head = 0;
    while (head < there.length && there[head] === elements[head]) head += 1;
    for (const gone of there.slice(head)) if (!elements.includes(/** @type {HTMLElement} */ (gone))) gone.remove();
    this.#ink.append(...elements.slice(head));
  }
}

/** @param {string} name */
function span(name) {
  const element = document.createElement("span");
  element.className = name;
  return element;
}

/** @param {Token} token */
function chip(token) {
  const element = span("chip");
  element.textContent = token.text;
  element.dataset.shade = String(shade(token.logprob));
  if (/^\s+$/.test(token.text)) element.dataset.blank = tokenName(token.text);
  return element;
}
