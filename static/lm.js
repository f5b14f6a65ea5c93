// @ts-check
/**
 * `window.lm`: the page's own API, and the only thing in the page that knows the worker.
 *
 * The page posts {id, method, args}; the worker answers {id, result} or {id, error}, and reports {event, data} in
 * between. The UI thread never waits for Python.
 */

/**
 * @typedef {{name: string, message: string}} Failure
 * @typedef {{vendor: string, architecture: string, features: string[], limits: Record<string, number>}} Gpu
 * @typedef {{pyodide: string, python: string, backend: "webgpu"|"numpy", gpu: Gpu|null, reason: string|null}} Ready
 *
 * @typedef {object} LoadOptions
 * @property {string} [model] "story", "owner/name[@revision]", or the URL of a folder with the model's files
 * @property {"auto"|"f32"|"f16"|"q8"|"q4"} [precision]
 * @property {string} [hub] base URL of the hub, or several with commas between: the first that answers is used
 * @property {string} [token] access token for gated and private repositories; only the hub's own origin gets to see it
 * @property {File[]} [files] of a folder with a model, picked or dropped, instead of `model`; read from the disk as needed
 * @property {"auto"|"webgpu"|"numpy"} [backend]
 * @property {number} [context] tokens that the model can look back on; by default all that it was made for, up to 4,096
 * @property {string} [tuning] of the kernels: "auto" tries a few and remembers the best, "default", or "name=number, …"
 * @property {"adapter"|"default"} [limits] which WebGPU limits to work within
 * @property {"auto"|"off"} [cache] whether to keep what is downloaded, and to use what is kept
 *
 * @typedef {object} Loaded
 * @property {string} model
 * @property {string|null} revision
 * @property {string|null} commit what the revision stood for
 * @property {string} family
 * @property {number} parameters
 * @property {"f32"|"f16"|"q8"|"q4"} precision
 * @property {"webgpu"|"numpy"} backend
 * @property {boolean} chat whether it has a chat template that can be used, so that `messages` work
 * @property {number} context
 * @property {number} vocab
 * @property {number} downloaded bytes that came over the network
 * @property {number} cached bytes that came from the browser's storage
 * @property {{kept: boolean, reason: string|null}} storage whether it is kept for next time, and why not
 * @property {number} seconds
 * @property {Record<string, number>} memory bytes by purpose
 * @property {{before: number, after: number}} heap bytes of Python's wasm memory, which never shrinks
 * @property {{files: number, gpu: number|null}} peaks most bytes held at once: of the files (outside of Python), on the GPU
 *
 * @typedef {object} GenerateOptions
 * @property {string} [prompt]
 * @property {number[]} [ids]
 * @property {{role: string, content: string}[]} [messages] a conversation to answer, instead of `prompt`: for models with a chat template
 * @property {number} [max_new_tokens]
 * @property {number} [temperature]
 * @property {number} [top_k]
 * @property {number} [top_p]
 * @property {number} [min_p]
 * @property {number} [repetition_penalty]
 * @property {number} [seed]
 * @property {string|string[]} [stop]
 * @property {boolean|number} [logprobs]
 * @property {"auto"|"gpu"|"python"} [sampler] where tokens are chosen; "auto": on the GPU where it can
 * @property {"end"|"slide"} [on_full] when the context is full: end, or go on from the text's last half context
 * @property {number} [depth] tokens that the GPU computes ahead; missing: as many as keep it busy
 * @property {boolean|{lens?: number}} [inspect] show with each token what the model looked like; it then goes token by
 *   token. Missing: if somebody listens for "inside"
 *
 * @typedef {{id: number, text: string, logprob: number}} Candidate
 * @typedef {{text: string, id: number|null, logprob: number|null, top: Candidate[], inside?: Inside}} Token
 *
 * @typedef {object} Inside what the model looked like that chose a token
 * @property {number} position of the last token that it had read
 * @property {Float32Array} attention [layers, heads, position + 1]: how that token attends to each
 * @property {Float32Array} norms [layers + 1] length of its residual stream, before the first layer and after each
 * @property {Float32Array} cosines [layers + 1] to the final one
 * @property {Float32Array} strip [layers + 1, n_embd] that stream itself
 * @property {Candidate[][]} lens [layers + 1] the likeliest tokens if the model ended there; empty unless asked for
 *
 * @typedef {object} InspectOptions
 * @property {string} [prompt]
 * @property {number[]} [ids] instead of `prompt`
 * @property {boolean|{layers?: number[], heads?: number[]}} [attention] whole maps, of all or of some
 * @property {boolean|number} [overview] small maps of all layers and heads, of so many cells a side
 * @property {boolean} [layers] the residual stream's norms and cosines, and one token's whole stream
 * @property {number} [lens] so many of the likeliest tokens after each layer
 * @property {number} [detail] a layer whose work on one token is shown
 * @property {number} [position] of that token, and for `layers` and `lens`; missing: the last
 * @property {boolean} [release] give back the memory that looking took, instead
 *
 * @typedef {object} Inspection
 * @property {number[]} ids
 * @property {{id: number, text: string}[]} tokens
 * @property {number} n tokens
 * @property {number} position
 * @property {number} n_layer
 * @property {number} n_head
 * @property {number} n_kv_head
 * @property {string} source the file that has the model
 * @property {{layers: number[], heads: number[], maps: Float32Array}} [attention] maps [layers, heads, n, n]
 * @property {{cells: number, cell: number, maps: Float32Array}} [overview] maps [n_layer, n_head, cells, cells]
 * @property {{norms: Float32Array, cosines: Float32Array, strip: Float32Array}} [layers] [n_layer + 1, n] twice, then
 *   [n_layer + 1, n_embd]
 * @property {{id: number, text: string, probability: number}[][]} [lens] [n_layer + 1]
 * @property {{layer: number, embedding: Float32Array, q: Float32Array, k: Float32Array, v: Float32Array,
 *             attention: Float32Array, attended: Float32Array, hidden: Float32Array, out: Float32Array}} [detail]
 *
 * @typedef {object} Phase of `profile`: milliseconds, of a whole prompt or of one token
 * @property {number} tokens
 * @property {number} ms by the clock
 * @property {number} python_ms
 * @property {number} submit_ms recording and submitting commands
 * @property {number} waiting_ms
 * @property {number|null} gpu_ms how long the GPU was busy; null without timestamps
 * @property {Record<string, number>|null} kernels_ms
 * @property {number|null} dispatches
 * @property {"gpu"|"cpu"|null} bound
 * @property {number} [weight_bytes]
 * @property {number} [cache_bytes]
 * @property {number} [gb_per_second]
 *
 * @typedef {{model: string, parameters: number, precision: string, backend: string, prefill: Phase, decode: Phase,
 *            memory: Record<string, number>}} Profile
 *
 * @typedef {object} Timings
 * @property {number} prompt_tokens
 * @property {number} new_tokens
 * @property {number|null} prefill_ms
 * @property {number|null} first_token_ms
 * @property {number} decode_ms
 * @property {number|null} tokens_per_second
 * @property {number} reused how many of the prompt's tokens the cache held already
 *
 * @typedef {object} Completion
 * @property {string} text
 * @property {number[]} ids
 * @property {number[]} prompt_ids
 * @property {"length"|"eos"|"stop"|"cancelled"|"context"} finish
 * @property {boolean} truncated
 * @property {number} seed
 * @property {number[]|null} logprobs
 * @property {Candidate[][]|null} top
 * @property {Timings} timings
 *
 * @typedef {object} Status
 * @property {"booting"|"idle"|"loading"|"compiling"|"ready"|"generating"|"failed"} state
 * @property {string} text
 * @property {Loaded|null} model what is loaded
 *
 * @typedef {object} Progress
 * @property {string} model
 * @property {number} loaded bytes so far, from wherever
 * @property {number} total bytes in all
 * @property {string} tensor that is coming
 * @property {string} part of the model that it belongs to, in words
 * @property {number} downloaded bytes that came over the network
 * @property {number} cached bytes that came from the browser's storage
 * @property {number|null} speed bytes a second over the network
 * @property {number|null} seconds_left
 *
 * @typedef {object} Storage what the browser keeps for this page
 * @property {{model: string, revision: string|null, bytes: number, complete: boolean}[]} models
 * @property {number|null} usage bytes
 * @property {number|null} quota bytes
 * @property {boolean|null} persisted whether the browser promised not to clear it by itself
 * @property {string|null} reason why nothing, or nothing more, can be kept
 *
 * @typedef {{status: Status, progress: Progress, token: Token & {call: number}, error: Failure,
 *            inside: Inside & {call: number, id: number|null, text: string}}} Events
 */

