// @ts-check
/** What lies on the paper above the text: why there is no GPU, and what went wrong. */

/** @param {string} id */
const element = (id) => /** @type {HTMLElement} */ (document.getElementById(id));

/** @type {Record<string, string>} */
const TITLES = {
  BootError: "Python did not start",
  BusyError: "One thing at a time",
  ChangedError: "The model was replaced meanwhile",
  ChatTemplateError: "The model cannot chat",
  ChecksumError: "The model's files are damaged",
  DeviceLostError: "The GPU was lost",
  EngineCrash: "The engine stopped",
  GatedError: "The model is private or gated",
  GgufError: "The model's files are damaged",
  GpuError: "The GPU failed",
  GpuUnavailableError: "WebGPU cannot be used here",
  ModelFileError: "The model's files are damaged",
  NetworkError: "No connection",
  NonFiniteLogitsError: "The model gave no usable numbers",
  NotKeptError: "The model is not stored here any more",
  NotFoundError: "There is no such model",
  OfflineError: "No connection",
  OptionError: "That cannot be done as asked",
  RangeError: "The server cannot send parts of files",
  RateLimitedError: "The hub asks for a pause",
  SafetensorsError: "The model's files are damaged",
  ServerError: "The server has a problem",
  TokenizerError: "The tokenizer cannot be used",
  TruncatedError: "The download broke off",
  UnsupportedModelError: "This model cannot run here",
  WorkerError: "The engine stopped",
  WrongContentError: "The server sent something else",
};

/** Where WebGPU is missing, which part of it, and what to do about that. */
function missingPart() {
  if (!isSecureContext) return "WebGPU needs a secure page";
  return "gpu" in navigator ? "No GPU was found" : "This browser has no WebGPU";
}

export class Notices {
  #retry = () => {};
  #other = () => {};

  constructor() {
    element("no-webgpu-close").addEventListener("click", () => {
      element("no-webgpu").hidden = true;
    });
    element("not-kept-close").addEventListener("click", () => {
      element("not-kept").hidden = true;
    });
    element("shared-close").addEventListener("click", () => this.sharedIsRead());
    element("update-later").addEventListener("click", () => {
      element("update").hidden = true;
    });
    element("problem-close").addEventListener("click", () => this.clear());
    element("problem-retry").addEventListener("click", () => {
      this.clear();
      this.#retry();
    });
    element("problem-other").addEventListener("click", () => {
      this.clear();
      this.#other();
    });
  }

  /** @param {string} reason what the engine found */
  noWebGPU(reason) {
    element("no-webgpu-title").textContent = `${missingPart()}: the model runs on the CPU, slowly`;
    element("no-webgpu-text").textContent = reason;
    element("no-webgpu").hidden = false;
  }

  /** @param {string} reason as in `Loaded.storage` */
  notKept(reason) {
    element("not-kept-text").textContent = `It works, and loading it again starts anew: ${reason.replace(/\.$/, "")}.`;
    element("not-kept").hidden = false;
  }

  /**
   * @param {unknown} error @param {() => void} retry
   * @param {{label: string, act: () => void}|null} [other] something else to do about it
   * @param {string} [label] of retrying
   */
  problem(error, retry, other = null, label = "Retry") {
    const { name, message } = error instanceof Error ? error : { name: "", message: String(error) };
    element("problem-title").textContent = TITLES[name] ?? "That did not work";
    element("problem-text").textContent = message;
    element("problem-retry").textContent = label;
    if (other) element("problem-other").textContent = other.label;
    element("problem-other").hidden = other === null;
    this.#other = other?.act ?? (() => {});
    element("problem").hidden = false;
    element("problem").scrollIntoView({ block: "nearest" });
    this.#retry = retry;
  }

  /** The text came with a link that brought a seed. */
  shared() {
    element("shared").hidden = false;
  }

  sharedIsRead() {
    element("shared").hidden = true;
  }

  /** A new version of the page is there. @param {() => void} accept */
  update(accept) {
    element("update-accept").onclick = accept;
    element("update").hidden = false;
  }

  clear() {
    element("problem").hidden = true;
    element("not-kept").hidden = true;
  }
}
