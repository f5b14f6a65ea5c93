// @ts-check
/** The next token as the sampling rules see it: every rule's cut, live. Computes nothing while it is closed. */

import { lm } from "./lm.js";
import { bar, tokenName } from "./chips.js";
import { cutBy, penalised, ranked } from "./distribution.js";
import { integer } from "./format.js";

const BARS = 64;
const ROWS = 8;
const REST_MS = 350;
const SVG = "http://www.w3.org/2000/svg";

export class Outlook {
  #box = /** @type {HTMLDetailsElement} */ (document.getElementById("outlook"));
  #plot = /** @type {SVGSVGElement} */ (/** @type {unknown} */ (document.getElementById("outlook-plot")));
  #list = /** @type {HTMLElement} */ (document.getElementById("outlook-list"));
  #text = /** @type {HTMLElement} */ (document.getElementById("outlook-text"));
  #timer = 0;
  #turn = 0;
  /** What the logits are of, to notice that they are of something else now. */
  #of = "";
  /** @type {{logits: Float32Array, ids: number[]}|null} */
  #found = null;
  /** @type {Map<number, string>} */
  #names = new Map();
  #vocabulary = "";

  /**
   * @param {import("./session.js").Session} session @param {import("./writing.js").Writing} writing
   * @param {import("./settings.js").Settings} settings
   */
  constructor(session, writing, settings) {
    this.session = session;
    this.writing = writing;
    this.settings = settings;
    this.#box.addEventListener("toggle", () => this.changed());
    document.getElementById("sampling-form")?.addEventListener("input", () => this.#draw());
  }

  /** The text, the caret or the model is another one. */
  changed() {
    if (!this.#box.open) return;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#look(), REST_MS);
  }

  /** The rules are other ones. */
  rules() {
    this.#draw();
  }

  async #look() {
    const { session, writing } = this;
    if (!session.loaded) return this.#say("The next token shows here once a model is loaded.");
    if (session.busy || !this.#box.open) return;
    const turn = ++this.#turn;
    const { vocabulary } = session;
    if (vocabulary !== this.#vocabulary) {
      this.#vocabulary = vocabulary;
      this.#names.clear();
      this.#of = "";
    }
    try {
      const ids = (await writing.ids(writing.editor.before)).slice(1 - session.loaded.context);
      if (!ids.length) return this.#say("Write something to see what might come next.");
      const of = ids.join();
      if (turn !== this.#turn || session.busy || of === this.#of) return;
      const logits = await lm.logits({ ids });
      if (turn !== this.#turn) return;
      this.#found = { logits, ids };
      this.#of = of;
      await this.#draw();
    } catch (error) {
      // Something else came first: look again when that is over.
      if (error instanceof Error && error.name === "BusyError") this.changed();
    }
  }

  async #draw() {
    if (!this.#box.open || !this.#found) return;
    const { logits, ids } = this.#found;
    const rules = this.settings.generateOptions();
    const { scores, ids: best } = ranked(penalised(logits, ids, rules.repetition_penalty ?? 1), BARS);
    const { kept, mass, probability } = cutBy(scores, rules);
    this.#bars(best.length, kept, probability);
    const all = integer(scores.length);
    const share = `${Math.round(100 * mass)} %`;
    const which = kept === scores.length ? `All ${all} tokens may come.` : kept === 1 ? `One token of ${all} is left` : `${integer(kept)} of ${all} tokens are left`;
    this.#say(kept === scores.length ? which : `${which}, with ${share} of the probability.`);
    const names = await Promise.all(best.slice(0, ROWS).map((id) => this.#nameOf(id)));
    this.#list.replaceChildren(
      ...names.map((name, place) => {
        const row = document.createElement("li");
        row.className = "bar-row";
        row.classList.toggle("cut", place >= kept);
        row.append(...bar(name, probability(place), place >= kept));
        row.title = place < kept ? tokenName(name) : `${tokenName(name)} is cut off`;
        return row;
      }),
    );
  }

  /** @param {number} count @param {number} kept @param {(place: number) => number} probability */
  #bars(count, kept, probability) {
    const most = probability(0);
    const bars = Array.from({ length: count }, (_, place) => {
      const rect = document.createElementNS(SVG, "rect");
      // Square roots: otherwise a likely token would leave nothing to be seen of the others.
      const height = Math.max(48 * Math.sqrt(probability(place) / most), 0.75);
      const place_ = { x: place * 4, y: 48 - height, width: 3, height };
      for (const [name, value] of Object.entries(place_)) rect.setAttribute(name, value.toFixed(2));
      rect.setAttribute("class", place < kept ? "kept" : "cut");
      return rect;
    });
    this.#plot.replaceChildren(...bars);
  }

  /** @param {number} id */
  async #nameOf(id) {
    const name = this.#names.get(id) ?? (await lm.decode([id]));
    this.#names.set(id, name);
    return name;
  }

  /** @param {string} text */
  #say(text) {
    if (this.#text.textContent !== text) this.#text.textContent = text;
  }
}