/**
 * @param {Failure} failure
 * @returns {Error}
 */
function toError({ name, message }) {
  const error = new Error(message);
  error.name = name;
  return error;
}

/** How often the worker is asked whether it is still there. */
const BEAT_MS = 2000;
/**
 * Beats that may stay unanswered: two minutes, since NumPy takes half a minute for a chunk of a large model. They are
 * counted only while the page's own timers run, so a laptop that slept does not take its engine for dead.
 */
const MISSED_BEATS = 60;
/** How often in ten minutes a worker that broke is started again. */
const MAX_RESTARTS = 3;
const TEN_MINUTES = 600_000;

class LanguageModel {
  /** @type {URL} */
  #url;
  /** @type {Worker} */
  #worker;
  #lastId = 0;
  /** @type {Map<number, {resolve: (value: any) => void, reject: (error: Error) => void, method: string}>} */
  #pending = new Map();
  /** What each listener wants to see of the inside, beside the event. @type {Map<string, Map<(data: any) => void, number>>} */
  #listeners = new Map();
  /** @type {Error|null} */
  #dead = null;
  #running = false;
  /** When they were. @type {number[]} */
  #restarts = [];
  #missed = 0;
  /** What the model in memory was loaded with. @type {LoadOptions|null} */
  #loaded = null;

