// @ts-check
/** The controls: what they hold, what the address asks for, and what is remembered between visits. */

import { CUSTOM, FOLDER, STORY, fillPicker, offerOnSite } from "./models.js";
import { parsed, read, write } from "./remember.js";

/** @typedef {import("./lm.js").GenerateOptions} GenerateOptions */
/** @typedef {import("./lm.js").LoadOptions} LoadOptions */
/** @typedef {import("./folder.js").Folder} Folder */

const KEY = "tabgpt.settings";
const MODEL_KEY = "tabgpt.model";
const TOKEN_KEY = "tabgpt.token";
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
  count: "1",
  sampler: "auto",
  on_full: "end",
};
/** The rules of which token may come. @type {Record<string, Record<string, string>>} */
const PRESETS = {
  greedy: { temperature: "0", top_k: "0", top_p: "1", min_p: "0", repetition_penalty: "1" },
  // What SmolLM2's model card advises: a small model that is to answer must not be led astray.
  focused: { temperature: "0.2", top_k: "0", top_p: "0.9", min_p: "0", repetition_penalty: "1" },
  balanced: { temperature: "0.8", top_k: "40", top_p: "1", min_p: "0", repetition_penalty: "1" },
  wild: { temperature: "1.3", top_k: "0", top_p: "0.95", min_p: "0.02", repetition_penalty: "1" },
};
/** @type {Record<string, string>} */
const ENGINE = { backend: "auto", precision: "auto", hub: "" };
const DEFAULTS = { ...SAMPLING, ...ENGINE };
const NAMES = Object.keys(DEFAULTS);
const RULES = Object.keys(PRESETS.balanced);
/** Beside the settings in storage: the user, or a link, chose the rules. */
const CHOSEN = "rules_chosen";
const MOST_STOPS = 16;
const WHOLE = new Set(["max_new_tokens", "top_k", "count"]);

export class Settings {
  /** @type {(name: string) => HTMLInputElement} */
  #input = (name) => /** @type {HTMLInputElement} */ (document.getElementById(name));
  #model = /** @type {HTMLSelectElement} */ (document.getElementById("model"));
  #custom = this.#input("custom");
  #token = this.#input("token");
  #keepToken = this.#input("token-keep");
  #limits = "adapter";
  /** @type {Folder|null} */
  #folder = null;
  #tokenWanted = false;
  /** Whether the rules are somebody's choice, and not the page's own. */
  #chosen = false;
  /** Whether the loaded model answers. */
  #answers = false;
  /** Whether the model is that of the last visit, rather than the address's or the story. */
  remembered = false;

