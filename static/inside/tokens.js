// @ts-check
/** A text as a row of tokens that can be pointed at, tinted by numbers. */

import { h, quoted, roving, visible } from "./dom.js";
import { tint } from "./colours.js";

const SHADES = 64;

export class TokenText {
  /** @type {HTMLElement[]} */
  #items = [];
  /** @type {number[]} */
  #shades = [];
  #theme = false;
  /** @type {{id: number, text: string}[]} */
  tokens = [];

  /**
   * @param {string} label @param {(index: number) => void} onPoint by pointer or focus
   * @param {(index: number) => void} [onPick] by a click or Enter
   */
  constructor(label, onPoint, onPick = onPoint) {
    this.element = h("div", { class: "in-tokens", role: "group", "aria-label": label });
    roving(this.element, "button", (at, _, key) =>
      key === "ArrowRight" || key === "ArrowDown" ? at + 1 : key === "ArrowLeft" || key === "ArrowUp" ? at - 1 : null);
    const indexOf = (/** @type {Event} */ event) =>
      this.#items.indexOf(/** @type {HTMLElement} */ (/** @type {HTMLElement} */ (event.target).closest("button")));
    for (const name of ["pointerover", "focusin"]) {
      this.element.addEventListener(name, (event) => {
        const at = indexOf(event);
        if (at >= 0) onPoint(at);
      });
    }
    this.element.addEventListener("click", (event) => {
      const at = indexOf(event);
      if (at >= 0) onPick(at);
    });
  }

  /** @param {{id: number, text: string}[]} tokens @param {number} promptLength */
  set(tokens, promptLength) {
    const same = this.tokens.every((token, i) => token.id === tokens[i]?.id);
    if (!same || !this.tokens.length) this.clear();
    for (let i = this.tokens.length; i < tokens.length; i++) {
      const { text, id } = tokens[i];
      const item = h("button", { type: "button", class: "in-token", tabindex: i ? -1 : 0 }, text.trim() ? text.replace(/\n/g, "↵") : visible(text));
      item.title = `Token ${i + 1}: ${quoted(text)}, id ${id}`;
      if (i >= promptLength) item.dataset.written = "";
      this.#items.push(item);
      this.element.append(item);
      if (/\n/.test(text)) this.element.append(h("br"));
    }
    this.tokens = tokens;
  }

  clear() {
    this.element.replaceChildren();
    this.#items = [];
    this.#shades = [];
    this.tokens = [];
  }

  /**
   * Tint by shares; tokens past `shares` fade. @param {ArrayLike<number>|null} shares @param {number} current the one they belong to
   */
  tint(shares, current) {
    const theme = matchMedia("(prefers-color-scheme: dark)").matches;
    this.#items.forEach((item, i) => {
      item.toggleAttribute("data-current", i === current);
      item.toggleAttribute("data-later", shares !== null && i >= shares.length);
      // Styles cost more than comparing: of a long text most tokens keep theirs.
      const shade = shares === null || i >= shares.length ? -1 : Math.round(SHADES * Math.sqrt(shares[i]));
      if (this.#shades[i] === shade && this.#theme === theme) return;
      this.#shades[i] = shade;
      const { background, ink } = shade < 0 ? { background: "", ink: "" } : tint((shade / SHADES) ** 2);
      item.style.background = background;
      item.style.color = ink;
    });
    this.#theme = theme;
  }

  /** Scroll to a token within the text, and nothing else. @param {number} index */
  reveal(index) {
    const item = this.#items[index];
    if (item) this.element.scrollTop = item.offsetTop - (this.element.clientHeight - item.offsetHeight) / 2;
  }
}
