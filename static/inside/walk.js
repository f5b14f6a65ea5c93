// @ts-check
/** A walk from text to token through the user's own text: what is computed, with its numbers and its source. */

import { lm } from "../lm.js";
import { integer } from "../format.js";
import { h, icon, percent, quoted, visible } from "./dom.js";
import { onTheme, tint } from "./colours.js";
import { strip } from "./layers.js";
import { Viewer } from "./viewer.js";

const BEST = 10;
const SHOWN = 7;
/** Pieces and words of a long text that are shown. */
const PIECES = 60;
const WORDS = 80;

/** @typedef {import("../lm.js").Inspection} Inspection */
/** @typedef {{title: string, text: (found: Inspection) => string, show: (found: Inspection) => Node[], sources: (found: Inspection) => import("./viewer.js").Place[]}} Screen */

export class Walk {
  #reader;
  #at = 0;
  #layer = 0;
  #head = 0;
  #temperature = 1;
  #number = 0.5;
  /** @type {Inspection|null} */
  #found = null;
  /** @type {Float32Array|null} */
  #logits = null;
  /** @type {(() => void)[]} */
  #off = [];

  /** @param {import("./reader.js").Reader} reader */
  constructor(reader) {
    this.#reader = reader;
    this.viewer = new Viewer();
    this.body = h("div", { class: "in-screen" });
    this.title = h("h3", { class: "in-step-title", tabindex: -1 });
    this.back = h("button", { type: "button", class: "button small", onclick: () => this.#go(-1) }, "Back");
    this.next = h("button", { type: "button", class: "button small", onclick: () => this.#go(1) }, "Next");
    this.places = h("ol", { class: "in-places" }, ...SCREENS.map(({ title }, i) =>
      h("li", {}, h("button", { type: "button", class: "in-place", onclick: () => this.#go(i - this.#at) }, title))));
    this.element = h("div", { class: "in-walk" }, h("nav", { "aria-label": "Steps from text to token" }, this.places),
      h("div", {}, h("div", { class: "in-steps" }, this.title, this.back, this.next), this.body), this.viewer.element);
  }

  open() {
    this.#off = [onTheme(() => this.#draw())];
  }

  close() {
    for (const off of this.#off) off();
  }

  async update() {
    const { ids, state, model } = this.#reader;
    if (state === "generating" || !ids.length || !model) return;
    const layer = this.#layer;
    const found = await this.#reader.look(async () => {
      const seen = await lm.inspect({ ids, detail: layer, layers: true, lens: BEST });
      return { seen, logits: await lm.logits({ ids }) };
    });
    if (!found) return;
    this.#found = found.seen;
    this.#logits = found.logits;
    this.#layer = Math.min(layer, found.seen.n_layer - 1);
    this.#head = Math.min(this.#head, found.seen.n_head - 1);
    this.#draw();
  }

  /** @param {number} by */
  #go(by) {
    this.#at = Math.max(0, Math.min(SCREENS.length - 1, this.#at + by));
    this.#draw();
  }

  #draw() {
    const found = this.#found;
    if (!found) return;
    const screen = SCREENS[this.#at];
    const shown = {
      head: this.#head, temperature: this.#temperature, number: this.#number, logits: this.#logits,
      chooser: () => this.#chooser(found), sampling: () => this.#sampling(found),
    };
    this.title.textContent = `${this.#at + 1}. ${screen.title}`;
    this.body.replaceChildren(
      h("p", { class: "in-text" }, screen.text(found)),
      ...screen.show.call(shown, found),
      h("p", { class: "in-sources" }, "What did it: ", ...screen.sources(found).map((/** @type {import("./viewer.js").Place} */ place) => this.viewer.link(place))));
    [...this.places.querySelectorAll("button")].forEach((button, i) => {
      if (i === this.#at) {
        button.setAttribute("aria-current", "step");
        // On a phone they are one row; only that row may scroll, not the page.
        this.places.scrollTo({ left: button.offsetLeft - this.places.offsetLeft - 40 });
      } else button.removeAttribute("aria-current");
    });
    this.back.disabled = this.#at === 0;
    this.next.disabled = this.#at === SCREENS.length - 1;
  }

  /** Which layer and head to look at. @param {Inspection} found */
  #chooser({ n_layer, n_head }) {
    const pick = (/** @type {string} */ name, /** @type {number} */ count, /** @type {number} */ value, /** @type {(value: number) => void} */ chosen) => {
      const select = h("select", { "aria-label": name }, ...Array.from({ length: count }, (_, i) => h("option", { value: i }, `${name} ${i + 1}`)));
      select.value = String(value);
      select.addEventListener("change", () => chosen(Number(select.value)));
      return h("div", { class: "select" }, select, icon("M6 8l4 4 4-4"));
    };
    return h("div", { class: "in-choose" },
      pick("Layer", n_layer, this.#layer, (layer) => {
        this.#layer = layer;
        this.update();
      }),
      pick("Head", n_head, this.#head, (head) => {
        this.#head = head;
        this.#draw();
      }));
  }

  /** @param {Inspection} found */
  #sampling(found) {
    const logits = this.#logits;
    if (!logits) return [];
    const temperature = h("input", { type: "range", min: 0.1, max: 2, step: 0.05, value: this.#temperature, "aria-label": "Temperature" });
    const says = h("p", { class: "in-text", role: "status" });
    const bars = h("div");
    const draw = () => {
      const shares = softmax(logits, this.#temperature);
      const order = [...shares.keys()].sort((a, b) => shares[b] - shares[a]);
      let [running, place] = [shares[order[0]], 0];
      while (running <= this.#number && place < order.length - 1) running += shares[order[++place]];
      const known = new Map(found.lens?.at(-1)?.map(({ id, text }) => [id, text]));
      const chosen = order[place];
      const name = (/** @type {number} */ id) => (known.has(id) ? quoted(known.get(id) ?? "") : `token ${id}`);
      says.textContent = `At temperature ${this.#temperature.toFixed(2)}, the number ${this.#number.toFixed(3)} falls on ${name(chosen)}, the ${ordinal(place + 1)} likeliest.`;
      if (!known.has(chosen)) {
        lm.decode([chosen]).then((text) => {
          says.textContent = says.textContent?.replace(`token ${chosen}`, quoted(text)) ?? "";
        }).catch(() => {}); // its number has to do
      }
      bars.replaceChildren(list(order.slice(0, SHOWN).map((id) => ({ text: known.get(id) ?? `#${id}`, share: shares[id] }))));
    };
    temperature.addEventListener("input", () => {
      this.#temperature = Number(temperature.value);
      draw();
    });
    const again = h("button", { type: "button", class: "button small", onclick: () => {
      this.#number = Math.random();
      draw();
    } }, "Draw a number");
    draw();
    return [h("div", { class: "in-steps" }, h("label", { class: "in-temperature" }, "Temperature", temperature), again), says, bars];
  }
}

/** @param {Float32Array} logits @param {number} temperature */
function softmax(logits, temperature) {
  const most = logits.reduce((high, value) => Math.max(high, value), -Infinity);
  const weights = logits.map((value) => Math.exp((value - most) / temperature));
  const total = weights.reduce((sum, value) => sum + value, 0);
  return weights.map((value) => value / total);
}

/** @param {number} n */
function ordinal(n) {
  const end = n % 100 > 10 && n % 100 < 14 ? "th" : (["th", "st", "nd", "rd"][n % 10] ?? "th");
  return `${n}${end}`;
}

/** Bars with their numbers. @param {{text: string, share: number}[]} entries */
function list(entries) {
  const most = Math.max(...entries.map(({ share }) => share), 1e-9);
  return h("ol", { class: "in-list" }, ...entries.map(({ text, share }) => {
    const bar = h("span", { class: "in-bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", String(share / most));
    return h("li", {}, h("span", { class: "in-piece" }, visible(text)), bar, h("span", { class: "in-number" }, percent(share)));
  }));
}

/** A named vector. @param {string} name @param {Float32Array} values @param {string} [about] */
const vector = (name, values, about = `${integer(values.length)} numbers`) =>
  h("div", { class: "in-vector" }, h("span", { class: "in-name" }, name), strip(values, name, { width: 420, height: 20 }), h("span", { class: "in-small" }, about));

/** @param {Float32Array} values @param {number} heads @param {number} head */
function headOf(values, heads, head) {
  const width = values.length / heads;
  return values.subarray(head * width, (head + 1) * width);
}

/** @param {number} n of all @param {number} most that are shown */
const onlyLast = (n, most) => (n > most ? ` Only the last ${most} are shown.` : "");

const engine = (/** @type {string} */ path, /** @type {string} */ find) => ({ path: `app/engine/${path}`, find });
const kernel = (/** @type {string} */ path) => ({ path: `wgsl/${path}.wgsl` });
/** @param {Inspection} found @param {string} find */
const model = (found, find) => ({ path: found.source, find });
/** @param {Inspection} found */
const last = (found) => quoted(found.tokens[found.position].text);

/** @type {any[]} */
const SCREENS = /** @type {Screen[]} */ ([
  {
    title: "Text to tokens",
    text: ({ n }) => `The text is cut into ${integer(n)} pieces from a fixed list; a dot stands for a space. From here on, the model sees only their numbers.${onlyLast(n, PIECES)}`,
    show: ({ tokens }) => [h("div", { class: "in-pieces" }, ...tokens.slice(-PIECES).map(({ id, text }) =>
      h("span", { class: "in-piece-id" }, h("b", {}, text.trim() ? text.replace(/^ /, "·") : visible(text)), h("span", { class: "in-small" }, String(id)))))],
    sources: () => [engine("tokenizer.py", "def encode")],
  },
  {
    title: "Tokens to vectors",
    text: (found) => `Each number picks a row of a table: a vector. This is that of ${last(found)}, before the first layer. What follows only ever adds to it.`,
    show: ({ detail }) => (detail ? [vector("Embedding", detail.embedding)] : []),
    sources: (found) => [kernel("embed"), engine("ops/eager.py", "def embed"), model(found, "def ")],
  },
  {
    title: "Queries, keys, values",
    text: (found) => `In each layer, three matrices make of the vector a query (what ${last(found)} looks for), a key (how it is found) and a value (what it gives), for each head apart.`,
    show({ detail, n_head, n_kv_head }) {
      const { head, chooser } = /** @type {any} */ (this);
      if (!detail) return [];
      const own = Math.floor(head / (n_head / n_kv_head));
      return [chooser(), vector("Query", headOf(detail.q, n_head, head)), vector("Key", headOf(detail.k, n_kv_head, own)), vector("Value", headOf(detail.v, n_kv_head, own))];
    },
    sources: (found) => [kernel("matvec"), kernel("append_cache"), model(found, "def attention")],
  },
  {
    title: "Attention",
    text: (found) => `The query is multiplied with the key of every token up to ${last(found)}; softmax makes shares of the products. By these shares the values are added up.${onlyLast(found.position + 1, WORDS)}`,
    show({ detail, tokens, position, n_head }) {
      const { head, chooser } = /** @type {any} */ (this);
      if (!detail) return [];
      const row = headOf(detail.attention, n_head, head);
      const best = [...row.keys()].sort((a, b) => row[b] - row[a]).slice(0, 6).sort((a, b) => a - b);
      const words = tokens.slice(0, position + 1).map(({ text }, i) => {
        const word = h("span", { class: "in-word", title: percent(row[i]) }, visible(text));
        const { background, ink } = tint(row[i]);
        word.style.background = background;
        word.style.color = ink;
        return word;
      });
      return [chooser(), h("div", { class: "in-pieces" }, ...words.slice(-WORDS)), list(best.map((i) => ({ text: tokens[i].text, share: row[i] })))];
    },
    sources: (found) => [kernel("attend_split"), engine("ops/eager.py", "def attend"), model(found, "def attention")],
  },
  {
    title: "MLP",
    text: ({ detail }) => {
      const active = detail ? detail.hidden.filter((value) => Math.abs(value) > 0.1).length : 0;
      return `Two matrices with a bend between them work on the vector alone. ${integer(active)} of ${integer(detail?.hidden.length ?? 0)} places in between are at work here (beyond ±0.1). The result is added to the vector.`;
    },
    show({ detail }) {
      const { chooser } = /** @type {any} */ (this);
      return detail ? [chooser(), vector("Attention's sum", detail.attended), vector("Inside the MLP", detail.hidden), vector("After the layer", detail.out)] : [];
    },
    sources: (found) => [kernel("matvec"), kernel("lib/activation"), model(found, "def feed_forward")],
  },
  {
    title: "Layer after layer",
    text: ({ n_layer }) => `That was one of ${n_layer} layers. After each one could stop and ask what comes next: this is how the answer takes shape.`,
    show: ({ lens }) => (lens ? [h("ol", { class: "in-list", start: 0 }, ...lens.map((best, place) => {
      const bar = h("span", { class: "in-bar", "aria-hidden": "true" });
      bar.style.setProperty("--share", String(best[0].probability));
      return h("li", {}, h("span", { class: "in-name" }, place ? `Layer ${place}` : "Embedding"), h("span", { class: "in-piece" }, visible(best[0].text)), bar, h("span", { class: "in-number" }, percent(best[0].probability)));
    }))] : []),
    sources: (found) => [model(found, "def block"), engine("gpu/plan.py", "def submit"), engine("ops/fuse.py", "def fuse")],
  },
  {
    title: "Logits",
    text: (found) => `The last vector is compared with every token's own: one number for each of them, the logits. As shares, these are the likeliest after ${last(found)}.`,
    show: ({ lens }) => [list((lens?.at(-1) ?? []).map(({ text, probability }) => ({ text, share: probability })))],
    sources: (found) => [kernel("matvec"), engine("ops/eager.py", "def logits"), model(found, "def ")],
  },
  {
    title: "The next token",
    text: () => "A number between 0 and 1, drawn by Python from your seed, falls on one of the shares. Temperature sharpens or flattens them first; top-k, top-p and min-p cut their tail. Then all begins again, with one token more.",
    show() {
      return /** @type {any} */ (this).sampling();
    },
    sources: () => [engine("sampling.py", "def sample"), kernel("sample_blocks"), kernel("sample_choose"), engine("generate.py", "async def generate")],
  },
]);
