// @ts-check
/** What the document holds, how it came to that, and the way back. Knows nothing of how it looks. */

import { cut, difference, generated, join, places, splice, textOf } from "./document.js";

/**
 * @typedef {import("./document.js").Pieces} Pieces
 * @typedef {import("./document.js").Token} Token
 * @typedef {{pieces: Pieces, seed: number, finish: string, options: Record<string, unknown>, stale?: boolean}} Take
 *   one continuation, and the options that it was asked for with; stale: the text before it was edited since
 * @typedef {{before: Pieces, after: Pieces, takes: readonly Take[], chosen: number}} Generation
 *   the last place where the model wrote, and all that it wrote there
 * @typedef {{pieces: Pieces, generation: Generation|null, caret: number}} State
 */

const MOST_STEPS = 300;
/** Typing without a pause this long is undone in one go. */
const PAUSE_MS = 900;

/** @param {Generation} generation @param {number} chosen @returns {State} */
function stateOf(generation, chosen) {
  const { before, after, takes } = generation;
  const pieces = join(before, takes[chosen].pieces);
  return { pieces: join(pieces, after), generation: { ...generation, chosen }, caret: textOf(pieces).length };
}

export class Editor {
  /** @type {State} */
  #state = { pieces: [], generation: null, caret: 0 };
  /** @type {State[]} */
  #past = [];
  /** @type {State[]} */
  #future = [];
  #lastTyped = { at: -Infinity, kind: "" };
  /** A generation under way. @type {{before: Pieces, after: Pieces, takes: readonly Take[], tokens: Token[]}|null} */
  #live = null;

  /** @param {() => void} changed called whenever the document is another one */
  constructor(changed) {
    this.changed = changed;
  }

  get pieces() {
    return this.#state.pieces;
  }

