// @ts-check
/** The row below the text: what is going on, in words and figures. */

import { duration, integer, plural, rate } from "./format.js";

/** @typedef {import("./lm.js").Completion} Completion */

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
const status = element("status");
const figures = element("figures");
const progress = /** @type {HTMLProgressElement} */ (element("progress"));

/** @param {string} text @param {string} state */
export function say(text, state) {
  status.dataset.state = state;
  if (status.textContent !== text) status.textContent = text;
}

/** @param {(string|HTMLElement)[]} items */
export function show(...items) {
  figures.replaceChildren(
    ...items.map((item) => {
      if (typeof item !== "string") return item;
      const span = document.createElement("span");
      span.textContent = item;
      return span;
    }),
  );
}

/** @param {{loaded: number, total: number}|null} data null: something is going on, nobody knows how far */
export function showProgress(data) {
  progress.hidden = false;
  if (!data?.total) return progress.removeAttribute("value");
  progress.max = data.total;
  progress.value = data.loaded;
}

/** @param {HTMLElement} button @param {number} seed */
function setSeed(button, seed) {
  button.dataset.seed = String(seed);
  button.textContent = `Seed ${seed}`;
}

/** Another continuation is the chosen one: its seed is the one to keep. @param {number} seed */
export function showSeed(seed) {
  const button = /** @type {HTMLElement|null} */ (figures.querySelector("[data-seed]"));
  if (button && button.dataset.seed !== String(seed)) setSeed(button, seed);
}

export function hideProgress() {
  progress.hidden = true;
}

/** How a generation ended. @param {Completion} result @param {number} context of the model @param {string} all what to add of others */
export function outcome({ finish, truncated, prompt_ids, ids }, context, all = "") {
  /** @type {Record<string, string>} */
  const ends = {
    length: `Wrote ${plural(ids.length, "token")}`,
    eos: ids.length ? `The model ended its text after ${plural(ids.length, "token")}` : "The model has nothing to add",
    stop: `Stopped at your stop text after ${plural(ids.length, "token")}`,
    cancelled: `Stopped after ${plural(ids.length, "token")}`,
    context: `The model's context of ${integer(context)} tokens is full`,
  };
  const cut = truncated ? ` The text was too long: the model read its last ${integer(prompt_ids.length)} tokens.` : "";
  return `${ends[finish]}${all}.${cut}`;
}

/** Counts tokens as they come, and shows figures four times a second. */
export class Meter {
  #tokens = 0;
  #first = 0;
  #shown = 0;

  start() {
    this.#tokens = this.#first = this.#shown = 0;
  }

  count() {
    const now = performance.now();
    this.#tokens += 1;
    this.#first ||= now;
    if (now - this.#shown < 250 || this.#tokens < 2) return;
    this.#shown = now;
    show(plural(this.#tokens, "token"), rate((1000 * (this.#tokens - 1)) / (now - this.#first)));
  }

  /** @param {Completion} result @param {(seed: number) => void} keep */
  stop({ timings, seed }, keep) {
    const { tokens_per_second: speed, first_token_ms: first } = timings;
    const button = document.createElement("button");
    button.type = "button";
    button.className = "quiet";
    button.title = "Keep this seed, to write the same again";
    button.addEventListener("click", () => keep(Number(button.dataset.seed)));
    setSeed(button, seed);
    show(
      ...(speed === null ? [] : [rate(speed)]),
      ...(first === null ? [] : [`first token in ${duration(first)}`]),
      button,
    );
  }
}
