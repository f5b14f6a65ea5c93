// @ts-check
/**
 * The document: one text in pieces, some typed, some the model's. Values are replaced, never changed, so keeping old
 * ones for undo costs next to nothing.
 */

/**
 * @typedef {import("./lm.js").Candidate} Candidate
 * @typedef {{id: number, text: string, logprob: number|null, top: readonly Candidate[]}} Token
 *   `text` is empty while a character or a stop string was still going on; such tokens belong to the next one
 * @typedef {{text: string, tokens: readonly Token[]|null, model: string}} Piece
 *   tokens: null where the text was typed; model: whose ids they are
 * @typedef {readonly Piece[]} Pieces
 * @typedef {{piece: number, index: number, start: number, token: Token}} Place of a token; `start` counts characters
 */

/** @param {Pieces} pieces */
export const textOf = (pieces) => pieces.map((piece) => piece.text).join("");

/** @param {string} text @returns {Pieces} */
export const typed = (text) => (text ? [{ text, tokens: null, model: "" }] : []);

/**
 * What a generation came to as a piece. Tokens at its end that show nothing spelled a stop string, or began a
 * character: going on from them would repeat or garble it.
 * @param {readonly Token[]} tokens @param {string} model @returns {Pieces}
 */
export function generated(tokens, model) {
  const end = tokens.findLastIndex((token) => token.text !== "") + 1;
  const shown = tokens.slice(0, end);
  return end ? [{ text: shown.map((token) => token.text).join(""), tokens: shown, model }] : [];
}

/** Join what belongs together: typed text beside typed text. @param {Pieces[]} parts @returns {Pieces} */
export function join(...parts) {
  /** @type {Piece[]} */
  const pieces = [];
  for (const piece of parts.flat()) {
    const last = pieces.at(-1);
    if (last && !last.tokens && !piece.tokens) pieces[pieces.length - 1] = typed(last.text + piece.text)[0];
    else if (piece.text) pieces.push(piece);
  }
  return pieces;
}

/** Cut in two. A token that is cut is text from then on. @param {Pieces} pieces @param {number} at */
export function cut(pieces, at) {
  let start = 0;
  for (const [index, piece] of pieces.entries()) {
    const end = start + piece.text.length;
    if (at < end) {
      const [left, right] = cutPiece(piece, at - start);
      return [join(pieces.slice(0, index), left), join(right, pieces.slice(index + 1))];
    }
    start = end;
  }
  return [pieces, /** @type {Pieces} */ ([])];
}

/** @param {Piece} piece @param {number} at @returns {[Pieces, Pieces]} */
function cutPiece({ text, tokens, model }, at) {
  if (!tokens) return [typed(text.slice(0, at)), typed(text.slice(at))];
  let [whole, wholeEnd, end, broken] = [0, 0, 0, 0];
  for (const [index, token] of tokens.entries()) {
    end += token.text.length;
    broken = index;
    if (end > at) break;
    if (token.text) [whole, wholeEnd] = [index + 1, end];
  }
  const left = generated(tokens.slice(0, whole), model);
  if (wholeEnd === at) return [left, generated(tokens.slice(whole), model)];
  const rest = generated(tokens.slice(broken + 1), model);
  return [[...left, ...typed(text.slice(wholeEnd, at))], [...typed(text.slice(at, end)), ...rest]];
}

/** Replace the characters from `start` to `end`. @param {Pieces} pieces @param {number} start @param {number} end @param {string} text */
export function splice(pieces, start, end, text) {
  const [before] = cut(pieces, start);
  const [, after] = cut(pieces, end);
  return join(before, typed(text), after);
}

/**
 * What was typed: the change from one text to another. Where several would explain it, the caret decides.
 * @param {string} from @param {string} to @param {number} caret in `to`
 */
export function difference(from, to, caret) {
  const most = Math.min(from.length, to.length);
  let tail = 0;
  while (tail < Math.min(most, to.length - caret) && from.at(-1 - tail) === to.at(-1 - tail)) tail += 1;
  let head = 0;
  while (head < most - tail && from[head] === to[head]) head += 1;
  while (tail < most - head && from.at(-1 - tail) === to.at(-1 - tail)) tail += 1;
  return { start: head, end: from.length - tail, text: to.slice(head, to.length - tail) };
}

/** Every token that shows something, in order. @param {Pieces} pieces @returns {Place[]} */
export function places(pieces) {
  /** @type {Place[]} */
  const found = [];
  let start = 0;
  for (const [piece, { text, tokens }] of pieces.entries()) {
    let at = start;
    for (const [index, token] of (tokens ?? []).entries()) {
      if (token.text) found.push({ piece, index, start: at, token });
      at += token.text.length;
    }
    start += text.length;
  }
  return found;
}

/**
 * The ids of a text. What the model wrote keeps its own, so that the engine finds them in its cache; what was typed is
 * encoded. A word that the model began and that was finished by hand is read as one word.
 * @param {Pieces} pieces @param {string} model whose ids are wanted
 * @param {(text: string) => Promise<readonly number[]>} encode
 * @returns {Promise<number[]>}
 */
export async function idsOf(pieces, model, encode) {
  /** @type {(Token|string)[]} */
  const parts = [];
  for (const piece of pieces) {
    if (piece.tokens && piece.model === model) {
      parts.push(...piece.tokens);
      continue;
    }
    let text = piece.text;
    for (let last = parts.at(-1); last !== undefined; last = parts.at(-1)) {
      const before = typeof last === "string" ? last : last.text;
      if (typeof last !== "string" && !oneWord(before, text)) break;
      text = before + text;
      parts.pop();
    }
    parts.push(text);
  }
  const ids = await Promise.all(parts.map((part) => (typeof part === "string" ? encode(part) : [part.id])));
  return ids.flat();
}

/**
 * What a generation with stop strings came to. Text that might have been the beginning of one was held back and came
 * with a later token, and the last one may run on into the stop string: give each token its own text, and leave what is
 * only a part of one as typed.
 * @param {readonly Token[]} tokens @param {string} model @param {(ids: number[]) => Promise<string>} decode
 * @returns {Promise<Pieces>}
 */
export async function aligned(tokens, model, decode) {
  const text = tokens.map((token) => token.text).join("");
  /** @type {Token[]} */
  const whole = [];
  /** @type {Token[]} */
  let run = [];
  let at = 0;
  for (const token of tokens) {
    run.push(token);
    const own = await decode(run.map(({ id }) => id));
    if (own.endsWith("\ufffd")) continue; // a character is still going on
    if (!text.startsWith(own, at)) break;
    at += own.length;
    whole.push(...run.slice(0, -1).map((part) => ({ ...part, text: "" })), { ...token, text: own });
    run = [];
  }
  return [...generated(whole, model), ...typed(text.slice(at))];
}

/** @param {string} left @param {string} right */
const oneWord = (left, right) => left === "" || (/[\p{L}\p{N}]$/u.test(left) && /^[\p{L}\p{N}]/u.test(right));
