// @ts-check
/** Lets the model write in the document: on, once more, from another token, several times over. */

import { lm } from "./lm.js";
import { TokenCard } from "./chips.js";
import { Compare } from "./compare.js";
import { rankIn } from "./distribution.js";
import { aligned, idsOf } from "./document.js";
import { Editor } from "./editor.js";
import { plural } from "./format.js";
import { Meter, outcome, say, show, showSeed } from "./figures.js";
import { saveDocument } from "./remember.js";
import { Sheet } from "./sheet.js";

/** @typedef {import("./document.js").Candidate} Candidate */
/** @typedef {import("./document.js").Pieces} Pieces */

/** Likeliest tokens that are asked for with each one that is written. */
const ALTERNATIVES = 10;
const SAVE_MS = 400;
/** A long text takes its time: saving it must not take more than a thirtieth of all. */
const SHARE = 30;
/** How long the text must have rested before others are told of it. */
const REST_MS = 500;

export class Writing {
  #meter = new Meter();
  #saving = 0;
  #pause = SAVE_MS;
  #resting = 0;
  #rested = 0;
  /** Ids of what was typed, for the vocabulary that they are of. */
  #encoded = { of: "", ids: /** @type {Map<string, Promise<number[]>>} */ (new Map()) };

  /**
   * @param {import("./session.js").Session} session @param {import("./settings.js").Settings} settings
   * @param {() => void} changed called whenever the document, or what is going on, has changed
   */
  constructor(session, settings, changed) {
    this.session = session;
    this.settings = settings;
    this.changed = changed;
    this.editor = new Editor(() => {
      this.#draw();
      const { generation } = this.editor;
      if (generation) showSeed(generation.takes[generation.chosen].seed);
      this.#saveSoon();
      this.restSoon();
      this.changed();
    });
    this.sheet = new Sheet({
      typed: (text, caret) => this.editor.type(text, caret),
      moved: (caret) => {
        if (caret === this.editor.caret) return;
        this.editor.caret = caret;
        this.card.atCaret();
        this.#saveSoon();
        this.changed();
      },
    });
    this.card = new TokenCard(this.sheet, this.editor, (index, candidate) => this.branch(index, candidate), (place) => this.#rank(place));
    this.compare = new Compare(this.editor, (chosen) => {
      this.compare.close();
      this.editor.flip(chosen);
      this.sheet.focus();
    });
    lm.on("token", (token) => {
      if (!this.editor.live) return; // someone else's generation, through window.lm
      this.editor.push(token);
      this.sheet.append({ ...token, id: token.id ?? 0 });
      if (token.id !== null) this.#meter.count();
      this.compare.drawSoon();
      this.#saveSoon();
    });
    for (const event of ["pagehide", "visibilitychange"]) addEventListener(event, () => this.#save());
  }

  /** Go on at the caret. */
  generate = () => this.#write(() => this.editor.begin(), this.generate);

  /** Write the last continuation anew; the others stay at hand. */
  regenerate = () => this.#write(() => this.editor.again(), this.regenerate, { anew: true, count: 1 });

  /** Go on from another token than the one that the model chose. @param {number} index @param {Candidate} candidate */
  branch(index, candidate) {
    return this.#write(() => this.editor.branch(index, candidate), this.generate, { count: 1 });
  }

  /** @param {number} by */
  flip(by) {
    const { generation } = this.editor;
    if (generation && !this.session.busy) this.editor.flip(generation.chosen + by);
  }

  /** Show each token on its own, or not. @param {boolean} shown */
  showChips(shown) {
    this.sheet.showsChips = shown;
    if (!shown) this.card.close();
    this.#draw();
  }

  /** The ids of a text as the loaded model reads it. @param {Pieces} pieces */
  ids(pieces) {
    const { vocabulary } = this.session;
    if (this.#encoded.of !== vocabulary) this.#encoded = { of: vocabulary, ids: new Map() };
    const { ids } = this.#encoded;
    return idsOf(pieces, vocabulary, (text) => {
      const known = ids.get(text) ?? lm.encode(text);
      if (ids.size > 200) ids.clear();
      ids.set(text, known);
      known.catch(() => ids.delete(text));
      return known;
    });
  }

  /**
   * @param {() => {before: Pieces, after: Pieces}|null} begin @param {() => void} retry
   * @param {{anew?: boolean, count?: number}} [how] anew: with another seed than before; count: of continuations
   */
  async #write(begin, retry, { anew = false, count = this.settings.count } = {}) {
    const { session, settings, editor, sheet } = this;
    if (session.generating || session.failed) return;
    session.generating = true;
    session.givenUp = false;
    session.notices.clear();
    this.card.close();
    show();
    this.changed();
    let end = { finish: "failed", seed: 0, options: {} };
    try {
      await session.ensure();
      if (session.givenUp) return;
      editor.model = session.vocabulary;
      let live = begin();
      if (!live) return;
      const ids = await this.ids(live.before);
      this.compare.expecting = count > 1;
      if (count > 1) this.compare.open();
      let written = 0;
      for (let take = 0; take < count && live; take += 1) {
        const asked = settings.generateOptions();
        const taken = anew || take ? this.#nextSeed(asked.seed) : asked.seed;
        const options = { ...asked, ...(taken !== undefined && { seed: taken }) };
        if (options.seed === undefined) delete options.seed;
        end = { ...end, options: { ...options, precision: session.loaded?.precision } };
        sheet.begin(live.before, live.after);
        this.changed();
        this.#meter.start();
        const result = await patiently(() => lm.complete({ ...options, ids, logprobs: this.#details(options) }));
        end = { ...end, finish: result.finish, seed: result.seed };
        const tokens = editor.live?.tokens ?? [];
        const pieces = options.stop ? await aligned(tokens, editor.model, (ids) => lm.decode(ids)) : undefined;
        sheet.end();
        editor.end(end, pieces);
        this.#meter.stop(result, (seed) => {
          settings.seed = seed;
        });
        written += result.ids.length;
        const all = take ? `, ${plural(written, "token")} in all ${take + 1}` : "";
        say(outcome(result, session.loaded?.context ?? 0, all), "ready");
        if (result.finish === "cancelled" || session.givenUp) break;
        live = take + 1 < count ? editor.again() : null;
      }
    } catch (error) {
      session.report(error, retry);
    } finally {
      session.generating = false;
      this.compare.expecting = false;
      sheet.end();
      editor.end(end);
      this.#draw();
      this.changed();
      if (count > 1 && nothingFocused() && !this.compare.focus()) this.sheet.focus();
    }
  }

  /** Another seed than those of the continuations that are there. @param {number|undefined} seed that is set, if one is */
  #nextSeed(seed) {
    if (seed === undefined) return undefined;
    const takes = this.editor.generation?.takes ?? [];
    return Math.max(seed, ...takes.map((take) => take.seed)) + 1;
  }

  /**
   * How many tokens the model held for likelier than one it wrote, and one; null: it has something else to do.
   * @param {import("./document.js").Place} place
   */
  async #rank({ piece, index, token }) {
    const { session, editor } = this;
    const { tokens, model } = editor.pieces[piece];
    if (!session.loaded || session.busy || !tokens || model !== session.vocabulary) return null;
    try {
      const ids = await this.ids([...editor.pieces.slice(0, piece), { text: "", tokens: tokens.slice(0, index), model }]);
      if (!ids.length || session.busy) return null;
      return rankIn(await lm.logits({ ids: ids.slice(-session.loaded.context) }), token.id);
    } catch {
      return null; // as good as busy
    }
  }

  /** The GPU's sampler names no likeliest tokens under a repetition penalty. @param {import("./lm.js").GenerateOptions} options */
  #details({ repetition_penalty: penalty = 1, sampler }) {
    return penalty === 1 || (sampler !== "gpu" && this.sheet.showsChips) ? ALTERNATIVES : true;
  }

