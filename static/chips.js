// @ts-check
/** Probabilities as people see them: shades, names of tokens, bars, and the card that tells of one token. */

import { places } from "./document.js";
import { integer } from "./format.js";

/** @typedef {import("./document.js").Candidate} Candidate */
/** @typedef {import("./document.js").Place} Place */
/** @typedef {import("./editor.js").Editor} Editor */
/** @typedef {import("./sheet.js").Sheet} Sheet */

/** Where one shade ends and the next begins: likely tokens are pale, surprising ones deep. */
export const STEPS = [0.8, 0.5, 0.2, 0.05, 0.01];

/** 0 (likely) to 5 (surprising), or "" where nothing is known. @param {number|null} logprob */
export function shade(logprob) {
  if (logprob === null) return "";
  const p = Math.exp(logprob);
  const step = STEPS.findIndex((least) => p >= least);
  return step < 0 ? STEPS.length : step;
}

/** 42.1 %, 0.31 %, <0.01 %. @param {number} p */
export function percent(p) {
  const value = 100 * p;
  if (value > 0 && value < 0.01) return "<0.01 %";
  return `${value >= 99.95 ? "100" : value >= 10 ? value.toFixed(1) : value.toFixed(2)} %`;
}

/** A token with its blanks made visible. @param {string} text */
export const tokenName = (text) => text.replaceAll(" ", "·").replaceAll("\n", "↵").replaceAll("\t", "⇥") || "∅";

/**
 * One row of a list of tokens: name, bar, figure.
 * @param {string} text @param {number} p @param {boolean} [faded]
 */
export function bar(text, p, faded = false) {
  const [name, track, fill, figure] = ["token-name", "track", "fill", "figure"].map((className) => {
    const part = document.createElement("span");
    part.className = className;
    return part;
  });
  name.textContent = tokenName(text);
  fill.style.inlineSize = `${Math.max(100 * p, 0.5)}%`;
  if (faded) fill.classList.add("faded");
  track.append(fill);
  figure.textContent = percent(p);
  return [name, track, figure];
}

const OPEN_MS = 140;
const CLOSE_MS = 260;
/** How long a card is looked at before what takes computing is computed. */
const RANK_MS = 250;

/** Tells of the token under the pointer, or at the caret, while tokens are shown. */
export class TokenCard {
  #card = /** @type {HTMLElement} */ (document.getElementById("token-card"));
  #title = /** @type {HTMLElement} */ (document.getElementById("token-title"));
  #facts = /** @type {HTMLElement} */ (document.getElementById("token-facts"));
  #list = /** @type {HTMLElement} */ (document.getElementById("token-list"));
  #timer = 0;
  #ranking = 0;
  /** The token that is shown, by its place in the order. */
  #shown = -1;

