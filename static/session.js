// @ts-check
/** The engine as the page sees it: which model is loaded, what is going on, what went wrong. */

import { lm } from "./lm.js";
import { hideProgress, say, show, showProgress } from "./figures.js";
import { duration, size } from "./format.js";
import { STORY, known, nameOf } from "./models.js";

/** @typedef {import("./lm.js").Loaded} Loaded */

/** What loads this model again. @param {Loaded} model */
export const idOf = ({ model, revision }) => (revision && revision !== "main" ? `${model}@${revision}` : model);

export class Session {
  /** @type {Loaded|null} */
  loaded = null;
  /** Its name for people. */
  name = "";
  /** The choice that `loaded` came from. */
  #choice = "";
  /** The name of the one that is being loaded. */
  loadingName = "";
  /** A load that is under way. @type {Promise<void>|null} */
  loading = null;
  generating = false;
  /** Stop was pressed before the model was there. */
  givenUp = false;
  /** The engine is gone for good. */
  failed = false;
  /** @type {import("./lm.js").Gpu|null} */
  gpu = null;

  /**
   * @param {import("./settings.js").Settings} settings @param {import("./notices.js").Notices} notices
   * @param {import("./storage.js").StorageView} storage @param {() => void} changed
   */
  constructor(settings, notices, storage, changed) {
    this.settings = settings;
    this.notices = notices;
    this.storage = storage;
    this.changed = changed;
    lm.on("status", (data) => this.#onStatus(data));
    lm.on("progress", (data) => this.#onProgress(data));
  }

  /** Whether what is chosen is what is loaded. */
  get current() {
    return this.loaded !== null && this.#choice === this.settings.choice;
  }

  get busy() {
    return this.loading !== null || this.generating;
  }

  /** Whose token ids the loaded model's are. */
  get vocabulary() {
    return this.loaded ? `${this.loaded.model} ${this.loaded.vocab}` : "";
  }

  get chosenName() {
    return this.settings.local ? this.settings.model : nameOf(this.settings.model);
  }

  /** Load what is chosen, unless it is loaded. Rejects with the engine's error. */
  async ensure() {
    if (this.loading) await this.loading;
    else if (!this.current) await this.load();
  }

  /** Load what is chosen. Rejects with the engine's error. */
  load() {
    const { model: name, local, choice } = this.settings;
    const title = this.chosenName;
    if (!name) {
      this.settings.focusModel();
      const message = local ? "Choose the folder of a model." : "Name a repository, or give an address.";
      return Promise.reject(Object.assign(new Error(message), { name: "OptionError" }));
    }
    this.notices.clear();
    show();
    this.loaded = null;
    this.loadingName = title;
    this.givenUp = false;
    showProgress(null);
    this.loading = lm
      .load(this.settings.loadOptions())
      .then((model) => {
        this.loaded = model;
        this.name = title;
        this.#choice = choice;
        show(...this.#origins(model));
        if (model.storage.reason) this.notices.notKept(model.storage.reason);
        // One that is not kept would start a download at the next visit. A folder has to be picked again.
        if (!local) this.settings.remember(model.storage.kept ? idOf(model) : null);
      })
      .finally(() => {
        this.loading = null;
        hideProgress();
        if (this.loaded === null) show();
        this.changed();
        this.storage.refresh();
      });
    this.changed();
    return this.loading;
  }

  /** Load what is chosen, and say so if it fails. */
  loadChosen = async () => {
    try {
      await this.load();
    } catch (error) {
      this.report(error, this.loadChosen);
    }
  };

  #loadStory = () => {
    this.settings.model = STORY.id;
    this.changed();
    return this.loadChosen();
  };

  /** Load the model of the last visit if it is still there; a visit alone starts no download. */
  async loadRemembered() {
    if (!(await this.storage.refresh()) || this.loading || this.loaded) return;
    const { model } = this.settings;
    if (this.storage.has(model)) return this.loadChosen();
    const download = known(model)?.download;
    const error = new Error(`${nameOf(model)} was deleted, or the browser cleared it. It can be downloaded again.`);
    error.name = "NotKeptError";
    say("No model is loaded", "idle");
    this.notices.problem(error, this.loadChosen, this.#toStory(), download ? `Download ${size(download)}` : "Download");
  }

  /** End what is going on. */
  stop = () => {
    if (!this.busy) return;
    this.givenUp = true;
    lm.stop().catch(() => {}); // an engine that cannot stop has already said why
  };

  /** Say what went wrong, unless it is what the user wanted. @param {unknown} error @param {() => void} retry */
  report(error, retry) {
    if (this.failed) return;
    if (error instanceof Error && error.name === "CancelledError") return say("Loading was cancelled", "idle");
    say("That did not work", "failed");
    const gated = error instanceof Error && error.name === "GatedError";
    const token = { label: "Enter a token", act: () => this.settings.askForToken() };
    this.notices.problem(error, retry, this.loaded ? null : gated ? token : this.#toStory());
  }

  /** What to offer when another model does not load. */
  #toStory() {
    const other = this.settings.local || this.settings.model !== STORY.id;
    return other ? { label: "Use the story model", act: this.#loadStory } : null;
  }

  /** Where a model came from, and how long that took. @param {Loaded} model */
  #origins({ downloaded, cached, seconds }) {
    return [
      ...(cached ? [`${size(cached)} from storage`] : []),
      ...(downloaded && this.name !== nameOf(STORY.id) ? [`${size(downloaded)} downloaded`] : []),
      `loaded in ${duration(1000 * seconds)}`,
    ];
  }

  /** @param {import("./lm.js").Status} status */
  #onStatus({ state, text, model }) {
    say(text, state);
    if (this.loading || state === "booting") return;
    // Someone else may have loaded or freed a model, through window.lm.
    if (model && JSON.stringify(model) !== JSON.stringify(this.loaded)) {
      this.settings.model = idOf(model);
      this.#choice = this.settings.choice;
      this.name = nameOf(model.model);
    }
    this.loaded = model;
    this.changed();
  }

  /** @param {import("./lm.js").Progress} data */
  #onProgress(data) {
    showProgress(data);
    const stored = data.cached > 0 && data.downloaded === 0;
    const doing = this.settings.local && this.loading ? "Reading" : stored ? "Reading from storage" : "Downloading";
    const name = this.loading ? this.loadingName : nameOf(data.model);
    say(`${doing} ${name}: ${size(data.loaded)} of ${size(data.total)}`, "loading");
    show(
      data.part,
      ...(data.cached && !stored ? [`${size(data.cached)} from storage`] : []),
      ...(data.speed ? [`${size(data.speed)}/s`] : []),
      ...(data.seconds_left ? [`${duration(1000 * Math.ceil(data.seconds_left))} left`] : []),
    );
  }
}
