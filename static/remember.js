// @ts-check
/**
 * What the page keeps between visits, in localStorage; of texts each tab keeps its own, too, so that two tabs do not take
 * each other's away. Whatever is found there is checked before it is used.
 */

/** @typedef {import("./document.js").Piece} Piece */
/** @typedef {import("./document.js").Token} Token */
/** @typedef {import("./editor.js").State} State */

/** Tokens up to which their alternatives are kept: browsers give five million characters or so to a site. */
const MOST_DETAILED = 2500;

/** @param {string} key */
export function read(key) {
  try {
    return localStorage.getItem(key);
  } catch {
    return null; // storage is blocked: the page works without it
  }
}

/** @param {string} key @param {string|null} value null: forget it */
export function write(key, value) {
  try {
    if (value === null) localStorage.removeItem(key);
    else localStorage.setItem(key, value);
  } catch {
    // as above, or it is full
  }
}

/** What this tab kept last; in a new tab, what any tab did. @param {string} key */
export function readOwn(key) {
  try {
    return sessionStorage.getItem(key) ?? read(key);
  } catch {
    return read(key);
  }
}

/** For this tab, whatever others write meanwhile, and for the next new one. @param {string} key @param {string} value */
export function writeOwn(key, value) {
  write(key, value);
  try {
    sessionStorage.setItem(key, value);
  } catch {
    // as above
  }
}

/** @param {string|null} text @returns {any} */
export function parsed(text) {
  try {
    return JSON.parse(text ?? "null");
  } catch {
    return null;
  }
}

/** @param {number|null} logprob */
const short = (logprob) => (logprob === null ? null : Math.round(logprob * 1e4) / 1e4);

/**
 * Pieces as plain data: a string for what was typed, {model, tokens: [[id, text, logprob, top], …]} for the model's.
 * @param {import("./document.js").Pieces} pieces @param {boolean} details with probabilities
 */
export function packed(pieces, details = true) {
  return pieces.map(({ text, tokens, model }) => {
    if (!tokens) return text;
    /** @param {Token} token */
    const one = ({ id, text, logprob, top }) =>
      details
        ? [id, text, short(logprob), top.map((each) => [each.id, each.text, short(each.logprob)])]
        : [id, text];
    return { model, tokens: tokens.map(one) };
  });
}

/** @param {unknown} data @returns {Piece[]|null} null: that is no document */
export function unpacked(data) {
  if (!Array.isArray(data)) return null;
  /** @type {Piece[]} */
  const pieces = [];
  for (const one of data) {
    if (typeof one === "string") {
      pieces.push({ text: one, tokens: null, model: "" });
      continue;
    }
    if (typeof one?.model !== "string" || !Array.isArray(one.tokens)) return null;
    const tokens = one.tokens.map(token);
    if (!tokens.every(Boolean)) return null;
    pieces.push({ text: tokens.map((/** @type {Token} */ each) => each.text).join(""), tokens, model: one.model });
  }
  return pieces.filter((piece) => piece.text);
}

/** @param {unknown} data @returns {Token|null} */
function token(data) {
  if (!Array.isArray(data)) return null;
  const [id, text, logprob = null, top = []] = data;
  if (!candidate(data) || !Array.isArray(top) || !top.every(candidate)) return null;
  return { id, text, logprob, top: top.map(([id, text, logprob]) => ({ id, text, logprob })) };
}

/** @param {any} data */
const candidate = (data) =>
  Number.isSafeInteger(data?.[0]) && data[0] >= 0 && typeof data[1] === "string" && (data[2] == null || Number.isFinite(data[2]));

const KEY = "tabgpt.document";

/** @param {State} state */
export function saveDocument({ pieces, generation, caret }) {
  /** @param {boolean} details */
  const plain = (details) => ({
    caret,
    pieces: packed(pieces, details),
    ...(generation && {
      before: packed(generation.before, details),
      after: packed(generation.after, details),
      takes: generation.takes.map((take) => ({ ...take, pieces: packed(take.pieces, details) })),
      chosen: generation.chosen,
    }),
  });
  const all = [pieces, ...(generation?.takes ?? []).map((take) => take.pieces)].flat();
  const count = all.reduce((sum, piece) => sum + (piece.tokens?.length ?? 0), 0);
  writeOwn(KEY, JSON.stringify(plain(count <= MOST_DETAILED)));
}

/** @returns {State|null} */
export function savedDocument() {
  const data = parsed(readOwn(KEY));
  const pieces = unpacked(data?.pieces);
  if (!pieces) return null;
  const length = pieces.reduce((sum, piece) => sum + piece.text.length, 0);
  const caret = Number.isInteger(data.caret) ? Math.min(Math.max(data.caret, 0), length) : length;
  const [before, after] = [unpacked(data.before), unpacked(data.after)];
  const takes = Array.isArray(data.takes) ? data.takes.map(take) : [];
  const whole = before && after && takes.length && takes.every(Boolean) && Number.isInteger(data.chosen) && takes[data.chosen];
  return { pieces, caret, generation: whole ? { before, after, takes, chosen: data.chosen } : null };
}

/** @param {any} data @returns {import("./editor.js").Take|null} */
function take(data) {
  const pieces = unpacked(data?.pieces);
  if (!pieces || !Number.isSafeInteger(data.seed) || typeof data.finish !== "string") return null;
  return { pieces, seed: data.seed, finish: data.finish, options: { ...data.options }, ...(data.stale && { stale: true }) };
}
