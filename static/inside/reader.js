// @ts-check
/** What the views look at: the page's text, and what `lm` says of it. Waits while the engine has something else to do. */

import { lm } from "../lm.js";

/** @typedef {{ids: number[], text: string, prompt_length: number}} Document */

const RETRY_MS = 300;
const PATIENCE = 200;

/** @param {number} ms */
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Reader {
  /** @type {Document|null} */
  document = null;
  /** @type {import("../lm.js").Loaded|null} */
  model = null;
  /** @type {import("../lm.js").Status["state"]} */
  state = "booting";
  /** Whether the text was edited since `document` was told. */
  edited = false;
  /** How many characters of `document` no edit has touched. */
  #untouched = Infinity;
  #turn = 0;
  #failed;
  /** @type {Promise<unknown>} */
  #queue = Promise.resolve();

  /**
   * @param {() => void} changed told when the text, the model or what the engine does is another
   * @param {(error: unknown) => void} failed told what `lm` refused
   */
  constructor(changed, failed) {
    this.#failed = failed;
    document.addEventListener("document-changed", (event) => {
      const { detail } = /** @type {CustomEvent<Document>} */ (event);
      const same = detail.prompt_length === this.document?.prompt_length && String(detail.ids) === String(this.document.ids);
      const other = !same || this.edited;
      this.document = detail;
      this.edited = false;
      this.#untouched = Infinity;
      if (other) changed();
    });
    document.addEventListener("input", ({ target }) => {
      if (!(target instanceof HTMLTextAreaElement) || target.id !== "text") return;
      const text = this.document?.text ?? "";
      const most = Math.min(this.#untouched, text.length, target.value.length);
      let same = 0;
      while (same < most && text[same] === target.value[same]) same += 1;
      this.edited = true;
      this.drop(); // what was asked for is of the text before
      this.#untouched = same;
    });
    lm.on("status", ({ state, model }) => {
      const other = model?.model !== this.model?.model || model?.precision !== this.model?.precision;
      if (!other && state === this.state) return;
      if (other) this.document = null; // its ids were the other model's
      this.model = model;
      this.state = state;
      changed();
    });
  }

  /** The ids that fit into the context, from the end. */
  get ids() {
    return this.document?.ids.slice(-(this.model?.context ?? 0)) ?? [];
  }

  /** Where the prompt ends among them. */
  get promptLength() {
    const cut = (this.document?.ids.length ?? 0) - this.ids.length;
    return Math.max(0, (this.document?.prompt_length ?? 0) - cut);
  }

  /**
   * How many of the tokens that are shown are surely still the text's first ones. An edit may join words differently, so
   * only whole words before it count. @param {{id: number, text: string}[]} tokens
   */
  kept(tokens) {
    const { ids } = this;
    let kept = 0;
    while (kept < tokens.length && (kept >= ids.length || tokens[kept].id === ids[kept])) kept += 1;
    if (!this.edited) return kept;
    if (ids.length !== this.document?.ids.length) return 0; // they begin somewhere within the text
    let [whole, length] = [0, 0];
    for (let i = 0; i < kept && length < this.#untouched; length += tokens[i].text.length, i++) {
      if (/^\s/.test(tokens[i].text)) whole = i;
    }
    return whole;
  }

  /**
   * Ask `lm`, once it is free. Resolves to null if something newer was asked for meanwhile, or if it failed.
   * @template T @param {() => Promise<T>} ask @returns {Promise<T|null>}
   */
  look(ask) {
    const turn = ++this.#turn;
    const answer = this.#queue.then(async () => {
      for (let tries = 0; turn === this.#turn && tries < PATIENCE; tries++) {
        if (this.state === "ready") {
          try {
            const result = await ask();
            return turn === this.#turn ? result : null;
          } catch (error) {
            const name = error instanceof Error ? error.name : "";
            // Someone writes, or the page looks at something itself: that goes first.
            if (name !== "BusyError" && name !== "CancelledError") {
              this.#failed(error);
              return null;
            }
          }
        }
        await pause(RETRY_MS);
      }
      return null;
    });
    this.#queue = answer.catch(() => {});
    return answer;
  }

  /** Forget what was asked for. */
  drop() {
    this.#turn += 1;
  }
}
