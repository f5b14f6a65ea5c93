// @ts-check
/** Runs a table of benchmark cases over `window.lm`. */
import { lm } from "./lm.js";

/** @typedef {{model?: string, precision?: string, prompt_tokens?: number, new_tokens?: number, depth?: number, runs?: number}} Case */

const DEFAULT_CASES = [
  { model: "story", precision: "f16", prompt_tokens: 16, new_tokens: 128 },
  { model: "story", precision: "f32", prompt_tokens: 16, new_tokens: 128 },
  { model: "story", precision: "f16", prompt_tokens: 256, new_tokens: 128 },
];

const form = /** @type {HTMLFormElement} */ (document.querySelector("#cases-form"));
const field = /** @type {HTMLTextAreaElement} */ (document.querySelector("#cases"));
const rows = /** @type {HTMLElement} */ (document.querySelector("#rows"));
const json = /** @type {HTMLElement} */ (document.querySelector("#json"));
const status = /** @type {HTMLElement} */ (document.querySelector("#status"));

/** @param {unknown} value */
const figure = (value) => (typeof value === "number" ? value.toFixed(value < 10 ? 3 : 1) : "–");

/** @param {Record<string, any>} r */
function show(r) {
  const cells = [
    r.model, r.precision, figure(r.seconds), r.prompt_tokens, figure(r.prefill_ms), figure(r.greedy?.ms_per_token),
    figure(r["top_k 40, top_p 0.95"]?.ms_per_token), figure(r["depth 1"]?.ms_per_token), figure(r.gpu?.ms_per_token),
    figure(r.greedy?.python_ms_per_token), figure(r.gpu?.weights_gb_per_second),
  ];
  const row = document.createElement("tr");
  for (const cell of cells) row.appendChild(document.createElement("td")).textContent = String(cell);
  rows.append(row);
}

/**
 * Load and measure each case; a model that the next case needs in the same precision is not loaded again.
 * @param {Case[]} cases
 */
async function runCases(cases) {
  const reports = [];
  let held = "";
  rows.replaceChildren();
  for (const { model = "story", precision = "auto", ...options } of cases) {
    try {
      if (held !== `${precision} ${model}`) await lm.load(/** @type {any} */ ({ model, precision }));
      held = `${precision} ${model}`;
      const report = { browser: navigator.userAgent, ...(await lm.bench(options)) };
      show(report);
      reports.push(report);
    } catch (error) {
      held = "";
      reports.push({ model, precision, error: String(error) });
      status.textContent = String(error);
    }
    json.textContent = JSON.stringify(reports, null, 1);
  }
  return reports;
}

lm.on("status", ({ text }) => {
  status.textContent = text;
});
field.value = new URLSearchParams(location.search).get("cases") ?? JSON.stringify(DEFAULT_CASES, null, 1);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  try {
    runCases(JSON.parse(field.value));
  } catch (error) {
    status.textContent = `These cases are no JSON: ${error}`;
  }
});
Object.assign(window, { runCases });
