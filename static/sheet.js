// @ts-check
/**
 * The writing surface. The prompt is a textarea whose letters are transparent; a copy of it beneath shows them, and
 * runs on into the continuation as one text. Model text only ever enters the page as text nodes.
 */

/** How far from the end, in pixels, still counts as reading along. */
const NEAR_END = 48;

export class Sheet {
  #prompt = /** @type {HTMLTextAreaElement} */ (document.getElementById("prompt"));
  #echo = /** @type {HTMLElement} */ (document.getElementById("echo"));
  #output = /** @type {HTMLElement} */ (document.getElementById("output"));
  #scroll = /** @type {HTMLElement} */ (document.getElementById("scroll"));
  #waiting = "";
  #frame = 0;

  /** @param {() => void} changed called when the text has changed */
  constructor(changed) {
    this.changed = changed;
    this.#prompt.addEventListener("input", () => this.#mirror());
  }

  get prompt() {
    return this.#prompt.value;
  }

  set prompt(text) {
    this.#prompt.value = text;
    this.#mirror();
  }

  get continuation() {
    return this.#output.textContent + this.#waiting;
  }

  /** Take the prompt as it is for a new continuation. */
  begin() {
    this.#waiting = "";
    this.#output.replaceChildren();
    this.#prompt.readOnly = true;
    this.changed();
  }

  /** Show text at the next frame: tokens may come faster than the screen. @param {string} text */
  append(text) {
    this.#waiting += text;
    this.#frame ||= requestAnimationFrame(() => this.#flush());
  }

  end() {
    cancelAnimationFrame(this.#frame);
    this.#flush();
    this.#output.normalize();
    this.#prompt.readOnly = false;
  }

  /** Make the continuation part of the prompt. */
  keep() {
    const text = this.prompt + this.continuation;
    this.begin();
    this.end();
    this.prompt = text;
    this.#prompt.setSelectionRange(text.length, text.length);
  }

  focus() {
    this.#prompt.focus();
  }

  #flush() {
    this.#frame = 0;
    if (!this.#waiting) return;
    const follow = this.#atEnd();
    this.#output.append(this.#waiting);
    this.#waiting = "";
    if (follow) this.#toEnd();
    this.changed();
  }

  /** Wide, the paper scrolls; narrow, the whole page does, and then it is the foot that the text runs under. */
  get #ownScroll() {
    return getComputedStyle(this.#scroll).overflowY === "auto";
  }

  #atEnd() {
    if (this.#ownScroll) {
      const { scrollHeight, scrollTop, clientHeight } = this.#scroll;
      return scrollHeight - scrollTop - clientHeight < NEAR_END;
    }
    return Math.abs(this.#hidden()) < NEAR_END;
  }

  #toEnd() {
    if (this.#ownScroll) this.#scroll.scrollTop = this.#scroll.scrollHeight;
    else if (this.#hidden() > 0) scrollBy(0, this.#hidden());
  }

  /** Pixels of the text's end below the upper edge of the foot. */
  #hidden() {
    const foot = document.querySelector(".foot")?.getBoundingClientRect().top ?? innerHeight;
    return Math.max(this.#scroll.getBoundingClientRect().bottom - foot, 0);
  }

  #mirror() {
    this.#echo.textContent = this.#prompt.value;
    this.changed();
  }
}
