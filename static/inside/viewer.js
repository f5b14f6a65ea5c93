// @ts-check
/** Shows a source file of tabgpt, read-only: its comment, then the text, at the place that matters. */

import { h, icon } from "./dom.js";

/** @typedef {{path: string, find?: string}} Place a file, and the beginning of the line to show */

const ROOT = new URL("../", import.meta.url);

/** Where the site has a file. @param {string} path */
const address = (path) => new URL(path.endsWith(".wgsl") ? path : `source/${path}`, ROOT);

/** The comment at a file's beginning, without its signs. @param {string} text @param {string} path */
export function comment(text, path) {
  if (path.endsWith(".py")) return /^"""([\s\S]*?)"""/.exec(text)?.[1].trim() ?? "";
  const lines = text.split("\n");
  const end = lines.findIndex((line) => !line.startsWith("//"));
  return lines.slice(0, end < 0 ? lines.length : end).map((line) => line.replace(/^\/\/ ?/, "")).join("\n");
}

/**
 * The lines [first, stop) of what begins with `find`: as far as they are indented deeper, or to the closing brace.
 * @param {string[]} lines @param {string} find
 */
export function extent(lines, find) {
  const first = lines.findIndex((line) => line.trimStart().startsWith(find));
  if (first < 0) return [0, 0];
  const indent = lines[first].length - lines[first].trimStart().length;
  let stop = first + 1;
  // A signature may go on over several lines, and ends with a bracket as deep as its beginning.
  while (stop < lines.length) {
    const line = lines[stop];
    const depth = line.length - line.trimStart().length;
    if (line.trim() && depth <= indent && !/^[)}\]]/.test(line.trimStart())) break;
    stop += 1;
    if (line.trimStart() === "}" && depth === indent) break;
  }
  while (stop > first + 1 && !lines[stop - 1].trim()) stop -= 1;
  return [first, stop];
}

export class Viewer {
  constructor() {
    this.title = h("h2", { id: "in-viewer-title" });
    this.about = h("p", { class: "in-comment" });
    this.code = h("pre", { class: "in-code", tabindex: 0, role: "region", "aria-label": "Source, read-only" });
    const close = h("button", { type: "button", class: "button ghost small", "aria-label": "Close", onclick: () => this.element.close() }, icon("M5 5l10 10M15 5L5 15"));
    this.element = h("dialog", { class: "dialog in-viewer", "aria-labelledby": "in-viewer-title" },
      h("div", { class: "dialog-head" }, this.title, close), h("div", { class: "in-viewer-body" }, this.about, this.code));
    this.element.addEventListener("click", (event) => event.target === this.element && this.element.close());
  }

  /** @param {Place} place */
  async show({ path, find }) {
    this.title.textContent = path;
    this.about.textContent = "";
    this.code.textContent = "Reading…";
    this.element.showModal();
    try {
      const answer = await fetch(address(path));
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const text = await answer.text();
      this.about.textContent = comment(text, path);
      const lines = text.split("\n");
      const [first, stop] = find ? extent(lines, find) : [0, 0];
      const marked = h("mark", {}, lines.slice(first, stop).join("\n"));
      if (stop) {
        this.code.replaceChildren(first ? `${lines.slice(0, first).join("\n")}\n` : "", marked, `\n${lines.slice(stop).join("\n")}`);
        marked.scrollIntoView({ block: "start" });
      } else {
        this.code.textContent = text;
      }
    } catch (error) {
      this.code.textContent = `${path} could not be read: ${error instanceof Error ? error.message : error}`;
    }
  }

  /** A button that opens a place. @param {Place} place */
  link(place) {
    const name = place.path.replace(/^app\/engine\//, "");
    const what = place.find ? `${name}: ${place.find.replace(/^(async )?(def|fn) /, "").replace(/\($/, "")}` : name;
    return h("button", { type: "button", class: "in-source", onclick: () => this.show(place) }, icon("M7 5l-4 5 4 5M13 5l4 5-4 5"), what);
  }
}
