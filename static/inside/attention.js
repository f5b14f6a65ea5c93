// @ts-check
/** Attention: any layer and head over the text and as a matrix, all of them small, live and step by step. */

import { lm } from "../lm.js";
import { h, paint, percent, quoted, roving, visible } from "./dom.js";
import { imageOf, onTheme, ramp } from "./colours.js";
import { TokenText } from "./tokens.js";

const CELLS = 24;
/** Weights that are fetched at once: all layers and heads of a text of usual length. */
const AT_ONCE = 4_000_000;
const STEP_MS = 220;
const LIVE_MS = 100;
const SLICE = 48;

export class Attention {
  #reader;
  /** @type {{id: number, text: string}[]} */
  #tokens = [];
  #layers = 0;
  #heads = 0;
  #layer = 0;
  #head = 0;
  /** The token that looks. */
  #query = 0;
  /** How many tokens there are so far: all, or fewer while replaying. */
  #shown = 0;
  /** Rows of weights by layer and head, one a token. @type {Map<string, (Float32Array|undefined)[]>} */
  #maps = new Map();
  /** @type {Float32Array[]} the last tokens' rows of all layers and heads, in CELLS cells */
  #recent = [];
  #live = 0;
  /** The generation that is shown live. */
  #call = -1;
  #frame = 0;
  #playing = 0;
  /** @type {(() => void)[]} */
  #off = [];
  /** @type {HTMLButtonElement[]} */
  #thumbs = [];

