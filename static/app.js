// @ts-check
/** The page: one client of `lm` among others. Nothing here knows how a model works. */

import { lm } from "./lm.js";
import { duration, integer, parameters, plural, rate, size } from "./format.js";
import { STORY, known, nameOf } from "./models.js";
import { FolderPicker } from "./folder.js";
import { Notices } from "./notices.js";
import { Settings } from "./settings.js";
import { Sheet } from "./sheet.js";
import { StorageView } from "./storage.js";

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @param {string} id */
const button = (id) => /** @type {HTMLButtonElement} */ (document.getElementById(id));

const PROMPT_KEY = "tabgpt.prompt";
/** What the sheet holds at the first visit. */
const OPENING = "Once upon a time";

const status = element("status");
const figures = element("figures");
const progress = /** @type {HTMLProgressElement} */ (element("progress"));
const notices = new Notices();
/** @type {import("./lm.js").Loaded|null} */
let loaded = null;
/** The choice that `loaded` came from. */
let loadedWith = "";
/** Its name for people. */
let loadedName = "";
/** A load that is under way, and what it was asked for. @type {Promise<void>|null} */
let loading = null;
let generating = false;
/** Stop was pressed before the model was there. */
let given_up = false;
let failed = false;
/** @type {import("./lm.js").Gpu|null} */
let gpu = null;

const settings = new Settings(() => update());
const sheet = new Sheet(() => update());
const storage = new StorageView(() => update());
new FolderPicker((folder) => {
  settings.folder = folder;
  update();
  if (!loading && !generating) loadChosen();
});

/** @param {string} text @param {string} state */
function say(text, state) {
  status.dataset.state = state;
  if (status.textContent !== text) status.textContent = text;
}

/** What the page knows of the model that is chosen. */
const chosen = () => (settings.local ? undefined : known(settings.model));
const chosenName = () => (settings.local ? settings.model : nameOf(settings.model));
/** What loads this model again. @param {import("./lm.js").Loaded} model */
const idOf = ({ model, revision }) => (revision && revision !== "main" ? `${model}@${revision}` : model);

/** Bring every control in line with the state above. */
function update() {
  const busy = loading !== null || generating;
  const current = loaded !== null && loadedWith === settings.choice;
  document.body.dataset.engine = generating && !loading ? "generating" : loading ? "loading" : loaded ? "ready" : "none";

  button("generate").disabled = generating || failed;
  button("stop").disabled = !busy || failed;
  element("cancel").hidden = loading === null || failed;
  const continuation = sheet.continuation;
  element("continue").hidden = continuation === "" || generating;
  button("copy").disabled = sheet.prompt + continuation === "";

  const load = button("load");
  load.disabled = busy || failed || settings.model === "";
  const model = chosen();
  const wanted = model && model !== STORY ? `Load ${size(model.download)}` : "Load";
  const stored = !settings.local && storage.has(settings.model);
  load.textContent = loading ? "Loading" : stored ? "Load from storage" : wanted;
  load.hidden = current || (settings.local && settings.model === "");
  element("model-facts").textContent = facts(current ? loaded : null);
  element("tab-name").textContent = loaded ? loadedName : loading ? chosenName() : "No model yet";
}

/** @param {import("./lm.js").Loaded|null} model the one that is chosen, if it is loaded */
function facts(model) {
  if (model) {
    const memory = Object.values(model.memory).reduce((sum, bytes) => sum + bytes, 0);
    const where = model.backend === "webgpu" ? "on the GPU" : "in memory";
    const kept = model.storage.kept ? ", kept in storage" : "";
    return `${parameters(model.parameters)} parameters, ${model.precision}, context ${integer(model.context)}\n${size(memory)} ${where}${kept}`;
  }
  const { parameters: count, download } = chosen() ?? {};
  if (!count || !download) return "";
  return `${parameters(count)} parameters, ${size(download)}`;
}

/** Load what is chosen. Rejects with the engine's error. */
function load() {
  const { model: name, local, choice } = settings;
  const title = chosenName();
  if (!name) {
    settings.focusModel();
    const message = local ? "Choose the folder of a model." : "Name a repository, or give an address.";
    return Promise.reject(Object.assign(new Error(message), { name: "OptionError" }));
  }
  notices.clear();
  figures.replaceChildren();
  loaded = null;
  showProgress(null);
  loading = lm
    .load(settings.loadOptions())
    .then((model) => {
      loaded = model;
      loadedName = title;
      loadedWith = choice;
      showDevice();
      show(origins(model));
      if (model.storage.reason) notices.notKept(model.storage.reason);
      // One that is not kept would start a download at the next visit. A folder has to be picked again.
      if (!local) settings.remember(model.storage.kept ? idOf(model) : null);
    })
    .finally(() => {
      loading = null;
      progress.hidden = true;
      if (loaded === null) figures.replaceChildren();
      update();
      storage.refresh();
    });
  update();
  return loading;
}