  /** @param {URL} url of the worker's script */
  constructor(url) {
    this.#url = url;
    this.#worker = this.#start();
    /**
     * Settles once Python runs: what there is to compute with, or why not. Another promise after a restart.
     * @type {Promise<Ready>}
     */
    this.ready = this.#begin();
    setInterval(() => this.#beat(), BEAT_MS);
  }

  #start() {
    const worker = new Worker(this.#url, { type: "module", name: "tabgpt engine" });
    // What one that was given up still has to say concerns nobody.
    const on = (/** @type {string} */ type, /** @type {(event: any) => void} */ listener) =>
      worker.addEventListener(type, (event) => worker === this.#worker && listener(event));
    on("message", ({ data }) => this.#receive(data));
    on("error", ({ message }) => {
      const detail = message ? `: ${message}` : "; its script could not be loaded";
      this.#fail({ name: "WorkerError", message: `The engine's worker failed${detail}.` });
    });
    on("messageerror", () => {
      this.#fail({ name: "WorkerError", message: "The engine sent a message that cannot be read." });
    });
    return worker;
  }

  /** @returns {Promise<Ready>} */
  #begin() {
    const ready = this.#call("info");
    // Whoever awaits `ready` sees the failure; the page also gets it as an "error" event.
    ready.then(() => (this.#running = true)).catch(() => {});
    return ready;
  }

  /**
   * Load a model, freeing the one before. `stop()` cancels it; so does a call that asks for something else.
   * @param {LoadOptions} [options]
   * @returns {Promise<Loaded>}
   */
  load(options = {}) {
    // Only a window may ask for this, not a worker. Whatever the answer, the model is kept as long as it lasts.
    if (!options?.files && (options?.model ?? "story") !== "story") navigator.storage?.persist?.().catch(() => {});
    return this.#load(options);
  }

  /** @param {LoadOptions} options @returns {Promise<Loaded>} */
  async #load(options) {
    this.#loaded = null;
    const loaded = await this.#call("load", options);
    this.#loaded = options;
    return loaded;
  }

  /** Free the model, after stopping whatever runs. @returns {Promise<void>} */
  unload() {
    this.#loaded = null;
    return this.#call("unload");
  }

  /** What is kept of models, so that they are downloaded once. @returns {Promise<Storage>} */
  storage() {
    return this.#call("storage");
  }

  /**
   * Delete what is kept of a model, or of all models. One that is loaded stays loaded.
   * @param {string} [model]
   * @returns {Promise<void>}
   */
  forget(model) {
    return this.#call("forget", ...(model === undefined ? [] : [model]));
  }

  /**
   * Measure the loaded model: medians in milliseconds, with the adapter's name in them.
   * @param {{prompt_tokens?: number, new_tokens?: number, depth?: number, runs?: number}} [options]
   * @returns {Promise<Record<string, any>>}
   */
  bench(options = {}) {
    return this.#call("bench", options);
  }

  /**
   * Look into the model while it reads a text. Whatever else is asked for ends it, with a CancelledError.
   * @param {InspectOptions} options
   * @returns {Promise<Inspection>}
   */
  inspect(options) {
    return this.#call("inspect", options);
  }

  /**
   * Measure where the time goes for a text. Whatever else is asked for ends it, with a CancelledError.
   * @param {{prompt?: string, ids?: number[], new_tokens?: number}} options
   * @returns {Promise<Profile>}
   */
  profile(options) {
    return this.#call("profile", options);
  }

  /**
   * Continue a prompt.
   * @param {GenerateOptions} [options]
   * @returns {Promise<Completion>}
   */
  complete(options = {}) {
    return this.#call("complete", this.#watched(options));
  }

  /**
   * Continue a prompt, token by token. The last item is what `complete()` gives; it has `finish` and no `id`.
   * Leaving the loop early stops the generation.
   * @param {GenerateOptions} [options]
   * @returns {AsyncGenerator<Token|Completion, Completion, void>}
   */
  stream(options = {}) {
    /** @type {Token[]} */
    let queue = [];
    let wake = () => {};
    let settled = false;
    const call = this.#lastId + 1;
    const off = this.on("token", ({ call: of, ...token }) => {
      if (of !== call) return;
      queue.push(token);
      wake();
    });
    const done = this.#call("complete", this.#watched(options)).finally(() => {
      settled = true;
      off();
      wake();
    });
    done.catch(() => {}); // reported by the iterator below
    const stop = () => this.stop();
    return (async function* () {
      try {
        while (true) {
          const tokens = queue;
          queue = [];
          yield* tokens;
          if (queue.length) continue;
          if (settled) break;
          await new Promise((resolve) => {
            wake = () => resolve(undefined);
          });
        }
        const completion = await done;
        yield completion;
        return completion;
      } finally {
        if (!settled) {
          await stop();
          await done.catch(() => {});
        }
      }
    })();
  }

  /** Stop generating or loading, within a token; settles once nothing runs. @returns {Promise<void>} */
  stop() {
    return this.#call("stop");
  }

  /**
   * @param {string|{role: string, content: string}[]} text or messages, as the model reads them before it answers;
   *   special tokens that they spell are plain text
   * @returns {Promise<number[]>}
   */
  encode(text) {
    return this.#call("encode", text);
  }

  /**
   * @param {number[]} ids
   * @returns {Promise<string>}
   */
  decode(ids) {
    return this.#call("decode", ids);
  }

  /**
   * @param {string} text
   * @returns {Promise<{id: number, text: string}[]>}
   */
  tokens(text) {
    return this.#call("tokens", text);
  }

  /**
   * The logits after the last of `ids`.
   * @param {{ids: number[]}} options
   * @returns {Promise<Float32Array>}
   */
  logits(options) {
    return this.#call("logits", options);
  }

  /**
   * @template {keyof Events} E
   * @param {E} event "status", "progress", "token", "inside" or "error"
   * @param {(data: Events[E]) => void} listener
   * @param {{lens?: number}} [show] for "inside": so many of the likeliest tokens after each layer
   * @returns {() => void} call it to unsubscribe
   */
  on(event, listener, { lens = 0 } = {}) {
    const listeners = this.#listeners.get(event) ?? new Map();
    this.#listeners.set(event, listeners.set(listener, lens));
    return () => listeners.delete(listener);
  }

  /**
   * Ask for a look inside with every token, as long as somebody listens for it.
   * @param {GenerateOptions} options
   * @returns {GenerateOptions}
   */
  #watched(options) {
    const wishes = [...(this.#listeners.get("inside")?.values() ?? [])];
    return wishes.length ? { inspect: { lens: Math.max(...wishes) }, ...options } : options;
  }

  /**
   * @param {string} method
   * @param {unknown[]} args
   * @returns {Promise<any>}
   */
  #call(method, ...args) {
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      if (this.#dead) return reject(this.#dead);
      try {
        this.#worker.postMessage({ id, method, args });
      } catch (error) {
        // A function, an element, a proxy: nothing that can be sent to a worker.
        const reason = error instanceof Error ? error.message : String(error);
        const message = `The options of ${method} must be plain data (strings, numbers, lists, objects): ${reason}`;
        return reject(toError({ name: "OptionError", message }));
      }
      this.#pending.set(id, { resolve, reject, method });
    });
  }

