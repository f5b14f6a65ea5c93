// @ts-check
/**
 * Colours for numbers: lightness rises (in the dark) or falls (in the light) from the paper's own all the way, so that
 * order shows without hue, to every eye. The hues are viridis's (van der Walt & Smith 2015).
 */

const VIRIDIS = ["#5ec962", "#21918c", "#3b528b", "#440154"];
const RAMPS = {
  light: ["#fdfcf9", "#d5e8a6", ...VIRIDIS],
  dark: ["#181c1f", "#34346b", "#31688e", "#21918c", "#5ec962", "#fde725"],
};
/** Below and above zero: blue and orange, which no usual colour blindness confuses. */
const SIGNED = { light: ["#17508f", "#fdfcf9", "#a34c06"], dark: ["#86b9f2", "#181c1f", "#f2a45c"] };
const STEPS = 256;

const scheme = matchMedia("(prefers-color-scheme: dark)");
/** @type {Record<string, Uint8ClampedArray>} */
const tables = {};

const theme = () => (scheme.matches ? "dark" : "light");

/** Call when light and dark change places. @param {() => void} listener @returns {() => void} */
export function onTheme(listener) {
  scheme.addEventListener("change", listener);
  return () => scheme.removeEventListener("change", listener);
}

/** @param {string[]} stops @returns {Uint8ClampedArray} rgb of STEPS colours */
function table(stops) {
  const points = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  const colours = new Uint8ClampedArray(3 * STEPS);
  for (let i = 0; i < STEPS; i++) {
    const place = (i / (STEPS - 1)) * (points.length - 1);
    const first = Math.min(points.length - 2, Math.floor(place));
    for (let c = 0; c < 3; c++) {
      colours[3 * i + c] = points[first][c] + (place - first) * (points[first + 1][c] - points[first][c]);
    }
  }
  return colours;
}

/** @param {"share"|"signed"} kind */
function current(kind) {
  const name = kind + theme();
  tables[name] ??= table(kind === "share" ? RAMPS[theme()] : SIGNED[theme()]);
  return tables[name];
}

/** Shares are shown by their square root: most of attention is small. @param {number} share from 0 to 1 */
const placeOf = (share) => (share <= 0 ? 0 : Math.round(Math.sqrt(Math.min(1, share)) * (STEPS - 1)));

/** Colours as pixels. @type {Record<string, Uint32Array>} */
const words = {};

/** A long text's map has a million pixels: a word is written for each, not four bytes. @param {"share"|"signed"} kind */
function wordsOf(kind) {
  const name = kind + theme();
  if (!words[name]) {
    const colours = current(kind);
    const bytes = new Uint8ClampedArray(4 * STEPS).fill(255);
    for (let i = 0; i < STEPS; i++) bytes.set(colours.subarray(3 * i, 3 * i + 3), 4 * i);
    words[name] = new Uint32Array(bytes.buffer);
  }
  return words[name];
}

/**
 * Fill an image with shares, a pixel each.
 * @param {CanvasRenderingContext2D} context @param {ArrayLike<number>} shares @param {number} width
 */
export function imageOf(context, shares, width) {
  const words = wordsOf("share");
  const image = context.createImageData(width, Math.max(1, shares.length / width));
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < shares.length; i++) pixels[i] = words[placeOf(shares[i])];
  return image;
}

/**
 * Numbers around zero, a pixel each; `most` is as strong as it gets.
 * @param {CanvasRenderingContext2D} context @param {ArrayLike<number>} values @param {number} most
 */
export function signedImage(context, values, most) {
  const words = wordsOf("signed");
  const image = context.createImageData(values.length, 1);
  const pixels = new Uint32Array(image.data.buffer);
  for (let i = 0; i < values.length; i++) {
    const scaled = Math.max(-1, Math.min(1, values[i] / (most || 1)));
    const strength = Math.sign(scaled) * Math.sqrt(Math.abs(scaled));
    pixels[i] = words[Math.round(((strength + 1) / 2) * (STEPS - 1))];
  }
  return image;
}

/** @param {number} share @returns {{background: string, ink: string}} with at least 4.5 to 1 between them */
export function tint(share) {
  const colours = current("share");
  const at = 3 * placeOf(share);
  const rgb = [colours[at], colours[at + 1], colours[at + 2]];
  const [r, g, b] = rgb.map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  return { background: `rgb(${rgb.join(" ")})`, ink: luminance > 0.179 ? "#000000" : "#ffffff" };
}

/** The ramp, for legends. @param {CanvasRenderingContext2D} context @param {number} width @param {number} height */
export function ramp(context, width, height) {
  for (let x = 0; x < width; x++) {
    context.fillStyle = tint((x / (width - 1)) ** 2).background;
    context.fillRect(x, 0, 1, height);
  }
}
