// @ts-check
/** The residual stream after each layer, and what the model would say if it ended there. */

import { lm } from "../lm.js";
import { h, paint, percent, visible } from "./dom.js";
import { onTheme, signedImage, tint } from "./colours.js";
import { TokenText } from "./tokens.js";

const LENS = 5;

export class Layers {
  #reader;
  /** @type {import("../lm.js").Inspection|null} */
  #found = null;
  #position = -1;
  /** @type {(() => void)[]} */
  #off = [];

  /** @param {import("./reader.js").Reader} reader */
  constructor(reader) {
    this.#reader = reader;
    this.text = new TokenText("The text: choose the token to look into", () => {}, (index) => {
      this.#position = index;
      this.update();
    });
    this.body = h("tbody");
    this.says = h("p", { class: "in-says", role: "status" });
    const head = h("tr", {},
      h("th", { scope: "col" }, "After"), h("th", { scope: "col" }, "Residual stream"),
      h("th", { scope: "col" }, "Length"), h("th", { scope: "col" }, "Cosine"),
      ...Array.from({ length: LENS }, (_, i) => h("th", { scope: "col" }, i ? `${i + 1}.` : "It would say")));
    this.table = h("table", { class: "in-table" },
      h("caption", { class: "visually-hidden" }, "The residual stream and the logit lens, layer by layer"), h("thead", {}, head), this.body);
    this.element = h("div", { class: "in-layers" }, this.says, this.text.element,
      h("div", { class: "in-wide", tabindex: 0, role: "region", "aria-label": "Layer by layer" }, this.table),
      h("p", { class: "in-note" }, "Each strip is the token's vector: blue below zero, orange above, each row by its own largest number. “Cosine” compares it with the final one. The words on the right are the logit lens: the final norm and the output matrix, applied early."));
  }

  open() {
    this.#off = [onTheme(() => this.#draw()), lm.on("inside", (data) => this.#live(data), { lens: LENS })];
    if (this.#reader.state === "generating" && !this.body.rows.length) {
      this.says.textContent = "The model is writing: this fills with a token that it shows, at the latest when the text rests.";
    }
  }

  close() {
    for (const off of this.#off) off();
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
  }

  #frame = 0;
  /** @type {import("../lm.js").Events["inside"]|null} */
  #latest = null;

  /** What chose the token that was just written. @param {import("../lm.js").Events["inside"]} inside */
  #live(inside) {
    this.#latest = inside;
    const kept = this.#reader.kept(this.text.tokens);
    if (kept < this.text.tokens.length) {
      // The model goes on from another text than the one that is shown.
      this.#found = null;
      this.text.set(this.text.tokens.slice(0, kept), this.#reader.promptLength);
    }
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      const { norms, cosines, strip, lens, position, text } = this.#latest ?? inside;
      this.says.textContent = `Live, at ${position + 1}: how “${visible(text)}” took shape.`;
      this.#rows(norms.length - 1, norms, cosines, strip,
        lens.map((best) => best.map(({ id, text: word, logprob }) => ({ id, text: word, probability: Math.exp(logprob) }))));
    });
  }

  async update() {
    const { ids, promptLength, state } = this.#reader;
    if (state === "generating" || !ids.length) return;
    const same = this.#found && this.#found.ids.length === ids.length && this.#found.ids.every((id, i) => id === ids[i]);
    if (!same) this.#position = ids.length - 1;
    const position = Math.min(this.#position, ids.length - 1);
    const found = await this.#reader.look(() => lm.inspect({ ids, layers: true, lens: LENS, position }));
    if (!found) return;
    this.#found = found;
    this.text.set(found.tokens, promptLength);
    this.text.tint(null, position);
    this.text.reveal(position);
    this.#draw();
  }

  #draw() {
    const { layers, lens, n, n_layer: count, position, tokens } = this.#found ?? {};
    if (!layers || !lens || n === undefined || count === undefined || position === undefined || !tokens) return;
    this.says.textContent = `At ${position + 1} of ${n}, after “${visible(tokens[position].text)}”: how the next token takes shape.`;
    const column = (/** @type {Float32Array} */ values) => Float32Array.from({ length: count + 1 }, (_, place) => values[place * n + position]);
    this.#rows(count, column(layers.norms), column(layers.cosines), layers.strip, lens);
  }

  /**
   * @param {number} count of layers @param {Float32Array} norms @param {Float32Array} cosines @param {Float32Array} vectors
   * @param {{id: number, text: string, probability: number}[][]} lens
   */
  #rows(count, norms, cosines, vectors, lens) {
    const width = vectors.length / (count + 1);
    // A generation that began without this view brings no lens.
    this.body.replaceChildren(...Array.from({ length: count + 1 }, (_, place) => {
      const best = lens[place] ?? [];
      const values = vectors.subarray(place * width, (place + 1) * width);
      const name = place === 0 ? "Embedding" : `Layer ${place}`;
      return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, strip(values, name)),
        h("td", { class: "in-number" }, norms[place].toPrecision(3)), h("td", { class: "in-number" }, cosines[place].toFixed(3)),
        ...best.map(({ text, probability, id }) => {
          const { background, ink } = tint(probability);
          const chip = h("span", { class: "in-chip", title: `id ${id}, ${percent(probability)}` },
            h("span", {}, visible(text)), " ", h("span", { class: "in-small" }, percent(probability)));
          chip.style.background = background;
          chip.style.color = ink;
          return h("td", {}, chip);
        }));
    }));
  }
}

/** A vector as a strip of colours. @param {Float32Array} values @param {string} name @param {{width?: number, height?: number}} [size] */
export function strip(values, name, { width = 384, height = 18 } = {}) {
  const most = values.reduce((high, value) => Math.max(high, Math.abs(value)), 0);
  const canvas = h("canvas", { class: "in-strip", role: "img" });
  const context = paint(canvas, width, height);
  const image = new OffscreenCanvas(values.length, 1);
  const small = /** @type {any} */ (image.getContext("2d"));
  small.putImageData(signedImage(small, values, most), 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(image, 0, 0, width, height);
  const sum = values.reduce((total, value) => total + value, 0);
  const label = `${name}: ${values.length} numbers, mean ${(sum / values.length).toPrecision(2)}, largest ${most.toPrecision(3)}`;
  canvas.setAttribute("aria-label", label);
  canvas.title = label;
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const at = Math.max(0, Math.min(values.length - 1, Math.floor(((event.clientX - box.left) / box.width) * values.length)));
    canvas.title = `${name}, number ${at + 1} of ${values.length}: ${values[at].toPrecision(4)}`;
  });
  return canvas;
}