  get text() {
    return textOf(this.#state.pieces);
  }

  get generation() {
    return this.#state.generation;
  }

  get caret() {
    return this.#state.caret;
  }

  set caret(at) {
    this.#state = { ...this.#state, caret: at };
  }

  get live() {
    return this.#live;
  }

  get canUndo() {
    return this.#past.length > 0 && !this.#live;
  }

  get canRedo() {
    return this.#future.length > 0 && !this.#live;
  }

  /** What the model would read: the text before the caret. */
  get before() {
    return cut(this.pieces, this.caret)[0];
  }

  /** The document as it would be if a generation under way ended now. @returns {State} */
  get snapshot() {
    if (!this.#live) return this.#state;
    const { before, after, tokens } = this.#live;
    const pieces = join(before, generated(tokens, this.model), after);
    return { pieces, generation: null, caret: textOf(pieces).length };
  }

  /** Whose ids new tokens are. */
  model = "";

  /** Begin with this document; what was there can be brought back. @param {State} state */
  open(state) {
    this.#commit(state);
  }

  /** Begin with this document, as if it had always been there. @param {State} state */
  restore(state) {
    this.#state = state;
    this.changed();
  }

  /** The text is now this one, by the user's hand. @param {string} text @param {number} caret */
  type(text, caret) {
    const from = this.text;
    if (text === from) return;
    const edit = difference(from, text, caret);
    const pieces = splice(this.pieces, edit.start, edit.end, edit.text);
    const next = { pieces, generation: this.#edited(edit), caret };
    const kind = edit.text ? (edit.end > edit.start ? "replace" : "insert") : "delete";
    const now = performance.now();
    const joins = kind === this.#lastTyped.kind && now - this.#lastTyped.at < PAUSE_MS && !/\s\S/.test(edit.text);
    this.#lastTyped = { at: now, kind };
    if (!joins || !this.#past.length) return this.#commit(next);
    this.#state = next;
    this.#future = [];
    this.changed();
  }

  /** An edit beside the last continuation leaves its alternatives standing. @param {ReturnType<typeof difference>} edit */
  #edited({ start, end, text }) {
    const generation = this.generation;
    if (!generation) return null;
    const { before, after, takes, chosen } = generation;
    const head = textOf(before).length;
    const tail = head + textOf(takes[chosen].pieces).length;
    if (start >= tail) return { ...generation, after: splice(after, start - tail, end - tail, text) };
    const stale = takes.map((take) => ({ ...take, stale: true }));
    if (end <= head) return { ...generation, before: splice(before, start, end, text), takes: stale };
    return null;
  }

  /** The model is about to write at the caret. Returns what it reads. */
  begin() {
    const [before, after] = cut(this.pieces, this.caret);
    this.#live = { before, after, takes: [], tokens: [] };
    return this.#live;
  }

  /** It is about to write once more where it wrote last. */
  again() {
    const generation = this.generation;
    if (!generation) return null;
    const { before, after, takes } = generation;
    this.#live = { before, after, takes, tokens: [] };
    return this.#live;
  }

  /**
   * It is about to go on from another token than the one it chose. What the model wrote after that one goes; what was
   * typed after it stays. @param {number} index among `places` @param {import("./document.js").Candidate} candidate
   */
  branch(index, candidate) {
    const place = places(this.pieces)[index];
    const { tokens, model } = this.pieces[place.piece];
    if (!tokens) return null;
    const kept = generated(tokens.slice(0, place.index), model);
    const { top } = place.token;
    const token = { id: candidate.id, text: candidate.text, logprob: candidate.logprob, top };
    const rest = this.pieces.slice(place.piece + 1);
    const next = rest.findIndex((piece) => !piece.tokens);
    const before = join(this.pieces.slice(0, place.piece), kept, generated([token], model));
    this.#live = { before, after: next < 0 ? [] : rest.slice(next), takes: [], tokens: [] };
    return this.#live;
  }

  /** @param {{id: number|null, text: string, logprob: number|null, top: readonly import("./document.js").Candidate[]}} token */
  push({ id, text, logprob, top }) {
    const tokens = this.#live?.tokens;
    if (!tokens) return;
    const last = tokens.at(-1);
    if (id !== null) tokens.push({ id, text, logprob, top });
    else if (last) tokens[tokens.length - 1] = { ...last, text: last.text + text };
  }

  /** It has written. @param {Omit<Take, "pieces">} how @param {Pieces} [pieces] what, if that is known better */
  end(how, pieces = generated(this.#live?.tokens ?? [], this.model)) {
    if (!this.#live) return;
    const { before, after, takes } = this.#live;
    this.#live = null;
    if (pieces.length) {
      this.#lastTyped = { at: -Infinity, kind: "" };
      const all = [...takes, { ...how, pieces }];
      return this.#commit(stateOf({ before, after, takes: all, chosen: all.length - 1 }, all.length - 1));
    }
    const caret = textOf(before).length;
    const unchanged = takes.length > 0 || textOf(join(before, after)) === this.text;
    if (!unchanged) this.#commit({ pieces: join(before, after), generation: null, caret });
    else this.changed();
  }

  /**
   * The continuation that ends the text, if it follows what it was asked to follow and nobody's hand has changed it:
   * asking once more in the same way then gives the same text.
   * @param {string} model that would be asked
   */
  repeatable(model) {
    const { generation } = this;
    if (!generation || this.#live || generation.after.length) return null;
    const take = generation.takes[generation.chosen];
    const fits = !take.stale && take.finish !== "failed" && take.pieces[0]?.model === model;
    return fits ? { before: generation.before, take } : null;
  }

  /** Show another of the continuations. @param {number} chosen counts around */
  flip(chosen) {
    const { generation } = this;
    if (!generation || this.#live) return;
    const count = generation.takes.length;
    this.#commit(stateOf(generation, (chosen + count) % count));
  }

  undo() {
    const state = this.canUndo ? this.#past.pop() : null;
    if (!state) return;
    this.#future.push(this.#state);
    this.#go(state);
  }

  redo() {
    const state = this.canRedo ? this.#future.pop() : null;
    if (!state) return;
    this.#past.push(this.#state);
    this.#go(state);
  }

  /** @param {State} state */
  #commit(state) {
    this.#past = [...this.#past.slice(1 - MOST_STEPS), this.#state];
    this.#future = [];
    this.#state = state;
    this.changed();
  }

  /** @param {State} state */
  #go(state) {
    this.#lastTyped = { at: -Infinity, kind: "" };
    this.#state = state;
    this.changed();
  }
}
