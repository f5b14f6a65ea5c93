// @ts-check
/**
 * Starts Python in a worker and hands it the page's messages. No model logic lives here: see app/engine/worker.py.
 *
 * Every address is relative to this file, so the page works under any path of any host.
 */

import * as gpu from "./gpu.js";

/**
 * @typedef {{version: string, wheel: string, pyodide: string, bytecode: string|null}} Site
 * @typedef {{(id: number, method: string, args: unknown[]): void}} Dispatch
 */

/** @param {unknown} message @param {Transferable[]} [transfer] */
const post = (message, transfer = []) => postMessage(message, { transfer });

/** @param {string} text */
const booting = (text) => post({ event: "status", data: { state: "booting", text, model: null } });

/** Do one step of the start, and say which one it was if it fails.
 * @template T
 * @param {string} text @param {() => Promise<T>} work
 */
async function step(text, work) {
  booting(text);
  try {
    return await work();
  } catch (error) {
    console.error(error);
    const reason = error instanceof Error ? error.message : String(error);
    const failure = new Error(`${text} failed: ${reason.trim().split("\n").at(-1)}. ${ADVICE}`);
    failure.name = "BootError";
    throw failure;
  }
}
const ADVICE = "Check the connection to the server of this page, then reload it.";

/** What the engine imports, micropip, and all that these need. */
const PACKAGES = [
  ...["numpy", "tiktoken", "micropip"],
  ...["regex", "requests", "charset-normalizer", "idna", "urllib3", "certifi"],
];

/** Python, once it runs. @type {{globals: unknown}|null} */
let python = null;

/** @returns {Promise<Dispatch>} */
async function boot() {
  const site = await step("Reading the site's description", async () => {
    const response = await fetch(new URL("./site.json", import.meta.url));
    if (!response.ok) throw new Error(`site.json gave HTTP ${response.status}`);
    return /** @type {Site} */ (await response.json());
  });
  const indexURL = new URL(site.pyodide, import.meta.url).href;
  // It downloads while Python starts; whether that worked is looked at when it is needed.
  const wheel = fetch(new URL(site.wheel, import.meta.url)).then(async (response) => {
    if (!response.ok) throw new Error(`${site.wheel} gave HTTP ${response.status}`);
    return response.arrayBuffer();
  });
  wheel.catch(() => {});
  // It saves compiling what is imported, and nothing else: without it Python starts, too.
  const bytecode = site.bytecode === null ? null : fetch(new URL(site.bytecode, import.meta.url))
    .then((response) => (response.ok ? response.arrayBuffer() : null))
    .catch(() => null);

  const pyodide = await step("Loading Python", async () => {
    const { loadPyodide } = await import(new URL("pyodide.mjs", indexURL).href);
    // They download while the interpreter compiles. One that fails is only logged, so it is tried again.
    const python = await loadPyodide({ indexURL, packages: PACKAGES, stdout: console.debug });
    const missing = () => PACKAGES.filter((name) => !(name in python.loadedPackages));
    if (missing().length) await python.loadPackage(missing());
    if (missing().length) throw new Error(`${missing().join(" and ")} did not arrive`);
    return python;
  });
  await step("Installing the engine", async () => {
    pyodide.registerJsModule("tabgpt_gpu", gpu);
    // It needs nothing but PACKAGES, so it is only unpacked: micropip would look for more, and take half a second.
    pyodide.unpackArchive(await wheel, "wheel");
    const compiled = await bytecode;
    try {
      if (compiled) pyodide.unpackArchive(compiled, "zip", { extractDir: "/" });
    } catch (error) {
      console.warn(`${site.bytecode} is damaged, so Python compiles what it imports itself.`, error);
    }
  });
  return step("Starting the engine", async () => {
    const engine = pyodide.pyimport("app.engine.worker");
    const dispatch = engine.start(post, new URL("./", import.meta.url).href);
    engine.destroy();
    python = pyodide;
    return dispatch;
  });
}

const started = boot();
started.catch(({ name, message }) => post({ fatal: { name, message } }));

/** Whatever `work` throws is the interpreter giving up: Python answers its own exceptions. @param {() => unknown} work */
function guarded(work) {
  try {
    return work();
  } catch (error) {
    console.error(error);
    const message = `The engine stopped (${error}). It may have run out of memory.`;
    return post({ fatal: { name: "EngineCrash", message } });
  }
}

// Calls made while Python starts wait for it, in order.
addEventListener("message", async ({ data: { id, method, args, beat } }) => {
  // An interpreter that has failed in a callback says so to whoever touches it next.
  if (beat) return guarded(() => python?.globals && post({ beat }));
  const dispatch = await started.catch(() => null);
  guarded(() => dispatch?.(id, method, args));
});
