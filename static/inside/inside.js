// @ts-check
/** `<tabgpt-inside>`: what happens in the model, below the text. Closed it costs nothing; a view loads when it is opened. */

import { lm } from "../lm.js";
import { h, icon } from "./dom.js";
import { Reader } from "./reader.js";

/** @typedef {{element: HTMLElement, open: () => void, close: () => void, update: () => unknown}} View */

const KEY = "tabgpt.inside";
/** @type {[string, string, string, (reader: Reader) => Promise<View>][]} name, title, icon, loader */
const VIEWS = [
  ["attention", "Attention", "M3 3h14v14H3zM3 7.7h14M3 12.3h14M7.7 3v14M12.3 3v14", async (reader) => new (await import("./attention.js")).Attention(reader)],
  ["layers", "Layers", "M10 3l7 3.5-7 3.5-7-3.5zM3 10l7 3.5 7-3.5M3 13.5L10 17l7-3.5", async (reader) => new (await import("./layers.js")).Layers(reader)],
  ["time", "Time", "M10 5.5V10l3 2M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14z", async (reader) => new (await import("./time.js")).Time(reader)],
  ["gpu", "GPU", "M5.5 5.5h9v9h-9zM8 2.5v3M12 2.5v3M8 14.5v3M12 14.5v3M2.5 8h3M2.5 12h3M14.5 8h3M14.5 12h3", async (reader) => new (await import("./device.js")).Device(reader)],
  ["walk", "How it works", "M4 16.5c0-4 3-4 6-6.5s6-2.5 6-6.5M4 16.5h.01M16 3.5h.01", async (reader) => new (await import("./walk.js")).Walk(reader)],
];

class Inside extends HTMLElement {
  /** @type {Reader|null} */
  #reader = null;
  /** @type {Map<string, View>} */
  #views = new Map();
  #open = "";
  #updating = 0;

  connectedCallback() {
    if (this.#reader) return;
    this.role ??= "region";
    this.ariaLabel ??= "Looking inside";
    this.#reader = new Reader(() => this.#changed(), (error) => this.#fail(error));
    const style = h("link", { rel: "stylesheet", href: new URL("./inside.css", import.meta.url).href });
    style.addEventListener("load", () => this.#build());
    document.head.append(style);
  }

  #build() {
    this.buttons = VIEWS.map(([name, title, path]) => h("button", {
      type: "button", class: "in-tab", "aria-expanded": "false", "aria-controls": "inside-view", "data-view": name,
      onclick: () => this.toggle(name),
    }, icon(path), title));
    this.tall = h("button", { type: "button", class: "in-tab in-tall", "aria-pressed": "false", "aria-label": "Use the whole height", hidden: true, onclick: () => this.#stretch() }, icon("M10 3v14M6 7l4-4 4 4M6 13l4 4 4-4"));
    this.view = h("div", { class: "in-view", id: "inside-view", role: "region", "aria-label": "Inside the model", tabindex: -1, hidden: true });
    this.replaceChildren(h("div", { class: "in-bar-tabs", role: "group", "aria-label": "Look inside" },
      h("span", { class: "in-label", "aria-hidden": "true" }, "Look inside"), ...this.buttons, this.tall), this.view);
    this.dataset.ready = "";
  }

  /** Open a view, or close it if it is open. @param {string} name */
  async toggle(name) {
    const { view, buttons, tall } = this;
    const reader = this.#reader;
    if (!view || !buttons || !tall || !reader) return;
    this.#views.get(this.#open)?.close();
    reader.drop();
    const closing = this.#open === name;
    if (closing && reader.state === "ready") lm.inspect({ release: true }).catch(() => {}); // whoever is busy frees it with the model
    this.#open = closing ? "" : name;
    for (const button of buttons) button.setAttribute("aria-expanded", String(button.dataset.view === this.#open));
    view.hidden = tall.hidden = closing;
    this.toggleAttribute("data-open", !closing);
    try {
      localStorage.setItem(KEY, this.#open);
    } catch {
      // storage is blocked: nothing is remembered
    }
    if (closing) return view.replaceChildren();
    const [, title, , load] = VIEWS.find(([other]) => other === name) ?? VIEWS[0];
    view.setAttribute("aria-label", title);
    view.dataset.view = name;
    const made = this.#views.get(name) ?? (await load(reader));
    this.#views.set(name, made);
    if (this.#open !== name) return;
    this.empty = h("p", { class: "in-empty", hidden: true });
    view.replaceChildren(this.empty, made.element);
    made.open();
    if (!reader.edited) made.update();
    this.#hint();
    this.#reveal();
  }

  /** On a phone it opens below what is to be seen. */
  #reveal() {
    if (!matchMedia("(max-width: 899px)").matches) return;
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.scrollIntoView({ block: "start", behavior: still ? "auto" : "smooth" });
  }

  #stretch() {
    const stretched = this.toggleAttribute("data-tall");
    this.tall?.setAttribute("aria-pressed", String(stretched));
  }

  #hint() {
    const reader = this.#reader;
    if (!this.empty || !reader || !this.#open) return;
    const needsText = this.#open !== "gpu";
    const text = !reader.model ? "Load a model, and this shows what it does." : reader.ids.length ? "" : "Write something, and this shows what the model makes of it.";
    this.empty.textContent = text;
    this.empty.hidden = !needsText || !text;
  }

  #changed() {
    this.#hint();
    const view = this.#views.get(this.#open);
    if (!view || this.#reader?.state === "generating" || this.#reader?.edited) return; // of an edited text it hears when that rests
    // Several things change at once when a generation ends.
    clearTimeout(this.#updating);
    this.#updating = setTimeout(() => this.#views.get(this.#open)?.update(), 50);
  }

  /** @param {unknown} error */
  #fail(error) {
    if (!this.empty) return;
    this.empty.textContent = error instanceof Error ? error.message : String(error);
    this.empty.hidden = false;
  }
}

customElements.define("tabgpt-inside", Inside);
