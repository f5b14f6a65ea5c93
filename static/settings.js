// @ts-check
/** The controls: what they hold, what the address asks for, and what is remembered between visits. */

import { CUSTOM, STORY, fillPicker, known } from "./models.js";

/** @typedef {import("./lm.js").GenerateOptions} GenerateOptions */
/** @typedef {import("./lm.js").LoadOptions} LoadOptions */

const KEY = "tabgpt.settings";
/** What suits the story model, by its model card. @type {Record<string, string>} */
const SAMPLING = {
  max_new_tokens: "200",
  temperature: "0.8",
  top_k: "40",
  top_p: "1",
  seed: "",
  min_p: "0",
  repetition_penalty: "1",
  stop_text: "",
};
/** @type {Record<string, string>} */
const ENGINE = { backend: "auto", precision: "auto", hub: "" };
const NAMES = [...Object.keys(SAMPLING), ...Object.keys(ENGINE)];
const WHOLE = new Set(["max_new_tokens", "top_k"]);

export class Settings {
  /** @type {(name: string) => HTMLInputElement} */
  #input = (name) => /** @type {HTMLInputElement} */ (document.getElementById(name));
  #model = /** @type {HTMLSelectElement} */ (document.getElementById("model"));
  #custom = this.#input("custom");
  #limits = "adapter";

  /** @param {() => void} changed called when what is to be loaded has changed */
  constructor(changed) {
    fillPicker(this.#model);
    const query = new URLSearchParams(location.search);
    const saved = this.#saved();
    this.#fill({ ...SAMPLING, ...ENGINE, ...saved, ...this.#fromAddress(query) });
    // The model is not remembered: without a cache, coming back would start a download of gigabytes, or fail offline.
    this.model = query.get("model") ?? STORY.id;
    if (query.get("limits") === "default") this.#limits = "default";

    for (const name of NAMES) {
      const input = this.#input(name);
      input.addEventListener("input", () => this.#showSlider(name));
      input.addEventListener("change", () => {
        this.#correct(name);
        this.#save();
        if (name in ENGINE) changed();
      });
    }
    for (const slider of this.#sliders()) {
      slider.addEventListener("input", () => {
        this.#input(slider.dataset.for ?? "").value = slider.value;
        this.#paint(slider);
      });
      slider.addEventListener("change", () => this.#save());
    }
    this.#model.addEventListener("change", () => {
      this.#showCustom();
      if (this.#model.value === CUSTOM) this.#custom.focus();
      changed();
    });
    this.#custom.addEventListener("input", changed);
    document.getElementById("reset")?.addEventListener("click", () => {
      this.#fill(SAMPLING);
      this.#save();
    });
  }

  get model() {
    return this.#model.value === CUSTOM ? this.#custom.value.trim() : this.#model.value;
  }

  set model(id) {
    this.#model.value = known(id) ? id : CUSTOM;
    if (!known(id)) this.#custom.value = id;
    this.#showCustom();
  }

  /** @param {number} seed */
  set seed(seed) {
    this.#input("seed").value = String(seed);
    this.#save();
  }

  /** Put the cursor where the model's name is missing. */
  focusModel() {
    (this.#model.value === CUSTOM ? this.#custom : this.#model).focus();
  }

  /** @returns {LoadOptions} */
  loadOptions() {
    const hub = this.#input("hub").value.trim();
    return /** @type {LoadOptions} */ ({
      model: this.model,
      backend: this.#input("backend").value,
      precision: this.#input("precision").value,
      limits: this.#limits,
      ...(hub && { hub }),
    });
  }

  /** @param {string} prompt @returns {GenerateOptions} */
  generateOptions(prompt) {
    /** @param {string} name */
    const number = (name) => Number(this.#input(name).value);
    const seed = this.#input("seed").value.trim();
    const stop = this.#input("stop_text").value;
    return {
      prompt,
      max_new_tokens: number("max_new_tokens"),
      temperature: number("temperature"),
      top_k: number("top_k"),
      top_p: number("top_p"),
      min_p: number("min_p"),
      repetition_penalty: number("repetition_penalty"),
      ...(seed && { seed: Number(seed) }),
      ...(stop && { stop }),
    };
  }

  /** @param {URLSearchParams} query */
  #fromAddress(query) {
    const stop = query.get("stop");
    const named = NAMES.filter((name) => query.has(name)).map((name) => [name, query.get(name) ?? ""]);
    return { ...Object.fromEntries(named), ...(stop !== null && { stop_text: stop }) };
  }

  /** @returns {Record<string, string>} */
  #saved() {
    try {
      const saved = Object.entries(JSON.parse(localStorage.getItem(KEY) ?? "{}"));
      return Object.fromEntries(saved.filter(([name, value]) => NAMES.includes(name) && typeof value === "string"));
    } catch {
      return {}; // storage is blocked or damaged: the page works without it
    }
  }

  #save() {
    try {
      localStorage.setItem(KEY, JSON.stringify(Object.fromEntries(NAMES.map((name) => [name, this.#input(name).value]))));
    } catch {
      // as above
    }
  }

  /** @param {Record<string, string>} values */
  #fill(values) {
    for (const [name, value] of Object.entries(values)) {
      this.#input(name).value = value;
      this.#correct(name);
      this.#showSlider(name);
    }
  }

  /** Bring a field back into its range. @param {string} name */
  #correct(name) {
    const input = this.#input(name);
    if (name === "seed") {
      const seed = input.value.replace(/\D/g, "");
      input.value = seed && String(Math.min(Number(seed), Number.MAX_SAFE_INTEGER));
    } else if (input.type === "number") {
      const value = input.value.trim() === "" ? NaN : Number(input.value);
      const inside = Math.min(Math.max(value, Number(input.min)), Number(input.max));
      input.value = Number.isNaN(inside) ? SAMPLING[name] : String(WHOLE.has(name) ? Math.round(inside) : inside);
    } else if (input.value === "" && name in ENGINE) {
      input.value = ENGINE[name]; // a choice that does not exist leaves a select empty
    }
    this.#showSlider(name);
  }

  #showCustom() {
    const field = document.getElementById("custom-field");
    if (field) field.hidden = this.#model.value !== CUSTOM;
  }

  /** @returns {NodeListOf<HTMLInputElement>} */
  #sliders() {
    return document.querySelectorAll("input[data-for]");
  }

  /** @param {string} name */
  #showSlider(name) {
    for (const slider of this.#sliders()) {
      if (slider.dataset.for !== name) continue;
      slider.value = this.#input(name).value;
      this.#paint(slider);
    }
  }

  /** @param {HTMLInputElement} slider */
  #paint(slider) {
    const [min, max] = [Number(slider.min), Number(slider.max)];
    slider.style.setProperty("--fill", `${(100 * (Number(slider.value) - min)) / (max - min)}%`);
  }
}
