// Boots Pyodide as static/worker.js does, then runs functions of this folder's Python modules.
import * as gpu from "../gpu.js";

async function boot() {
  const site = await (await fetch(new URL("../site.json", import.meta.url))).json();
  const indexURL = new URL(`../${site.pyodide}`, import.meta.url).href;
  const { loadPyodide } = await import(new URL("pyodide.mjs", indexURL).href);
  const pyodide = await loadPyodide({ indexURL, packages: ["numpy", "tiktoken", "micropip"] });
  const bytecode = await fetch(new URL(`../${site.bytecode}`, import.meta.url));
  pyodide.unpackArchive(await bytecode.arrayBuffer(), "zip", { extractDir: "/" });
  pyodide.registerJsModule("tabgpt_gpu", gpu);
  await pyodide.pyimport("micropip").install(new URL(`../${site.wheel}`, import.meta.url).href);
  pyodide.FS.mkdirTree("/lab/tests/browser/lab");
  for (const name of ["__init__", "inspection", "kernels", "models", "sampler", "tuning"]) {
    const response = await fetch(new URL(`${name}.py`, import.meta.url), { cache: "no-store" });
    pyodide.FS.writeFile(`/lab/tests/browser/lab/${name}.py`, await response.text());
  }
  pyodide.runPython("import sys; sys.path.insert(0, '/lab')");
  return pyodide;
}

const booted = boot();

onmessage = async ({ data: { id, module, functionName, args } }) => {
  try {
    const pyodide = await booted;
    pyodide.globals.set("lab_arguments", JSON.stringify(args));
    const code = `
import importlib, inspect, json
lab_result = getattr(importlib.import_module("tests.browser.lab.${module}"), "${functionName}")(**json.loads(lab_arguments))
if inspect.isawaitable(lab_result):
    lab_result = await lab_result
json.dumps(lab_result)`;
    postMessage({ id, result: JSON.parse(await pyodide.runPythonAsync(code)) });
  } catch (error) {
    postMessage({ id, error: String(error.message ?? error) });
  }
};
