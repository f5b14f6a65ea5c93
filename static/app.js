// @ts-check
/** The page: one client of `lm` among others. Nothing here knows how a model works. */

import { lm } from "./lm.js";
import { typed } from "./document.js";
import { say } from "./figures.js";
import { FolderPicker } from "./folder.js";
import { integer, parameters, size } from "./format.js";
import { STORY, known } from "./models.js";
import { Notices } from "./notices.js";
import { read, savedDocument, write } from "./remember.js";
import { Session } from "./session.js";
import { Settings } from "./settings.js";
import { StorageView } from "./storage.js";
import { Writing } from "./writing.js";

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));
/** @param {string} id */
const button = (id) => /** @type {HTMLButtonElement} */ (document.getElementById(id));

const TOKENS_KEY = "tabgpt.tokens";
/** What the sheet holds at the first visit. */
const OPENING = "Once upon a time";

const notices = new Notices();
const settings = new Settings(() => update());
const storage = new StorageView(() => update());
const session = new Session(settings, notices, storage, () => update());
const writing = new Writing(session, settings, () => update());
const { editor, sheet } = writing;
new FolderPicker((folder) => {
  settings.folder = folder;
  update();
  if (!session.busy) session.loadChosen();
});

/** Bring every control in line with what is going on. */
function update() {
  const { loaded, loading, generating, failed, busy, current } = session;
  document.body.dataset.engine = generating && !loading ? "generating" : loading ? "loading" : loaded ? "ready" : "none";

  button("generate").hidden = generating;
  button("generate").disabled = failed;
  button("stop").hidden = !generating;
  element("cancel").hidden = loading === null || generating || failed;
  element("generate-label").textContent = nameOfGenerating();
  updateTakes();
  button("undo").disabled = !editor.canUndo;
  button("redo").disabled = !editor.canRedo;
  button("copy").disabled = editor.text === "" && !editor.live;

  const load = button("load");
  load.disabled = busy || failed || settings.model === "";
  const model = settings.local ? undefined : known(settings.model);
  const wanted = model && model !== STORY ? `Load ${size(model.download)}` : "Load";
  const stored = !settings.local && storage.has(settings.model);
  load.textContent = loading ? "Loading" : stored ? "Load from storage" : wanted;
  load.hidden = current || (settings.local && settings.model === "");
  element("model-facts").textContent = facts();
  element("tab-name").textContent = loaded ? session.name : loading ? session.chosenName : "No model yet";
  showDevice();
}

/** What the button will do. */
function nameOfGenerating() {
  const after = editor.caret < editor.text.length;
  if (after) return "Write here";
  return editor.pieces.at(-1)?.tokens ? "Continue" : "Generate";
}

function updateTakes() {
  const { generation } = editor;
  const busy = session.busy || session.failed;
  button("regenerate").hidden = !generation;
  button("regenerate").disabled = busy;
  const count = generation?.takes.length ?? 0;
  element("takes").hidden = count < 2;
  if (!generation || count < 2) return;
  element("take").textContent = `${generation.chosen + 1}/${count}`;
  for (const id of ["previous-take", "next-take"]) button(id).disabled = busy;
}

function facts() {
  if (session.current && session.loaded) {
    const { memory: held, backend, storage: kept, ...model } = session.loaded;
    const memory = Object.values(held).reduce((sum, bytes) => sum + bytes, 0);
    const where = backend === "webgpu" ? "on the GPU" : "in memory";
    return `${parameters(model.parameters)} parameters, ${model.precision}, context ${integer(model.context)}\n${size(memory)} ${where}${kept.kept ? ", kept in storage" : ""}`;
  }
  const { parameters: count, download } = (settings.local ? undefined : known(settings.model)) ?? {};
  if (!count || !download) return "";
  return `${parameters(count)} parameters, ${size(download)}`;
}