  /** @param {import("./reader.js").Reader} reader */
  constructor(reader) {
    this.#reader = reader;
    this.text = new TokenText("The text: point at a token to see what it attends to", (index) => this.#point(index));
    this.overview = h("div", { class: "in-overview", role: "group", "aria-label": "All layers and heads" });
    this.matrix = h("canvas", { class: "in-matrix", role: "img", tabindex: 0, "aria-describedby": "in-attention-says" });
    this.says = h("p", { class: "in-says", id: "in-attention-says", role: "status" });
    this.title = h("h3", {});
    this.note = h("p", { class: "in-note" });
    this.list = h("ol", { class: "in-list" });
    this.play = h("button", { type: "button", class: "button small", onclick: () => this.#toggle() }, "Replay");
    this.step = h("input", { type: "range", min: 1, max: 1, value: 1, "aria-label": "Step", oninput: () => this.#to(Number(this.step.value)) });
    this.count = h("span", { class: "in-count" });
    const legend = h("canvas", { class: "in-ramp", role: "img", "aria-label": "Colours from 0 to 100 percent, by the square root" });
    this.element = h("div", { class: "in-attention" },
      h("section", { class: "in-heads", "aria-label": "Overview" },
        h("h3", {}, "Layers and heads"), this.overview, this.note),
      h("section", { class: "in-map", "aria-label": "Matrix" }, this.title, this.matrix,
        h("p", { class: "in-legend" }, "0", legend, "100%")),
      h("section", { class: "in-over", "aria-label": "Over the text" },
        h("div", { class: "in-steps" }, this.play, this.step, this.count), this.text.element, this.says, this.list));
    this.#drawLegend = () => ramp(paint(legend, 96, 8), 96, 8);
    roving(this.overview, "button", (at, _, key) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.#heads, ArrowUp: -this.#heads }[key];
      return by === undefined || at + by < 0 || at + by >= this.#layers * this.#heads ? (by === undefined ? null : at) : at + by;
    });
    this.matrix.addEventListener("pointermove", (event) => this.#hover(event));
    this.matrix.addEventListener("click", (event) => this.#hover(event));
    this.matrix.addEventListener("keydown", (event) => {
      const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      this.#point(Math.max(0, Math.min(this.#shown - 1, this.#query + by)));
    });
  }

  #drawLegend;

  open() {
    this.#drawLegend();
    // While somebody listens, a generation goes token by token and shows its inside; when nobody does, it costs nothing.
    this.#off = [
      lm.on("inside", (data) => this.#append(data)),
      onTheme(() => {
        this.#drawLegend();
        this.#redraw();
      }),
    ];
    const size = new ResizeObserver(() => this.#soon());
    size.observe(this.element);
    this.#off.push(() => size.disconnect());
  }

  close() {
    for (const off of this.#off) off();
    this.#stop();
    cancelAnimationFrame(this.#frame);
    cancelAnimationFrame(this.#slice);
    this.#frame = 0;
    this.#thumbsOf = "";
  }

  /** Look at the text as it is now. */
  async update() {
    const { ids, promptLength, state, model } = this.#reader;
    if (state === "generating" || !ids.length || !model) return;
    // At first it is not known how many layers and heads there are: then only a short text's maps are fetched at once.
    const attention = !this.#layers ? ids.length <= 60 : this.#fits(ids.length) || { layers: [this.#layer], heads: [this.#head] };
    if (!this.#tokens.length) this.says.textContent = "Computing how the tokens attend to each other…";
    const found = await this.#reader.look(() => lm.inspect({ ids, overview: CELLS, attention }));
    if (!found) return;
    this.#live = 0;
    this.#recent = [];
    this.#shape(found.n_layer, found.n_head);
    this.#tokens = found.tokens;
    this.text.set(found.tokens, promptLength);
    this.#maps.clear();
    this.#keep(found);
    this.#shown = found.n;
    this.#query = found.n - 1;
    if (found.overview) this.#overview = [found.overview.maps, found.overview.cells];
    this.#version += 1;
    this.#redraw();
    this.text.reveal(this.#query);
    if (!this.#maps.has(this.#key())) this.#fetch();
  }

  /** @param {number} layers @param {number} heads */
  #shape(layers, heads) {
    if (layers === this.#layers && heads === this.#heads) return;
    [this.#layers, this.#heads] = [layers, heads];
    this.#layer = Math.min(this.#layer, layers - 1);
    this.#head = Math.min(this.#head, heads - 1);
    this.#thumbs = [];
    const rows = Array.from({ length: layers }, (_, layer) => {
      const buttons = Array.from({ length: heads }, (_, head) => {
        const button = h("button", { type: "button", class: "in-thumb", tabindex: layer + head ? -1 : 0 }, h("canvas", { "aria-hidden": "true" }));
        const choose = () => this.#choose(layer, head);
        button.addEventListener("click", choose);
        button.addEventListener("focus", () => button.matches(":focus-visible") && choose());
        this.#thumbs.push(button);
        return button;
      });
      const row = h("div", { class: "in-row" }, h("span", { class: "in-layer", "aria-hidden": "true" }, String(layer + 1)), ...buttons);
      if (layer === 0) row.dataset.pin = "first";
      else if (layer === layers - 1) row.dataset.pin = "last";
      return row;
    });
    this.overview.style.setProperty("--heads", String(heads));
    this.overview.replaceChildren(...rows);
    this.#mark();
  }

  #mark() {
    this.#thumbs.forEach((button, i) => {
      button.setAttribute("aria-pressed", String(i === this.#layer * this.#heads + this.#head));
    });
  }

  #key(layer = this.#layer, head = this.#head) {
    return `${layer}.${head}`;
  }

  /** @param {number} layer @param {number} head */
  #choose(layer, head) {
    if (layer === this.#layer && head === this.#head) return;
    [this.#layer, this.#head] = [layer, head];
    this.#mark();
    this.#soon();
    if (!this.#maps.has(this.#key())) this.#fetch();
  }

  /** Whether the maps of all layers and heads are fetched at once. @param {number} n tokens */
  #fits(n) {
    return this.#layers * this.#heads * n ** 2 <= AT_ONCE;
  }

  async #fetch() {
    const { ids, state, edited } = this.#reader;
    if (state === "generating" || edited) return;
    const attention = this.#fits(ids.length) || { layers: [this.#layer], heads: [this.#head] };
    const found = await this.#reader.look(() => lm.inspect({ ids, attention }));
    if (!found || found.n !== this.#tokens.length) return;
    this.#keep(found);
    this.#soon();
  }

  /** @param {import("../lm.js").Inspection} found */
  #keep({ attention, n }) {
    if (!attention) return;
    const { layers, heads, maps } = attention;
    this.#version += 1;
    layers.forEach((layer, i) => heads.forEach((head, j) => {
      const start = (i * heads.length + j) * n * n;
      this.#maps.set(this.#key(layer, head), Array.from({ length: n }, (_, q) => maps.subarray(start + q * n, start + q * n + q + 1)));
    }));
  }

  /** A token that was just chosen, and how the one before it attended. @param {import("../lm.js").Events["inside"]} inside */
  #append({ call, position, attention, id, text }) {
    const width = position + 1;
    const pairs = attention.length / width;
    if (!this.#layers) {
      // Opened in the middle of things: how many layers and heads there are is known from the model's next look.
      return;
    }
    if (pairs !== this.#layers * this.#heads) return;
    this.#stop();
    if (call !== this.#call) this.#begin(call);
    this.#live += 1;
    this.#version += 1;
    // All rows of a long text would take hundreds of megabytes: then only those of the map that is shown are kept.
    const all = this.#fits(width);
    const pooled = new Float32Array(pairs * CELLS);
    for (let pair = 0; pair < pairs; pair++) {
      const row = attention.subarray(pair * width, (pair + 1) * width);
      const key = this.#key(Math.floor(pair / this.#heads), pair % this.#heads);
      if (all || key === this.#key()) {
        const rows = this.#maps.get(key) ?? [];
        rows[position] = all ? row : row.slice();
        this.#maps.set(key, rows);
      } else {
        this.#maps.delete(key);
      }
      for (let c = 0; c < CELLS; c++) {
        const first = Math.floor((c * width) / CELLS);
        const stop = Math.max(first + 1, Math.floor(((c + 1) * width) / CELLS));
        for (let k = first; k < stop; k++) pooled[pair * CELLS + c] += row[k];
      }
    }
    this.#recent.push(pooled);
    if (this.#recent.length > CELLS) this.#recent.shift();
    if (this.#tokens.length > width) this.#tokens = this.#tokens.slice(0, width);
    while (this.#tokens.length < width) this.#tokens = [...this.#tokens, { id: -1, text: "…" }];
    this.#shown = width;
    this.#query = position;
    this.#tokens = [...this.#tokens, { id: id ?? -1, text }];
    this.text.set(this.#tokens, this.#reader.promptLength || width - this.#live + 1);
    this.#soon();
  }

  /** Another generation: what is shown may be of another text than the one that it goes on from. @param {number} call */
  #begin(call) {
    this.#call = call;
    this.#live = 0;
    this.#recent = [];
    this.#pointed = null;
    this.#tokens = this.#tokens.slice(0, this.#reader.kept(this.#tokens));
    for (const rows of this.#maps.values()) rows.length = Math.min(rows.length, this.#tokens.length);
  }

  #soon() {
    this.#frame ||= requestAnimationFrame((now) => {
      this.#frame = 0;
      // Tokens may come faster than a thousand small maps can be drawn.
      if (this.#live && now - this.#drawnAt < LIVE_MS) return this.#soon();
      this.#drawnAt = now;
      this.#redraw();
    });
  }

  #drawnAt = 0;

  #redraw() {
    if (!this.#layers) return;
    // Hundreds of small maps are drawn anew only if they are other ones, not whenever somebody points at a token.
    const of = `${this.#version} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
    if (this.#thumbsOf !== of) {
      this.#thumbsOf = of;
      if (this.#live) this.#liveThumbnails();
      else if (this.#overview) this.#thumbnails(...this.#overview);
    }
    this.note.textContent = this.#live
      ? `Live: each small map has the last ${this.#recent.length} tokens, the newest below.`
      : "Rows are the tokens that look, columns what they look at.";
    this.title.textContent = `Layer ${this.#layer + 1}, head ${this.#head + 1}`;
    this.step.max = String(Math.max(1, this.#tokens.length - (this.#live ? 1 : 0)));
    this.step.value = String(this.#shown);
    this.count.textContent = `${this.#shown} of ${this.step.max}`;
    this.#drawMatrix();
    this.#tell();
  }

  /** Small maps of all layers and heads, and their side. @type {[Float32Array, number]|null} */
  #overview = null;
  #thumbsOf = "";

  /** @param {Float32Array} maps @param {number} cells */
  #thumbnails(maps, cells) {
    this.#inSlices((button, i) => {
      const map = maps.subarray(i * cells * cells, (i + 1) * cells * cells);
      this.#drawThumb(button, map, cells);
      let [first, own] = [0, 0];
      for (let row = 0; row < cells; row++) {
        first += map[row * cells] / cells;
        own += map[row * cells + row] / cells;
      }
      const name = `Layer ${Math.floor(i / this.#heads) + 1}, head ${(i % this.#heads) + 1}`;
      button.title = `${name}: ${percent(first)} on the text's beginning, ${percent(own)} on what is near`;
      button.setAttribute("aria-label", button.title);
    });
  }

  #liveThumbnails() {
    const recent = [...this.#recent];
    const map = new Float32Array(recent.length * CELLS);
    this.#inSlices((button, i) => {
      recent.forEach((pooled, row) => map.set(pooled.subarray(i * CELLS, (i + 1) * CELLS), row * CELLS));
      this.#drawThumb(button, map, CELLS);
    });
  }

  /** Draw the small maps, a few a frame: a large model has a thousand. @param {(button: HTMLButtonElement, index: number) => void} draw */
  #inSlices(draw) {
    cancelAnimationFrame(this.#slice);
    const buttons = this.#thumbs;
    let next = 0;
    const some = () => {
      for (const stop = Math.min(buttons.length, next + SLICE); next < stop; next++) draw(buttons[next], next);
      if (next < buttons.length) this.#slice = requestAnimationFrame(some);
    };
    some();
  }

  #slice = 0;

  /** @param {HTMLButtonElement} button @param {Float32Array} map @param {number} cells */
  #drawThumb(button, map, cells) {
    const canvas = /** @type {HTMLCanvasElement} */ (button.firstElementChild);
    const rows = map.length / cells;
    if (canvas.width !== cells) canvas.width = cells;
    if (canvas.height !== rows) canvas.height = rows;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.putImageData(imageOf(context, map, cells), 0, 0);
  }

  /** What the query sees, as far as it is known. */
  #row(query = this.#query) {
    return this.#maps.get(this.#key())?.[query] ?? null;
  }

  #drawMatrix() {
    const n = this.#shown;
    const room = Math.max(160, Math.min(this.matrix.parentElement?.clientWidth ?? 360, 640));
    const labels = n <= 40 ? 72 : 0;
    // On a wide page all of it is to be seen at once.
    const tallest = this.element.clientWidth > 700 ? Math.max(200, (this.element.parentElement?.clientHeight ?? 470) - 116) : room;
    const cell = Math.max(Math.min(room - labels, tallest) / n, 0.5);
    const side = cell * n;
    const context = paint(this.matrix, labels + side, side);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.#image(n), labels, 0, side, side);
    // The page's colours, as the canvas's own: a custom property would still say light-dark().
    const { color: accent, borderTopColor: line, caretColor: muted, fontFamily } = getComputedStyle(this.matrix);
    context.strokeStyle = line;
    context.strokeRect(labels + 0.5, 0.5, side - 1, side - 1);
    context.strokeStyle = accent;
    context.lineWidth = 1.5;
    context.strokeRect(labels + 0.75, this.#query * cell + 0.75, side - 1.5, Math.max(cell - 1.5, 1));
    if (labels) {
      context.font = `${Math.min(12, Math.max(9, cell * 0.8))}px ${fontFamily}`;
      context.textAlign = "right";
      context.textBaseline = "middle";
      for (let q = 0; q < n; q++) {
        context.fillStyle = q === this.#query ? accent : muted;
        context.fillText(visible(this.#tokens[q].text).slice(0, 12), labels - 6, (q + 0.5) * cell, labels - 8);
      }
    }
    this.#geometry = { labels, cell };
    this.matrix.setAttribute("aria-label",
      `${this.title.textContent}: ${n} by ${n} weights. Up and down arrows choose the token that looks.`);
  }

  #geometry = { labels: 0, cell: 1 };

  /** The map, a pixel a weight, drawn anew only if it is another one. @param {number} n */
  #image(n) {
    const rows = this.#maps.get(this.#key());
    const of = `${this.#key()} ${n} ${this.#version} ${matchMedia("(prefers-color-scheme: dark)").matches}`;
    if (this.#drawn?.of === of) return this.#drawn.image;
    const cells = new Float32Array(n * n);
    for (let q = 0; q < n; q++) {
      const row = rows?.[q];
      if (row) cells.set(row.length > n ? row.subarray(0, n) : row, q * n);
    }
    const image = new OffscreenCanvas(n, n);
    const small = /** @type {any} */ (image.getContext("2d"));
    small.putImageData(imageOf(small, cells, n), 0, 0);
    this.#drawn = { of, image };
    return image;
  }

  /** @type {{of: string, image: OffscreenCanvas}|null} */
  #drawn = null;
  /** Counts what is read of the model, so that drawings are not kept longer. */
  #version = 0;

  /** @param {PointerEvent|MouseEvent} event */
  #hover(event) {
    const { labels, cell } = this.#geometry;
    const box = this.matrix.getBoundingClientRect();
    const query = Math.floor((event.clientY - box.top) / cell);
    const key = Math.floor((event.clientX - box.left - labels) / cell);
    if (query < 0 || query >= this.#shown) return;
    this.#point(query, key >= 0 && key <= query ? key : null);
  }

  /** @param {number} query @param {number|null} [key] */
  #point(query, key = null) {
    this.#query = Math.min(query, this.#shown - 1);
    this.#pointed = key;
    this.#soon();
  }

  /** @type {number|null} */
  #pointed = null;

  /** Say in words and numbers what is to be seen. */
  #tell() {
    const row = this.#row();
    this.text.tint(row, this.#query);
    if (this.#live) this.text.reveal(this.#tokens.length - 1);
    const name = this.#tokens[this.#query] ? quoted(this.#tokens[this.#query].text) : "";
    if (!row) {
      this.says.textContent = this.#live ? `How ${name} looks here is read when the text rests.` : `Reading how ${name} looks here…`;
      this.list.replaceChildren();
      return;
    }
    const best = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, 5);
    this.says.textContent = this.#pointed !== null
      ? `${name} looks at ${quoted(this.#tokens[this.#pointed].text)} with ${percent(row[this.#pointed])}.`
      : `${name} looks most at ${quoted(this.#tokens[best[0]].text)}: ${percent(row[best[0]])}.`;
    this.list.replaceChildren(...best.map((key) => {
      const bar = h("span", { class: "in-bar", "aria-hidden": "true" });
      bar.style.setProperty("--share", String(row[key]));
      return h("li", {}, h("span", { class: "in-piece" }, visible(this.#tokens[key].text)), bar, h("span", { class: "in-number" }, percent(row[key])));
    }));
  }

  /** @param {number} step */
  #to(step) {
    this.#shown = Math.max(1, Math.min(step, this.#tokens.length));
    this.#query = this.#shown - 1;
    this.#pointed = null;
    this.#soon();
  }

  #toggle() {
    if (this.#playing) return this.#stop();
    if (this.#shown >= this.#tokens.length) this.#to(1);
    this.play.textContent = "Pause";
    this.#playing = setInterval(() => {
      if (this.#shown >= this.#tokens.length) this.#stop();
      else this.#to(this.#shown + 1);
    }, STEP_MS);
  }

  #stop() {
    clearInterval(this.#playing);
    this.#playing = 0;
    this.play.textContent = "Replay";
  }
}
