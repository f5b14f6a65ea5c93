// @ts-check
/** Numbers as people read them. */

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const digits3 = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** @param {number} n */
export const integer = (n) => whole.format(n);

/** 498 MB, 1.42 GB: decimal units, as download sizes are usually given. @param {number} bytes */
export function size(bytes) {
  if (bytes < 1e3) return `${whole.format(bytes)} B`;
  if (bytes < 1e6) return `${digits3.format(bytes / 1e3)} kB`;
  return bytes < 1e9 ? `${digits3.format(bytes / 1e6)} MB` : `${digits3.format(bytes / 1e9)} GB`;
}

/** 14M, 1.56B. @param {number} n */
export function parameters(n) {
  if (n < 1e6) return whole.format(n);
  return n < 1e9 ? `${whole.format(n / 1e6)}M` : `${digits3.format(n / 1e9)}B`;
}

/** @param {number} perSecond */
export const rate = (perSecond) => `${perSecond < 100 ? digits3.format(perSecond) : whole.format(perSecond)} tokens/s`;

/** @param {number} ms */
export function duration(ms) {
  if (ms < 1000) return `${whole.format(ms)} ms`;
  return ms < 120_000 ? `${digits3.format(ms / 1000)} s` : `${whole.format(ms / 60_000)} min`;
}

/** @param {number} n @param {string} noun */
export const plural = (n, noun) => `${whole.format(n)} ${noun}${n === 1 ? "" : "s"}`;