function showDevice() {
  const device = element("device");
  const { loaded, gpu } = session;
  const backend = loaded?.backend ?? (gpu ? "webgpu" : "numpy");
  if (!loaded && !gpu && !deviceKnown) return;
  const name = [gpu?.vendor, gpu?.architecture].filter(Boolean).join(" ");
  device.dataset.backend = backend;
  device.textContent = backend === "webgpu" ? ["WebGPU", name].filter(Boolean).join(", ") : "NumPy on the CPU";
}
let deviceKnown = false;

/** @param {string} text */
async function copyText(text) {
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
}

async function copy() {
  await copyText(editor.text);
  element("copy-label").textContent = "Copied";
  setTimeout(() => {
    element("copy-label").textContent = "Copy";
  }, 2000);
}

/** @param {boolean} shown */
function showTokens(shown) {
  button("tokens").setAttribute("aria-pressed", String(shown));
  element("legend").hidden = !shown;
  writing.showChips(shown);
  write(TOKENS_KEY, shown ? "shown" : null);
}

/** @type {Record<string, () => void>} */
const CLICKS = {
  generate: writing.generate,
  stop: session.stop,
  cancel: session.stop,
  copy,
  regenerate: writing.regenerate,
  "previous-take": () => writing.flip(-1),
  "next-take": () => writing.flip(1),
  undo: () => editor.undo(),
  redo: () => editor.redo(),
  tokens: () => showTokens(!sheet.showsChips),
};
for (const [id, act] of Object.entries(CLICKS)) button(id).addEventListener("click", act);
element("model-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!button("load").disabled) session.loadChosen();
});
element("sampling-form").addEventListener("submit", (event) => {
  event.preventDefault();
  writing.generate();
});
addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  const command = event.ctrlKey || event.metaKey;
  if (event.key === "Enter" && command) {
    event.preventDefault();
    if (event.shiftKey) writing.regenerate();
    else writing.generate();
  } else if (event.key === "Escape") {
    if (writing.card.isOpen) writing.card.close();
    else session.stop();
  }
});
sheet.area.addEventListener("keydown", (event) => {
  const command = event.ctrlKey || event.metaKey;
  const key = event.key.toLowerCase();
  if (command && !event.altKey && (key === "z" || key === "y")) {
    // The browser's own undo knows nothing of what the model wrote.
    event.preventDefault();
    if (key === "y" || event.shiftKey) editor.redo();
    else editor.undo();
  } else if (event.altKey && event.key === "ArrowDown" && writing.card.isOpen) {
    if (writing.card.enter()) event.preventDefault();
  }
});
sheet.area.addEventListener("beforeinput", (event) => {
  if (event.inputType === "historyUndo" || event.inputType === "historyRedo") {
    event.preventDefault();
    if (event.inputType === "historyUndo") editor.undo();
    else editor.redo();
  }
});

function openDocument() {
  const asked = new URLSearchParams(location.search).get("prompt");
  const saved = savedDocument();
  if (saved) editor.restore(saved);
  else if (asked === null) editor.restore({ pieces: typed(OPENING), generation: null, caret: OPENING.length });
  // What an address brings can be undone: the text that was here is not lost.
  if (asked !== null && asked !== editor.text) editor.open({ pieces: typed(asked), generation: null, caret: asked.length });
}

async function start() {
  if (/Mac|iPhone|iPad/.test(navigator.userAgent)) element("generate-key").textContent = "⌘ ↵";
  openDocument();
  showTokens(read(TOKENS_KEY) !== null);
  sheet.focus();
  if (settings.remembered && settings.model !== STORY.id) session.loadRemembered();
  else session.loadChosen();
  try {
    const info = await lm.ready;
    session.gpu = info.gpu;
    deviceKnown = true;
    showDevice();
    if (info.reason && settings.loadOptions().backend !== "numpy") notices.noWebGPU(info.reason);
  } catch (error) {
    session.failed = true;
    update();
    say("The engine stopped", "failed");
    notices.problem(error, () => location.reload());
  }
}

start();