  #draw() {
    if (!this.editor.live) this.sheet.draw(this.editor.pieces, this.editor.caret);
    this.compare?.draw();
  }

  #saveSoon() {
    this.#saving ||= setTimeout(() => this.#save(), this.#pause);
  }

  #save() {
    clearTimeout(this.#saving);
    this.#saving = 0;
    const start = performance.now();
    saveDocument(this.editor.snapshot);
    this.#pause = Math.max(SAVE_MS, SHARE * (performance.now() - start));
  }

  /** Tell others of the text once it has rested and the engine has nothing else to do. */
  restSoon() {
    clearTimeout(this.#resting);
    this.#resting = setTimeout(() => this.#rest(), REST_MS);
  }

  async #rest() {
    const { session, editor } = this;
    if (session.busy || !session.loaded || document.body.dataset.view === "chat") return;
    const turn = ++this.#rested;
    const { pieces, generation } = editor;
    try {
      const ids = await this.ids(pieces);
      const prompt = generation ? await this.ids(generation.before) : ids;
      if (turn !== this.#rested || session.busy) return;
      announce({ ids, text: editor.text, prompt_length: prompt.length });
    } catch {
      // Without ids there is nothing to look into; whoever writes next learns why.
    }
  }
}

/** Whether what had the focus is gone or hidden. */
const nothingFocused = () => document.activeElement === document.body || !document.activeElement?.checkVisibility();

/** Tell whoever looks inside what there is to look into. @param {{ids: number[], text: string, prompt_length: number}} detail */
export const announce = (detail) => document.dispatchEvent(new CustomEvent("document-changed", { detail }));

const PATIENCE_MS = 20_000;

/** Something small may be under way, such as a look at the next token or inside the model: wait until it is done. @template T @param {() => Promise<T>} act */
export async function patiently(act) {
  const until = performance.now() + PATIENCE_MS;
  while (true) {
    try {
      return await act();
    } catch (error) {
      const busy = error instanceof Error && error.name === "BusyError";
      if (!busy || performance.now() > until) throw error;
      await new Promise((resolve) => setTimeout(resolve, 40));
    }
  }
}