async function loadChosen() {
  try {
    await load();
  } catch (error) {
    report(error, loadChosen);
  }
}

function loadStory() {
  settings.model = STORY.id;
  update();
  return loadChosen();
}

/** Load the model of the last visit if it is still there; a visit alone starts no download. */
async function loadRemembered() {
  if (!(await storage.refresh()) || loading || loaded) return;
  if (storage.has(settings.model)) return loadChosen();
  const download = known(settings.model)?.download;
  const error = new Error(`${nameOf(settings.model)} was deleted, or the browser cleared it. It can be downloaded again.`);
  error.name = "NotKeptError";
  say("No model is loaded", "idle");
  notices.problem(error, loadChosen, toStory(), download ? `Download ${size(download)}` : "Download");
}

/** What to offer when another model does not load. */
function toStory() {
  return settings.local || settings.model !== STORY.id ? { label: "Use the story model", act: loadStory } : null;
}

async function generate() {
  if (generating || failed) return;
  generating = true;
  given_up = false;
  notices.clear();
  figures.replaceChildren();
  try {
    sheet.begin();
    if (loading) await loading;
    else if (!loaded || loadedWith !== settings.choice) await load();
    if (given_up) return;
    update();
    meter.start();
    const result = await lm.complete(settings.generateOptions(sheet.prompt));
    meter.stop(result);
    say(outcome(result), "ready");
  } catch (error) {
    report(error, generate);
  } finally {
    generating = false;
    sheet.end();
    update();
  }
}

function stop() {
  if (!loading && !generating) return;
  given_up = true;
  lm.stop().catch(() => {}); // an engine that cannot stop has already said why
}

/** Say what went wrong, unless it is what the user wanted. @param {unknown} error @param {() => void} retry */
function report(error, retry) {
  if (failed) return;
  if (error instanceof Error && error.name === "CancelledError") return say("Loading was cancelled", "idle");
  say("That did not work", "failed");
  const gated = error instanceof Error && error.name === "GatedError";
  const token = { label: "Enter a token", act: () => settings.askForToken() };
  notices.problem(error, retry, loaded ? null : gated ? token : toStory());
}

/** @param {import("./lm.js").Completion} result */
function outcome({ finish, truncated, prompt_ids, ids }) {
  /** @type {Record<string, string>} */
  const ends = {
    length: `Wrote ${plural(ids.length, "token")}`,
    eos: ids.length ? `The model ended its text after ${plural(ids.length, "token")}` : "The model has nothing to add",
    stop: `Stopped at your stop text after ${plural(ids.length, "token")}`,
    cancelled: `Stopped after ${plural(ids.length, "token")}`,
    context: `The model's context of ${integer(loaded?.context ?? 0)} tokens is full`,
  };
  const cut = truncated ? ` The text was too long: the model read its last ${integer(prompt_ids.length)} tokens.` : "";
  return `${ends[finish]}.${cut}`;
}

/** Where a model came from, and how long that took. @param {import("./lm.js").Loaded} model */
function origins({ downloaded, cached, seconds }) {
  return [
    ...(cached ? [`${size(cached)} from storage`] : []),
    ...(downloaded && loadedName !== nameOf(STORY.id) ? [`${size(downloaded)} downloaded`] : []),
    `loaded in ${duration(1000 * seconds)}`,
  ];
}

/** @param {import("./lm.js").Progress|null} data */
function showProgress(data) {
  progress.hidden = false;
  if (!data?.total) return progress.removeAttribute("value");
  progress.max = data.total;
  progress.value = data.loaded;
}