  /** @param {any} message */
  #receive(message) {
    if (message.event === "tokens") {
      const { call, tokens } = message.data;
      return tokens.forEach((/** @type {Token} */ token) => {
        this.#emit("token", { ...token, call });
        if (token.inside) this.#emit("inside", { ...token.inside, call, id: token.id, text: token.text });
      });
    }
    if (message.event) return this.#emit(message.event, message.data);
    if (message.beat) return (this.#missed = 0);
    if (message.fatal) return this.#fail(message.fatal);
    const pending = this.#pending.get(message.id);
    if (!pending) return;
    this.#pending.delete(message.id);
    if (!message.error) return pending.resolve(message.result);
    pending.reject(toError(message.error));
    this.#emit("error", { ...message.error, method: pending.method });
  }

  #beat() {
    if (!this.#running || this.#dead) return;
    if (this.#missed >= MISSED_BEATS) {
      const minutes = (BEAT_MS * MISSED_BEATS) / 60_000;
      return this.#fail({ name: "WorkerError", message: `The engine has not answered for ${minutes} minutes.` });
    }
    this.#missed += 1;
    this.#worker.postMessage({ beat: this.#missed });
  }

  /** The worker is of no use any more: start another one, unless that does not help. @param {Failure} failure */
  #fail({ name, message }) {
    if (this.#dead) return;
    this.#worker.terminate();
    this.#restarts = this.#restarts.filter((then) => Date.now() - then < TEN_MINUTES);
    const hopeless = !this.#running || this.#restarts.length >= MAX_RESTARTS;
    // A start that failed says itself what to do.
    const advice = hopeless ? "Reload the page." : "It is started again; the text is kept.";
    const failure = { name, message: name === "BootError" ? message : `${message} ${advice}` };
    if (hopeless) this.#dead = toError(failure);
    for (const { reject } of this.#pending.values()) reject(toError(failure));
    this.#pending.clear();
    this.#emit("status", { state: hopeless ? "failed" : "booting", text: "The engine stopped", model: null });
    this.#emit("error", failure);
    if (hopeless) return;
    this.#restarts.push(Date.now());
    this.#running = false;
    this.#missed = 0;
    this.#worker = this.#start();
    this.ready = this.#begin();
    // Its failure is reported as any other's.
    if (this.#loaded) this.#load(this.#loaded).catch(() => {});
  }

  /**
   * @param {string} event
   * @param {unknown} data
   */
  #emit(event, data) {
    for (const listener of this.#listeners.get(event)?.keys() ?? []) {
      try {
        listener(data);
      } catch (error) {
        reportError(error); // one listener's fault is not the next one's
      }
    }
  }
}

export const lm = new LanguageModel(new URL("./worker.js", import.meta.url));
Object.assign(globalThis, { lm });