  /** @param {() => void} changed called when what is to be loaded has changed */
  constructor(changed) {
    fillPicker(this.#model);
    const query = new URLSearchParams(location.search);
    const saved = this.#saved();
    this.#chosen = saved[CHOSEN] !== undefined || RULES.some((name) => query.has(name));
    this.#fill({ ...SAMPLING, ...ENGINE, ...this.#known(saved), ...this.#fromAddress(query) });
    const last = read(MODEL_KEY);
    this.remembered = last !== null && !query.has("model");
    this.model = query.get("model") ?? last ?? STORY.id;
    this.#fillToken();
    if (query.get("limits") === "default") this.#limits = "default";

    for (const name of NAMES) {
      const input = this.#input(name);
      input.addEventListener("input", () => {
        if (RULES.includes(name)) this.#chosen = true;
        this.#showSlider(name);
        this.#save();
      });
      input.addEventListener("change", () => {
        this.#correct(name);
        this.#save();
        if (name === "hub") this.#fillToken();
        if (name in ENGINE) changed();
      });
      input.addEventListener("input", () => this.#showPreset());
    }
    for (const preset of this.#presets()) {
      preset.addEventListener("click", () => {
        this.#fill(PRESETS[preset.value]);
        this.#chosen = true;
        this.#save();
        // Whoever draws what the rules do listens to the form.
        preset.dispatchEvent(new Event("input", { bubbles: true }));
      });
    }
    for (const slider of this.#sliders()) {
      slider.addEventListener("input", () => {
        this.#input(slider.dataset.for ?? "").value = slider.value;
        if (RULES.includes(slider.dataset.for ?? "")) this.#chosen = true;
        this.#paint(slider);
        this.#showPreset();
      });
      slider.addEventListener("change", () => this.#save());
    }
    for (const input of [this.#token, this.#keepToken]) input.addEventListener("change", () => this.#saveToken());
    this.#model.addEventListener("change", () => {
      this.#showFields();
      if (this.#model.value === CUSTOM) this.#custom.focus();
      changed();
    });
    this.#custom.addEventListener("input", changed);
    document.getElementById("reset")?.addEventListener("click", () => {
      this.#fill(SAMPLING);
      this.#chosen = false;
      this.suit(this.#answers);
      this.#save();
      document.getElementById("sampling-form")?.dispatchEvent(new Event("input"));
    });
  }

  /** The model's id, or the folder's name; empty if there is none yet. */
  get model() {
    if (this.#model.value === FOLDER) return this.#folder?.name ?? "";
    return this.#model.value === CUSTOM ? this.#custom.value.trim() : this.#model.value;
  }

  set model(id) {
    const offered = [...this.#model.options].some((option) => option.value === id);
    this.#model.value = offered ? id : CUSTOM;
    if (!offered) this.#custom.value = id;
    this.#showFields();
  }

  /** The server has these models beside the page. @param {unknown} ids */
  offer(ids) {
    const { model } = this;
    offerOnSite(this.#model, ids);
    if (!this.local) this.model = model;
  }

  /** Choose a folder on the user's disk. @param {Folder} folder */
  set folder(folder) {
    this.#folder = folder;
    this.#model.value = FOLDER;
    this.#showFields();
  }

  /** Whether the model comes from a folder on the user's disk. */
  get local() {
    return this.#model.value === FOLDER;
  }

  /** What tells one choice from another. */
  get choice() {
    const { token: _, files, ...options } = this.loadOptions();
    return JSON.stringify({ ...options, files: files?.map(({ name, size, lastModified }) => [name, size, lastModified]) });
  }

  /** Remember the model for the next visit; null: begin with the story again. @param {string|null} model */
  remember(model) {
    write(MODEL_KEY, model);
  }

  /** Ask for an access token: the model turned out to need one. */
  askForToken() {
    this.#tokenWanted = true;
    this.#showFields();
    this.#token.focus();
  }

  /** @param {number} seed */
  set seed(seed) {
    this.#input("seed").value = String(seed);
    this.#save();
  }

  /** Put the cursor where the model's name is missing. */
  focusModel() {
    const folder = /** @type {HTMLElement} */ (document.getElementById("folder-choose"));
    (this.local ? folder : this.#model.value === CUSTOM ? this.#custom : this.#model).focus();
  }

  /** @returns {LoadOptions} */
  loadOptions() {
    const hub = this.#hub;
    const token = this.#token.value.trim();
    return /** @type {LoadOptions} */ ({
      ...(this.local ? { files: this.#folder?.files ?? [] } : { model: this.model }),
      backend: this.#input("backend").value,
      precision: this.#input("precision").value,
      limits: this.#limits,
      ...(hub && { hub }),
      ...(token && !this.local && { token }),
    });
  }

  /** How many continuations are written at once. */
  get count() {
    return Number(this.#input("count").value);
  }

  /** Bring the rules that suit a model, unless somebody chose others. @param {boolean} answers rather than goes on with a text */
  suit(answers) {
    this.#answers = answers;
    const rules = PRESETS[answers ? "focused" : "balanced"];
    if (this.#chosen || RULES.every((name) => this.#input(name).value === rules[name])) return;
    this.#fill(rules);
    document.getElementById("sampling-form")?.dispatchEvent(new Event("input"));
  }

  /** What a link needs to write the same again. */
  get values() {
    const names = [...Object.keys(SAMPLING), "precision", "hub"].filter((name) => name !== "count");
    return Object.fromEntries(names.map((name) => [name, this.#input(name).value]));
  }

  /** Take what a link brings; what the user had set stays remembered until they change something. @param {Record<string, string>} values */
  apply(values) {
    const known = Object.entries(values).filter(([name]) => NAMES.includes(name) && name !== "backend");
    this.#fill({ ...SAMPLING, ...Object.fromEntries(known) });
    this.#chosen = true;
    this.remembered = false;
    this.#fillToken();
  }

  /** @returns {GenerateOptions} everything but what is to be continued */
  generateOptions() {
    /** @param {string} name */
    const number = (name) => Number(this.#input(name).value);
    const seed = this.#input("seed").value.trim();
    const sampler = /** @type {"auto"|"gpu"|"python"} */ (this.#input("sampler").value);
    const on_full = /** @type {"end"|"slide"} */ (this.#input("on_full").value);
    // One a line; a line break is written \\n, as it cannot stand in a line.
    const stop = this.#input("stop_text").value.split("\n").filter(Boolean).map((text) => text.replaceAll("\\n", "\n"));
    return {
      max_new_tokens: number("max_new_tokens"),
      temperature: number("temperature"),
      top_k: number("top_k"),
      top_p: number("top_p"),
      min_p: number("min_p"),
      repetition_penalty: number("repetition_penalty"),
      ...(seed && { seed: Number(seed) }),
      ...(stop.length && { stop: stop.slice(0, MOST_STOPS) }),
      ...(sampler !== "auto" && { sampler }),
      ...(on_full !== "end" && { on_full }),
    };
  }

  /** @param {URLSearchParams} query */
  #fromAddress(query) {
    const stop = query.getAll("stop").map((text) => text.replaceAll("\n", "\\n"));
    const named = NAMES.filter((name) => query.has(name)).map((name) => [name, query.get(name) ?? ""]);
    return { ...Object.fromEntries(named), ...(stop.length && { stop_text: stop.join("\n") }) };
  }

  get #hub() {
    return this.#input("hub").value.trim();
  }

  /**
   * Bring back the token that was given for this very hub. The hub may come from the address, so from whoever wrote a
   * link: no other hub gets to see the token.
   */
  #fillToken() {
    const { hub, token } = parsed(read(TOKEN_KEY)) ?? {};
    const fits = typeof token === "string" && hub === this.#hub;
    this.#token.value = fits ? token : "";
    this.#keepToken.checked = fits;
    this.#showFields();
  }

  #saveToken() {
    const token = this.#token.value.trim();
    write(TOKEN_KEY, this.#keepToken.checked && token ? JSON.stringify({ hub: this.#hub, token }) : null);
  }

  /** @returns {Record<string, string>} */
  #saved() {
    const saved = Object.entries(parsed(read(KEY)) ?? {});
    return Object.fromEntries(saved.filter(([, value]) => typeof value === "string"));
  }

  /** @param {Record<string, string>} values */
  #known(values) {
    return Object.fromEntries(Object.entries(values).filter(([name]) => NAMES.includes(name)));
  }

  #save() {
    const values = Object.fromEntries(NAMES.map((name) => [name, this.#input(name).value]));
    write(KEY, JSON.stringify({ ...values, ...(this.#chosen && { [CHOSEN]: "yes" }) }));
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
    } else if (input.value === "" && name in DEFAULTS) {
      input.value = DEFAULTS[name]; // a choice that does not exist leaves a select empty
    }
    this.#showSlider(name);
    this.#showPreset();
  }

  /** Show what the choice of model needs. */
  #showFields() {
    const custom = this.#model.value === CUSTOM;
    /** @param {string} id @param {boolean} shown */
    const show = (id, shown) => document.getElementById(id)?.toggleAttribute("hidden", !shown);
    show("custom-field", custom);
    show("token-field", custom || (this.#tokenWanted && !this.local));
    show("folder-field", this.local);
    const name = document.getElementById("folder-name");
    if (name && this.#folder) name.textContent = this.#folder.name;
  }

  /** @returns {NodeListOf<HTMLInputElement>} */
  #sliders() {
    return document.querySelectorAll("input[data-for]");
  }

  /** @returns {NodeListOf<HTMLButtonElement>} */
  #presets() {
    return document.querySelectorAll("#presets > button");
  }

  /** Show which preset the rules are, if they are one. */
  #showPreset() {
    for (const preset of this.#presets()) {
      const fits = Object.entries(PRESETS[preset.value]).every(([name, value]) => this.#input(name).value === value);
      preset.setAttribute("aria-pressed", String(fits));
    }
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