/** Counts tokens as they come, and shows figures four times a second. */
const meter = {
  tokens: 0,
  first: 0,
  shown: 0,
  start() {
    this.tokens = this.first = this.shown = 0;
  },
  count() {
    const now = performance.now();
    this.tokens += 1;
    this.first ||= now;
    if (now - this.shown < 250 || this.tokens < 2) return;
    this.shown = now;
    show([plural(this.tokens, "token"), rate((1000 * (this.tokens - 1)) / (now - this.first))]);
  },
  /** @param {import("./lm.js").Completion} result */
  stop({ timings, seed }) {
    const { tokens_per_second: speed, first_token_ms: first } = timings;
    const keep = document.createElement("button");
    keep.type = "button";
    keep.className = "quiet";
    keep.textContent = `Seed ${seed}`;
    keep.title = "Keep this seed, to write the same again";
    keep.addEventListener("click", () => {
      settings.seed = seed;
    });
    show([
      ...(speed === null ? [] : [rate(speed)]),
      ...(first === null ? [] : [`first token in ${duration(first)}`]),
      keep,
    ]);
  },
};

/** @param {(string|HTMLElement)[]} items */
function show(items) {
  figures.replaceChildren(
    ...items.map((item) => {
      if (typeof item !== "string") return item;
      const span = document.createElement("span");
      span.textContent = item;
      return span;
    }),
  );
}

function showDevice() {
  const device = element("device");
  const backend = loaded?.backend ?? (gpu ? "webgpu" : "numpy");
  const name = [gpu?.vendor, gpu?.architecture].filter(Boolean).join(" ");
  device.dataset.backend = backend;
  device.textContent = backend === "webgpu" ? ["WebGPU", name].filter(Boolean).join(", ") : "NumPy on the CPU";
}

async function copy() {
  const text = sheet.prompt + sheet.continuation;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // No clipboard on an insecure page, or not allowed: the old way.
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "visually-hidden";
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  element("copy-label").textContent = "Copied";
  setTimeout(() => {
    element("copy-label").textContent = "Copy";
  }, 2000);
}

lm.on("status", ({ state, text, model }) => {
  say(text, state);
  if (loading || state === "booting") return;
  // Someone else may have loaded or freed a model, through window.lm.
  if (model && JSON.stringify(model) !== JSON.stringify(loaded)) {
    settings.model = idOf(model);
    loadedWith = settings.choice;
    loadedName = nameOf(model.model);
  }
  loaded = model;
  showDevice();
  update();
});
lm.on("progress", (data) => {
  showProgress(data);
  const stored = data.cached > 0 && data.downloaded === 0;
  const doing = settings.local && loading ? "Reading" : stored ? "Reading from storage" : "Downloading";
  const name = loading ? chosenName() : nameOf(data.model);
  say(`${doing} ${name}: ${size(data.loaded)} of ${size(data.total)}`, "loading");
  show([
    data.part,
    ...(data.cached && !stored ? [`${size(data.cached)} from storage`] : []),
    ...(data.speed ? [`${size(data.speed)}/s`] : []),
    ...(data.seconds_left ? [`${duration(1000 * Math.ceil(data.seconds_left))} left`] : []),
  ]);
});
lm.on("token", ({ id, text }) => {
  if (!generating) return; // someone else's generation, through window.lm
  sheet.append(text);
  if (id !== null) meter.count();
});

button("generate").addEventListener("click", generate);
button("stop").addEventListener("click", stop);
button("cancel").addEventListener("click", stop);
button("copy").addEventListener("click", copy);
button("continue").addEventListener("click", () => {
  sheet.keep();
  sheet.focus();
  generate();
});
element("model-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!button("load").disabled) loadChosen();
});
element("sampling-form").addEventListener("submit", (event) => {
  event.preventDefault();
  generate();
});
addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !event.isComposing) {
    event.preventDefault();
    generate();
  } else if (event.key === "Escape" && !event.isComposing) {
    stop();
  }
});
addEventListener("pagehide", () => {
  try {
    localStorage.setItem(PROMPT_KEY, sheet.prompt);
  } catch {
    // storage is blocked: the text is not remembered
  }
});

function firstPrompt() {
  const asked = new URLSearchParams(location.search).get("prompt");
  if (asked !== null) return asked;
  try {
    return localStorage.getItem(PROMPT_KEY) ?? OPENING;
  } catch {
    return OPENING;
  }
}

async function start() {
  if (/Mac|iPhone|iPad/.test(navigator.userAgent)) element("generate-key").textContent = "⌘ ↵";
  sheet.prompt = firstPrompt();
  sheet.focus();
  if (settings.remembered && settings.model !== STORY.id) loadRemembered();
  else loadChosen();
  try {
    const info = await lm.ready;
    gpu = info.gpu;
    showDevice();
    if (info.reason && settings.loadOptions().backend !== "numpy") notices.noWebGPU(info.reason);
  } catch (error) {
    failed = true;
    update();
    say("The engine stopped", "failed");
    notices.problem(error, () => location.reload());
  }
}

start();