  /**
   * @param {Sheet} sheet @param {Editor} editor
   * @param {(index: number, candidate: Candidate) => void} choose
   * @param {(place: Place) => Promise<number|null>} rank
   */
  constructor(sheet, editor, choose, rank) {
    this.sheet = sheet;
    this.editor = editor;
    this.choose = choose;
    this.rank = rank;
    sheet.area.addEventListener("pointermove", (event) => {
      if (event.pointerType === "mouse" && !event.buttons) this.#later(() => this.#point(event.clientX, event.clientY));
    });
    sheet.area.addEventListener("pointerleave", () => this.#later(() => this.close(), CLOSE_MS));
    sheet.area.addEventListener("blur", () => {
      if (!this.#card.contains(document.activeElement)) this.#later(() => this.#leave(), CLOSE_MS);
    });
    this.#card.addEventListener("pointerenter", () => clearTimeout(this.#timer));
    this.#card.addEventListener("pointerleave", () => this.#later(() => this.close(), CLOSE_MS));
    this.#card.addEventListener("focusout", () => this.#later(() => this.#leave(), CLOSE_MS));
    this.#card.addEventListener("keydown", (event) => this.#move(event));
    for (const target of [window, document.getElementById("scroll")]) {
      target?.addEventListener("scroll", () => this.close(), { passive: true });
    }
  }

  get isOpen() {
    return !this.#card.hidden;
  }

  /** Show the token before the caret. */
  atCaret() {
    if (!this.sheet.showsChips || this.editor.live) return;
    const at = this.editor.caret;
    const index = places(this.editor.pieces).findIndex(({ start, token }) => start < at && at <= start + token.text.length);
    this.#later(() => this.#show(index));
  }

  /** Go from the text into the list; tell whether there is one. */
  enter() {
    const first = this.#list.querySelector("button");
    first?.focus();
    return Boolean(first);
  }

  close() {
    clearTimeout(this.#timer);
    clearTimeout(this.#ranking);
    if (this.#card.contains(document.activeElement)) this.sheet.focus();
    this.sheet.chips[this.#shown]?.classList.remove("told");
    this.#shown = -1;
    this.#card.hidden = true;
  }

  /** @param {() => void} act @param {number} [ms] */
  #later(act, ms = OPEN_MS) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(act, ms);
  }

  #leave() {
    if (!this.#card.matches(":hover, :focus-within")) this.close();
  }

  /** @param {number} x @param {number} y */
  #point(x, y) {
    if (this.sheet.showsChips && !this.editor.live) this.#show(this.#under(x, y));
  }

  /** The token at a point. They lie in reading order, so few need to be looked at. @param {number} x @param {number} y */
  #under(x, y) {
    const chips = this.sheet.chips;
    let [low, high] = [0, chips.length - 1];
    while (low <= high) {
      const middle = (low + high) >> 1;
      const boxes = [...chips[middle].getClientRects()];
      if (boxes.some((box) => x >= box.left && x < box.right && y >= box.top && y < box.bottom)) return middle;
      const [first, last] = [boxes[0], boxes[boxes.length - 1]];
      if (y < first.top || (y < first.bottom && x < first.left)) high = middle - 1;
      else if (y >= last.bottom || x >= last.right) low = middle + 1;
      else return -1;
    }
    return -1;
  }

  /** @param {number} index */
  #show(index) {
    const place = places(this.editor.pieces)[index];
    const chip = this.sheet.chips[index];
    if (!place || !chip) return this.close();
    if (index === this.#shown) return;
    this.close();
    this.#shown = index;
    chip.classList.add("told");
    this.#fill(index, place);
    this.#card.hidden = false;
    this.#put(chip);
  }

  /** @param {Place["token"]} token @param {string} rank */
  #state({ id, logprob }, rank) {
    const facts = [logprob === null ? "probability not known" : percent(Math.exp(logprob)), rank, `token ${id}`];
    this.#facts.textContent = facts.filter(Boolean).join(", ");
  }

  /** @param {number} index @param {Place} place */
  #fill(index, place) {
    const { piece, token, index: within } = place;
    const { id, text, top } = token;
    this.#title.textContent = tokenName(text);
    const near = top.findIndex((one) => one.id === id);
    this.#state(token, near >= 0 ? `rank ${near + 1}` : top.length ? `not among the ${top.length} likeliest` : "");
    if (near < 0) {
      this.#ranking = setTimeout(async () => {
        const rank = await this.rank(place);
        if (rank !== null && this.#shown === index) this.#state(token, `rank ${integer(rank)}`);
      }, RANK_MS);
    }
    // A token that only ends a character cannot be exchanged on its own.
    const whole = this.editor.pieces[piece].tokens?.[within - 1]?.text !== "";
    const rows = top.map((candidate) => {
      const row = document.createElement("button");
      row.type = "button";
      row.className = "bar-row";
      row.append(...bar(candidate.text, Math.exp(candidate.logprob)));
      if (candidate.id === id) row.setAttribute("aria-current", "true");
      row.disabled = !whole || candidate.text.includes("\ufffd") || candidate.text === "";
      row.title = "Go on from this one";
      row.addEventListener("click", () => {
        this.close();
        this.choose(index, candidate);
      });
      return row;
    });
    this.#list.replaceChildren(...rows);
  }

  /** Below the token, or above it where there is no room. @param {HTMLElement} chip */
  #put(chip) {
    const boxes = chip.getClientRects();
    const box = boxes[boxes.length - 1];
    const { offsetWidth: width, offsetHeight: height } = this.#card;
    const left = Math.min(Math.max(box.left - 12, 8), innerWidth - width - 8);
    const below = box.bottom + 4;
    const top = below + height <= innerHeight - 8 ? below : Math.max(box.top - height - 4, 8);
    this.#card.style.translate = `${Math.round(left)}px ${Math.round(top)}px`;
  }

  /** @param {KeyboardEvent} event */
  #move(event) {
    const rows = [...this.#list.querySelectorAll("button")];
    const at = rows.indexOf(/** @type {HTMLButtonElement} */ (document.activeElement));
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step) {
      event.preventDefault();
      if (at + step < 0) this.sheet.focus();
      else rows[Math.min(at + step, rows.length - 1)]?.focus();
    } else if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      this.close();
    }
  }
}
