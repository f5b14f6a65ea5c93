// @ts-check
/** The storage view: what the browser keeps of models, how much room there is, and deleting it. */

import { lm } from "./lm.js";
import { size } from "./format.js";
import { known, nameOf } from "./models.js";

/** @typedef {import("./lm.js").Storage} Storage */
/** @typedef {Storage["models"][number]} Kept */

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

export class StorageView {
  #dialog = /** @type {HTMLDialogElement} */ (element("storage"));
  #gauge = /** @type {HTMLMeterElement} */ (element("gauge"));
  /** @type {Storage|null} */
  #found = null;
  /** Told apart by what it shows: the same is not drawn again, which would take the focus away. */
  #shown = "";

  /** @param {() => void} changed called when what is kept is known anew */
  constructor(changed) {
    this.changed = changed;
    element("storage-open").addEventListener("click", () => {
      this.#complain(null);
      this.#dialog.showModal();
      this.refresh();
    });
    element("storage-close").addEventListener("click", () => this.#dialog.close());
    // What was asked and not answered is not asked any more when it is opened again.
    this.#dialog.addEventListener("close", () => {
      this.#shown = "";
      if (this.#found) this.#show(this.#found);
    });
    // A click beside the dialog meets the dialog itself; one inside of it meets what is in it.
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog) this.#dialog.close();
    });
  }

  /** Whether all of a model is kept, as far as is known. @param {string} model "owner/name[@revision]" */
  has(model) {
    const [name, revision] = model.split("@");
    const kept = this.#found?.models.filter((one) => one.complete && one.model === name) ?? [];
    // Only the engine knows what a branch stands for.
    return kept.some((one) => !revision || !/^[0-9a-f]{40}$/.test(revision) || one.revision === revision);
  }

  /** Ask the engine again; tell whether it answered. */
  async refresh() {
    try {
      this.#found = await lm.storage();
    } catch (error) {
      this.#complain(error);
      return false;
    }
    this.#show(this.#found);
    this.changed();
    return true;
  }

  /** @param {Storage} found */
  #show({ models, usage, quota, persisted, reason }) {
    const shown = JSON.stringify(models);
    if (shown !== this.#shown) {
      this.#shown = shown;
      element("kept").replaceChildren(...models.map((model) => this.#row(model)));
      element("forget-all").replaceChildren(
        ...this.#deletion("Delete all", `Delete all, ${size(models.reduce((sum, { bytes }) => sum + bytes, 0))}?`),
      );
    }
    element("kept").hidden = element("forget-all").hidden = models.length === 0;
    element("kept-none").hidden = models.length > 0;
    this.#gauge.hidden = usage === null || !quota;
    if (usage !== null && quota) {
      this.#gauge.value = usage / quota;
      element("storage-estimate").textContent = `${size(usage)} in use of ${size(quota)} that the browser allows`;
    } else {
      element("storage-estimate").textContent = "The browser does not tell how much room there is.";
    }
    element("storage-promise").textContent = reason
      ? `Nothing more can be kept: ${reason.replace(/\.$/, "")}.`
      : persisted
        ? "The browser keeps this until you delete it."
        : "The browser may clear this by itself when your disk is nearly full.";
  }

  /** @param {Kept} kept */
  #row({ model, revision, bytes, complete }) {
    const row = document.createElement("li");
    const name = document.createElement("p");
    name.className = "kept-name";
    name.textContent = nameOf(model);
    const about = document.createElement("p");
    about.className = "hint";
    const whole = known(model)?.download;
    const amount = complete || !whole ? size(bytes) : `${size(bytes)} of ${size(whole)}`;
    const state = complete ? "complete" : "partial";
    about.textContent = [amount, state, revision?.slice(0, 7)].filter(Boolean).join(" · ");
    row.dataset.complete = String(complete);
    row.append(name, about, ...this.#deletion("Delete", "Delete?", model));
    return row;
  }

  /**
   * A button that asks before it deletes.
   * @param {string} label @param {string} question @param {string} [model] all of them if missing
   */
  #deletion(label, question, model) {
    const box = document.createElement("div");
    box.className = "deletion";
    const named = model === undefined ? "" : ` ${nameOf(model)}`;
    const first = button(label, `${label}${named}`, () => ask(true));
    const sure = document.createElement("span");
    sure.textContent = question;
    const yes = button("Yes, delete", `Yes, delete${named || " all"}`, () => this.#forget(box, model));
    yes.classList.add("danger");
    const no = button("Keep", `Keep${named || " all"}`, () => ask(false));
    /** @param {boolean} asking */
    const ask = (asking) => {
      box.replaceChildren(...(asking ? [sure, yes, no] : [first]));
      (asking ? no : first).focus();
    };
    box.append(first);
    return [box];
  }

  /** @param {HTMLElement} box @param {string} [model] */
  async #forget(box, model) {
    this.#complain(null);
    for (const one of box.querySelectorAll("button")) one.disabled = true;
    try {
      await lm.forget(model);
    } catch (error) {
      this.#complain(error);
    }
    this.#shown = "";
    await this.refresh();
    element("storage-close").focus();
  }

  /** @param {unknown} error */
  #complain(error) {
    element("storage-problem").hidden = error === null;
    element("storage-problem").textContent = error instanceof Error ? error.message : "";
  }
}

/** @param {string} text @param {string} name @param {() => void} act */
function button(text, name, act) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "quiet";
  made.textContent = text;
  made.ariaLabel = name;
  made.addEventListener("click", act);
  return made;
}
