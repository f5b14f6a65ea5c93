// @ts-check
/** The GPU: what it is, what it offers, what tabgpt uses of it, and a report to copy. */

import { lm } from "../lm.js";
import { integer, size } from "../format.js";
import { h } from "./dom.js";

/** @type {Record<string, string>} */
const FEATURES = {
  subgroups: "sums over the threads of a subgroup, without shared memory",
  "timestamp-query": "how long kernels take; only for measuring",
  "shader-f16": "not used: f16 weights are unpacked by arithmetic that every GPU has",
};
/** @type {Record<string, [string, (n: number) => string]>} */
const LIMITS = {
  maxBufferSize: ["the largest buffer; a matrix that is larger is split by rows", size],
  maxStorageBufferBindingSize: ["the largest part of a matrix", size],
  maxStorageBuffersPerShaderStage: ["buffers that a kernel sees; tabgpt's never need more than 8", integer],
  maxComputeWorkgroupStorageSize: ["memory that a workgroup shares; decides what can be fused", size],
  maxComputeInvocationsPerWorkgroup: ["threads in a workgroup; tabgpt takes up to 256", integer],
  maxComputeWorkgroupSizeX: ["the same in one direction", integer],
  maxComputeWorkgroupsPerDimension: ["workgroups in one direction; longer grids are folded", integer],
};

export class Device {
  #reader;
  #report = "";

  /** @param {import("./reader.js").Reader} reader */
  constructor(reader) {
    this.#reader = reader;
    this.body = h("div", { class: "in-device" });
    this.copy = h("button", { type: "button", class: "button small", onclick: () => this.#copy() }, "Copy report");
    this.says = h("p", { class: "in-says", role: "status" }, "The report has what you see here and the model's name. No text, no token.");
    this.shown = h("textarea", { class: "in-report", readonly: true, rows: 8, "aria-label": "The report", spellcheck: "false" });
    this.element = h("div", {}, this.body,
      h("section", { class: "in-phase", "aria-label": "Report" }, h("h3", {}, "For a bug report"), h("div", { class: "in-steps" }, this.copy, this.says), this.shown));
  }

  open() {}

  close() {}

  async update() {
    const info = await lm.ready.catch(() => null);
    const site = await fetch(new URL("../site.json", import.meta.url)).then((answer) => answer.json()).catch(() => ({}));
    const { model } = this.#reader;
    const gpu = info?.gpu ?? null;
    const tuning = /** @type {any} */ (model)?.tuning ?? null;
    const features = Object.entries(FEATURES).map(([name, use]) =>
      row(name, gpu?.features.includes(name) ? "yes" : "no", use));
    const limits = Object.entries(gpu?.limits ?? {}).map(([name, value]) => {
      const [use, show] = LIMITS[name] ?? ["", integer];
      return row(name, show(value), use);
    });
    const name = gpu ? [gpu.vendor, gpu.architecture, /** @type {any} */ (gpu).description].filter(Boolean).join(", ") : "none";
    const facts = [
      row("Adapter", name, gpu ? "as the browser names it" : (info?.reason ?? "")),
      row("Computes on", model ? (model.backend === "webgpu" ? "the GPU" : "the CPU, in NumPy") : "nothing yet", model ? `${model.precision} weights` : "load a model first"),
      row("Python", info ? `${info.python}, Pyodide ${info.pyodide}` : "did not start", ""),
      ...(tuning ? [row("Kernel parameters", tuning.source, Object.entries(tuning).filter(([key]) => key !== "source").map(([key, value]) => `${key.replaceAll("_", " ")} ${value ?? "none"}`).join(", "))] : []),
    ];
    this.body.replaceChildren(
      section("This machine", facts), ...(gpu ? [section("Features", features), section("Limits", limits)] : []));
    this.#report = JSON.stringify({
      tabgpt: site.version ?? null, browser: navigator.userAgent, pyodide: info?.pyodide ?? null, python: info?.python ?? null,
      backend: info?.backend ?? null, reason: info?.reason ?? null, gpu,
      model: model && {
        model: publicName(model.model), revision: model.revision, family: model.family, parameters: model.parameters, precision: model.precision,
        backend: model.backend, context: model.context, memory: model.memory, tuning,
      },
      screen: `${innerWidth}×${innerHeight} at ${devicePixelRatio}`,
    }, null, 2);
    this.shown.value = this.#report;
  }

  async #copy() {
    try {
      await navigator.clipboard.writeText(this.#report);
      this.says.textContent = "Copied.";
    } catch {
      this.shown.select();
      this.says.textContent = "The browser does not allow that; the report below is selected, copy it from there.";
    }
  }
}

/** A repository's name is public; an address or a folder may hold a secret. @param {string} model */
export const publicName = (model) => (/^[\w.-]+(\/[\w.-]+)?$/.test(model) ? model : "(an address or a folder)");

/** @param {string} name @param {string} value @param {string} use */
const row = (name, value, use) => h("tr", {},
  h("th", { scope: "row" }, name, use ? h("span", { class: "in-use" }, use) : null), h("td", { class: "in-value" }, value));

/** @param {string} title @param {HTMLElement[]} rows */
const section = (title, rows) => h("section", { class: "in-phase", "aria-label": title }, h("h3", {}, title),
  h("table", { class: "in-specs" }, h("caption", { class: "visually-hidden" }, title), h("tbody", {}, ...rows)));
