// @ts-check
/** The page: one client of `lm` among others. Nothing here knows how a model works. */

import { lm } from "./lm.js";
import { Chat } from "./chat.js";
import { textOf, typed } from "./document.js";
import { asJson, copyText, save } from "./exporting.js";
import { say } from "./figures.js";
import { FolderPicker } from "./folder.js";
import { integer, parameters, size } from "./format.js";
import { STORY, known, markKept, needs } from "./models.js";
import { Notices } from "./notices.js";
import { keepOffline } from "./offline.js";
import { Outlook } from "./outlook.js";
import { read, savedDocument, write } from "./remember.js";
import { Session, idOf } from "./session.js";
import { Settings } from "./settings.js";
import { linkTo, sharedBy } from "./share.js";
import { closable, listen, named, shortcuts } from "./shortcuts.js";
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
// To make all of the page in one task would keep its thread busy for too long.
await new Promise((resolve) => setTimeout(resolve));
const chat = new Chat(session, settings, () => update());
const outlook = new Outlook(session, writing, settings);
new FolderPicker((folder) => {
  settings.folder = folder;
  update();
  if (!session.busy) session.loadChosen();
});

/** Whose ids of the text others were told. @type {import("./lm.js").Loaded|null} */
let announced = null;

/** Bring every control in line with what is going on. */
function update() {
  const { loaded, loading, generating, failed, busy, current } = session;
  document.body.dataset.engine = generating && !loading ? "generating" : loading ? "loading" : loaded ? "ready" : "none";

  if (generating) notices.sharedIsRead();
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
  markKept(/** @type {HTMLSelectElement} */ (element("model")), (id) => storage.has(id));
  outlook.changed();
  chat.update();
  const reader = chat.isOpen ? null : loaded;
  if (reader !== announced) {
    announced = reader;
    if (reader) writing.restSoon(); // the text has other ids now
  }
  if (loaded) settings.suit(loaded.chat);
  element("tab-name").textContent = loaded ? session.name : loading ? session.loadingName : "No model yet";
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
  const model = settings.local ? undefined : known(settings.model);
  if (!model) return "";
  const download = model === STORY ? "part of the page" : storage.has(model.id) ? "in storage" : `${size(model.download)} to download`;
  const limits = settings.loadOptions().backend === "numpy" ? null : (session.gpu?.limits ?? null);
  const need = deviceKnown ? `\nNeeds ${needs(model, settings.loadOptions().precision ?? "auto", limits)}` : "";
  return `${parameters(model.parameters)} parameters, ${download}${need}`;
}

function showDevice() {
  const device = element("device");
  const { loaded, gpu } = session;
  const wanted = settings.loadOptions().backend === "numpy" ? null : gpu;
  const backend = loaded?.backend ?? (wanted ? "webgpu" : "numpy");
  if (!loaded && !gpu && !deviceKnown) return;
  const name = [gpu?.vendor, gpu?.architecture].filter(Boolean).join(" ");
  device.dataset.backend = backend;
  device.textContent = backend === "webgpu" ? ["WebGPU", name].filter(Boolean).join(", ") : "NumPy on the CPU";
}
let deviceKnown = false;

async function copy() {
  await copyText(editor.text);
  element("copy-label").textContent = "Copied";
  setTimeout(() => {
    element("copy-label").textContent = "Copy";
  }, 2000);
}

/** Copy a link that writes the last continuation again; where that would not give this very text, one that holds it all. */
async function copyLink() {
  const { loaded } = session;
  const again = editor.repeatable(session.vocabulary);
  const take = again?.take;
  const { precision = settings.values.precision, ...asked } = take?.options ?? {};
  const { stop, ...rules } = /** @type {Record<string, any>} */ (asked);
  const link = await linkTo({
    model: settings.local || !loaded ? settings.model : idOf(loaded),
    settings: {
      ...settings.values,
      ...Object.fromEntries(Object.entries(rules).map(([name, value]) => [name, String(value)])),
      ...(take && { seed: String(take.seed), precision: String(loaded?.precision ?? precision) }),
    },
    pieces: again?.before ?? editor.snapshot.pieces,
  });
  await copyText(link);
  say("The link is copied: it holds the text, and no server sees that part of it", session.loaded ? "ready" : "idle");
}

