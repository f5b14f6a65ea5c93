// @ts-check
/** Elements in one expression, and what several views need. Text is always set as text. */

/**
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag @param {Record<string, any>} [props] attributes; `class`, `on…` handlers and `hidden` as one expects
 * @param {...(Node|string|null)} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function h(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** An icon of 20 by 20 in the page's style. @param {string} path */
export function icon(path) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

/** A token as people can see it: without the space that most begin with, and with a sign for what has no other. @param {string} text */
export const visible = (text) => (text.trim() ? text.replace(/^ /, "") : text.replaceAll(" ", "␣") || "∅").replaceAll("\n", "↵").replaceAll("\t", "⇥");

/** A token in quotes. @param {string} text */
export const quoted = (text) => `“${visible(text)}”`;

/** 42%, 3.1%, 0.04%. @param {number} share */
export function percent(share) {
  const value = 100 * share;
  if (value >= 99.95) return "100%";
  return value >= 10 ? `${value.toFixed(0)}%` : value >= 1 ? `${value.toFixed(1)}%` : value >= 0.005 ? `${value.toFixed(2)}%` : value > 0 ? "<0.01%" : "0%";
}

/**
 * Let the arrow keys move the focus within a group of elements of which one is in the tab order.
 * @param {HTMLElement} group @param {string} selector @param {(index: number, count: number, key: string) => number|null} move
 */
export function roving(group, selector, move) {
  const items = () => /** @type {HTMLElement[]} */ ([...group.querySelectorAll(selector)]);
  group.addEventListener("keydown", (event) => {
    const all = items();
    const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const next = event.key === "Home" ? 0 : event.key === "End" ? all.length - 1 : move(at, all.length, event.key);
    if (next === null) return;
    event.preventDefault();
    all[Math.max(0, Math.min(all.length - 1, next))].focus();
  });
  group.addEventListener("focusin", (event) => {
    for (const item of items()) item.tabIndex = item === event.target ? 0 : -1;
  });
}

/**
 * A canvas in the device's own pixels. @param {HTMLCanvasElement} canvas @param {number} width @param {number} height in CSS pixels
 * @returns {CanvasRenderingContext2D}
 */
export function paint(canvas, width, height) {
  const ratio = globalThis.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.inlineSize = `${width}px`;
  canvas.style.blockSize = `${height}px`;
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(canvas.width / width, canvas.height / height);
  return context;
}
