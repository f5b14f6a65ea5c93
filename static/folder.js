// @ts-check
/** A model's folder, picked or dropped: its files, read from the disk by the engine as it needs them. */

/** @typedef {{name: string, files: File[]}} Folder */

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** Deeper or more than a model's folder is somebody's home, dropped by mistake. */
const MAX_DEPTH = 3;
const MAX_FILES = 2000;

export class FolderPicker {
  #input = /** @type {HTMLInputElement} */ (element("folder"));

  /** @param {(folder: Folder) => void} chosen */
  constructor(chosen) {
    element("folder-choose").addEventListener("click", () => this.#input.click());
    this.#input.addEventListener("change", () => {
      const files = [...(this.#input.files ?? [])];
      chosen(modelIn(files.map((file) => ({ path: file.webkitRelativePath || file.name, file }))));
      this.#input.value = ""; // the same folder may be chosen again
    });

    // The whole page takes files, so that one that misses does not replace it. Dropped text is the sheet's own affair.
    addEventListener("dragover", (event) => {
      if (!carriesFiles(event)) return;
      event.preventDefault();
      element("landing").hidden = false;
    });
    addEventListener("dragleave", (event) => {
      if (event.relatedTarget === null) element("landing").hidden = true;
    });
    addEventListener("drop", async (event) => {
      if (!carriesFiles(event)) return;
      event.preventDefault();
      element("landing").hidden = true;
      const files = await dropped(/** @type {DataTransfer} */ (event.dataTransfer));
      chosen(modelIn(files));
    });
  }
}

/** @param {DragEvent} event */
const carriesFiles = (event) => event.dataTransfer?.types.includes("Files") ?? false;

/**
 * The files beside the first config.json; all of them if there is none, for the engine to say so.
 * @param {{path: string, file: File}[]} files
 * @returns {Folder}
 */
function modelIn(files) {
  const configs = files.map(({ path }) => path).filter((path) => /(^|\/)config\.json$/.test(path));
  configs.sort((one, other) => one.length - other.length);
  const [path] = [...configs, ...files.map((file) => file.path), ""];
  const folder = path.slice(0, path.lastIndexOf("/") + 1);
  const here = files.filter((file) => file.path.startsWith(folder) && !file.path.slice(folder.length).includes("/"));
  return { name: folder.split("/").at(-2) ?? "Files", files: (configs.length ? here : files).map(({ file }) => file) };
}

/** @param {DataTransfer} data */
async function dropped(data) {
  // All must be taken before the first await: the list is empty after the event.
  const taken = [...data.items].map((item) => ({ entry: item.webkitGetAsEntry(), file: item.getAsFile() }));
  /** @type {{path: string, file: File}[]} */
  const found = [];
  for (const { entry, file } of taken) {
    if (entry) await collect(entry, entry.name, MAX_DEPTH, found);
    else if (file) found.push({ path: file.name, file }); // from a script or another page, so not on the disk
  }
  return found;
}

/**
 * @param {FileSystemEntry} entry @param {string} path @param {number} depth
 * @param {{path: string, file: File}[]} found
 */
async function collect(entry, path, depth, found) {
  if (found.length >= MAX_FILES) return;
  if (entry.isFile) {
    const from = /** @type {FileSystemFileEntry} */ (entry);
    found.push({ path, file: await new Promise((resolve, reject) => from.file(resolve, reject)) });
  } else if (depth > 0) {
    const reader = /** @type {FileSystemDirectoryEntry} */ (entry).createReader();
    // It gives a hundred at a time, and none at the end.
    while (found.length < MAX_FILES) {
      /** @type {FileSystemEntry[]} */
      const entries = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
      if (!entries.length) break;
      for (const inner of entries) await collect(inner, `${path}/${inner.name}`, depth - 1, found);
    }
  }
}