/** Bring the text that the address holds. What was here can be undone. */
async function openShared() {
  const shared = await sharedBy(location.hash);
  if (!shared) return;
  history.replaceState(null, "", location.pathname + location.search);
  settings.apply(shared.settings);
  settings.model = shared.model;
  editor.open({ pieces: shared.pieces, generation: null, caret: textOf(shared.pieces).length });
  if (shared.settings.seed) notices.shared();
}

/** @param {string} ending */
const fileName = (ending) => `${editor.text.trim().slice(0, 30).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "text"}.${ending}`;

function compare() {
  if (writing.compare.isOpen) writing.compare.close();
  else if ((editor.generation?.takes.length ?? 0) > 1) writing.compare.open();
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
  "chat-stop": session.stop,
  cancel: session.stop,
  copy,
  regenerate: writing.regenerate,
  "previous-take": () => writing.flip(-1),
  "next-take": () => writing.flip(1),
  undo: () => editor.undo(),
  redo: () => editor.redo(),
  tokens: () => showTokens(!sheet.showsChips),
  "compare-open": compare,
  "copy-text": copy,
  "copy-link": copyLink,
  "save-text": () => save(editor.text, fileName("txt"), "text/plain"),
  "save-json": () => save(asJson(editor.snapshot, session.loaded), fileName("json"), "application/json"),
  help: () => help.showModal(),
};
const help = /** @type {HTMLDialogElement} */ (element("shortcuts"));
closable(help);
const menu = /** @type {HTMLDetailsElement} */ (element("menu"));
addEventListener("click", ({ target }) => {
  const summary = menu.querySelector("summary");
  if (target instanceof Node && !summary?.contains(target)) menu.open = false;
});
listen(
  shortcuts({
    generate: () => (chat.isOpen ? chat.send() : writing.generate()),
    regenerate: () => (chat.isOpen ? chat.again() : writing.regenerate()),
    stop: () => {
      if (menu.open) menu.open = false;
      else if (writing.card.isOpen) writing.card.close();
      else if (session.busy) session.stop();
      else if (writing.compare.isOpen) writing.compare.close();
    },
    previous: () => (chat.isOpen ? chat : writing).flip(-1),
    next: () => (chat.isOpen ? chat : writing).flip(1),
    compare,
    tokens: () => showTokens(!sheet.showsChips),
    link: copyLink,
    alternatives: () => writing.card.enter(),
    list: () => help.showModal(),
  }),
);
for (const [id, act] of Object.entries(CLICKS)) button(id).addEventListener("click", act);
element("model-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!button("load").disabled) session.loadChosen();
});
element("sampling-form").addEventListener("submit", (event) => {
  event.preventDefault();
  writing.generate();
});
sheet.area.addEventListener("keydown", (event) => {
  const command = event.ctrlKey || event.metaKey;
  const key = event.key.toLowerCase();
  if (command && !event.altKey && (key === "z" || key === "y")) {
    // The browser's own undo knows nothing of what the model wrote.
    event.preventDefault();
    if (key === "y" || event.shiftKey) editor.redo();
    else editor.undo();
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

function showOffline() {
  element("offline").hidden = false;
  document.body.dataset.offline = "";
}

async function start() {
  element("generate-key").textContent = named("Ctrl+↵").replace("+", " ");
  openDocument();
  await openShared();
  // Only the picker needs it, so nothing waits for it.
  const site = fetch(new URL("site.json", import.meta.url)).then((answer) => answer.json());
  site.then(({ models }) => settings.offer(models)).catch(() => {}); // the engine says what is wrong with the server
  showTokens(read(TOKENS_KEY) !== null);
  sheet.focus();
  if (settings.remembered && settings.model !== STORY.id) session.loadRemembered();
  else session.loadChosen();
  // What the page itself needs comes first.
  lm.ready.then(() => session.loading).finally(() => keepOffline({ kept: () => showOffline(), offer: (accept) => notices.update(accept) })).catch(() => {});
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

addEventListener("hashchange", async () => {
  if (await sharedBy(location.hash)) location.reload();
});
setTimeout(start); // in a task of its own, as above
