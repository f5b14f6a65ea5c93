// @ts-check
/** Where the time goes, and the memory: measured for the user's own text. */

import { lm } from "../lm.js";
import { integer, size } from "../format.js";
import { h } from "./dom.js";

/** Purposes as people call them. @type {Record<string, string>} */
const PURPOSES = {
  weights: "Weights", cache: "KV cache", activations: "Activations", staging: "Read-back", inspection: "Looking inside", sampler: "Sampler",
};

/** @param {number} ms */
const time = (ms) => (ms >= 100 ? `${ms.toFixed(0)} ms` : ms >= 1 ? `${ms.toFixed(1)} ms` : `${(1000 * ms).toFixed(0)} µs`);

export class Time {
  #reader;

  /** @param {import("./reader.js").Reader} reader */
  constructor(reader) {
    this.#reader = reader;
    this.again = h("button", { type: "button", class: "button small", onclick: () => this.update() }, "Measure again");
    this.says = h("p", { class: "in-says", role: "status" });
    this.body = h("div", { class: "in-times" });
    this.element = h("div", { class: "in-time" }, h("div", { class: "in-steps" }, this.says, this.again), this.body);
  }

  open() {}

  close() {}

  async update() {
    const { state, model } = this.#reader;
    if (state === "generating" || !model) return;
    const ids = this.#reader.ids.slice(-(model.context - 2));
    if (!ids.length) return;
    this.says.textContent = "Measuring with your text…";
    this.again.disabled = true;
    const found = await this.#reader.look(() => lm.profile({ ids }));
    this.again.disabled = false;
    if (found) this.#draw(found);
    else this.says.textContent = "";
  }

  /** @param {import("../lm.js").Profile} profile */
  #draw(profile) {
    const { prefill, decode, memory, backend } = profile;
    this.says.textContent = `${verdict(decode, backend)} ${time(decode.ms)} a token, ${time(prefill.ms)} to read ${integer(prefill.tokens)} tokens.`;
    this.body.replaceChildren(
      phase("Writing a token", decode, backend), phase(`Reading ${integer(prefill.tokens)} tokens`, prefill, backend),
      memoryOf(memory), figures(decode, prefill));
  }
}

/** @param {import("../lm.js").Phase} phase @param {string} backend */
function verdict({ gpu_ms: gpu, ms, bound }, backend) {
  if (backend === "numpy") return "CPU-bound: NumPy computes in Python's own thread.";
  if (gpu === null || bound === null) return "This browser has no GPU timestamps, so the GPU's share is not known.";
  const share = Math.round(100 * Math.min(1, gpu / ms));
  return bound === "gpu" ? `GPU-bound: the GPU is busy ${share}% of the time.` : `CPU-bound: the GPU is busy only ${share}% of the time.`;
}

/** @param {string} title @param {import("../lm.js").Phase} phase @param {string} backend */
function phase(title, phase, backend) {
  const { ms, gpu_ms: gpu, python_ms: python, submit_ms: submit, waiting_ms: waiting, kernels_ms: kernels } = phase;
  const lanes = h("div", { class: "in-lanes" });
  if (backend === "webgpu") {
    if (gpu !== null) lanes.append(lane("GPU", [["busy", gpu, "gpu"], ...(gpu < ms ? [/** @type {[string, number, string]} */ (["idle", ms - gpu, "rest"])] : [])]));
    lanes.append(lane("CPU", [["Python", python, "python"], ["recording and submitting", submit, "ffi"], ["waiting", waiting, "rest"]]));
  } else {
    lanes.append(lane("CPU", [["NumPy", ms, "python"]]));
  }
  const section = h("section", { class: "in-phase", "aria-label": title },
    h("h3", {}, title, h("span", { class: "in-figure" }, time(ms))), h("p", { class: "in-verdict" }, verdict(phase, backend)), lanes);
  if (kernels) section.append(kernelTable(kernels, backend));
  return section;
}

/** One bar of parts, with their numbers below. @param {string} name @param {[string, number, string][]} parts */
function lane(name, parts) {
  const total = parts.reduce((sum, [, value]) => sum + value, 0) || 1;
  const bar = h("div", { class: "in-lane", role: "img", "aria-label": `${name}: ${parts.map(([part, value]) => `${part} ${time(value)}`).join(", ")}` });
  for (const [part, value, kind] of parts) {
    const piece = h("span", { "data-kind": kind, title: `${name} ${part}: ${time(value)}` });
    piece.style.flexGrow = String(value / total);
    bar.append(piece);
  }
  const keys = parts.map(([part, value, kind]) => h("span", { class: "in-key", "data-kind": kind }, `${part} `, h("b", {}, time(value))));
  return h("div", {}, h("span", { class: "in-lane-name" }, name), bar, h("p", { class: "in-keys" }, ...keys));
}

/** @param {Record<string, number>} kernels @param {string} backend */
function kernelTable(kernels, backend) {
  const entries = Object.entries(kernels).sort((a, b) => b[1] - a[1]);
  const most = entries[0]?.[1] || 1;
  const rows = entries.map(([name, ms]) => {
    const bar = h("span", { class: "in-bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", String(ms / most));
    return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, bar), h("td", { class: "in-number" }, time(ms)));
  });
  return h("table", { class: "in-kernels" },
    h("caption", {}, backend === "numpy" ? "By operation" : "GPU time by kernel and the layer's part"), h("tbody", {}, ...rows));
}

/** @param {Record<string, number>} memory */
function memoryOf(memory) {
  const entries = Object.entries(memory).filter(([, bytes]) => bytes).sort((a, b) => b[1] - a[1]);
  const total = entries.reduce((sum, [, bytes]) => sum + bytes, 0);
  const bar = h("div", { class: "in-lane", role: "img", "aria-label": entries.map(([name, bytes]) => `${PURPOSES[name] ?? name} ${size(bytes)}`).join(", ") });
  const kinds = ["gpu", "ffi", "python", "rest"];
  entries.forEach(([name, bytes], i) => {
    const piece = h("span", { "data-kind": kinds[Math.min(i, 3)], title: `${PURPOSES[name] ?? name}: ${size(bytes)}` });
    piece.style.flexGrow = String(bytes / (total || 1));
    bar.append(piece);
  });
  const keys = entries.map(([name, bytes], i) =>
    h("span", { class: "in-key", "data-kind": kinds[Math.min(i, 3)] }, `${PURPOSES[name] ?? name} `, h("b", {}, size(bytes))));
  return h("section", { class: "in-phase", "aria-label": "Memory" },
    h("h3", {}, "Memory", h("span", { class: "in-figure" }, size(total))), bar, h("p", { class: "in-keys" }, ...keys));
}

/** @param {import("../lm.js").Phase} decode @param {import("../lm.js").Phase} prefill */
function figures(decode, prefill) {
  /** @type {[string, string][]} */
  const facts = [
    ["Dispatches a token", decode.dispatches === null ? "not known" : integer(decode.dispatches)],
    ["Dispatches to read the text", prefill.dispatches === null ? "not known" : integer(prefill.dispatches)],
    ["Weights read a token", size(decode.weight_bytes ?? 0)],
    ["Cache read a token", size(decode.cache_bytes ?? 0)],
    ["Achieved", `${(decode.gb_per_second ?? 0).toPrecision(3)} GB/s`],
  ];
  return h("section", { class: "in-phase", "aria-label": "Figures" }, h("h3", {}, "Figures"),
    h("dl", { class: "in-facts" }, ...facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
}
