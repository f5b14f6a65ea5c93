// @ts-check
/** Numbers as people read them. Without Intl: to make its formats takes 50 ms of the page's start. */

/** 50,257. @param {number} n */
export const integer = (n) => String(Math.round(n)).replace(/\B(?=(?:\d{3})+$)/g, ",");

/** 1.42, 498, 0.5: three digits that count. @param {number} n */
function digits3(n) {
  const rounded = Number(n.toPrecision(3));
  return rounded < 1000 ? String(rounded) : integer(rounded);
}

/** 498 MB, 1.42 GB: decimal units, as download sizes are usually given. @param {number} bytes */
export function size(bytes) {
  if (bytes < 1e3) return `${integer(bytes)} B`;
  if (bytes < 1e6) return `${digits3(bytes / 1e3)} kB`;
  return bytes < 1e9 ? `${digits3(bytes / 1e6)} MB` : `${digits3(bytes / 1e9)} GB`;
}

/** 14M, 1.56B. @param {number} n */
export function parameters(n) {
  if (n < 1e6) return integer(n);
  return n < 1e9 ? `${integer(n / 1e6)}M` : `${digits3(n / 1e9)}B`;
}

/** @param {number} perSecond */
export const rate = (perSecond) => `${perSecond < 100 ? digits3(perSecond) : integer(perSecond)} tokens/s`;

/** @param {number} ms */
export function duration(ms) {
  if (ms < 1000) return `${integer(ms)} ms`;
  return ms < 120_000 ? `${digits3(ms / 1000)} s` : `${integer(ms / 60_000)} min`;
}

/** @param {number} n @param {string} noun */
export const plural = (n, noun) => `${integer(n)} ${noun}${n === 1 ? "" : "s"}`;
