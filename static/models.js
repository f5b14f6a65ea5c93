// @ts-check
/** The models that the picker offers by name. */

import { parameters, size } from "./format.js";

/**
 * @typedef {object} Model
 * @property {string} id what `lm.load` takes
 * @property {string} name
 * @property {number} parameters
 * @property {number} download bytes that are fetched: the weights without attention masks
 * @property {boolean} [near] it lies on the server that has the page
 * @property {string} [stored] the precision that its files have, where no other can be chosen
 */

/** @type {Model} */
export const STORY = { id: "story", name: "Story", parameters: 13_989_888, download: 27_979_776 };

/** What a server may have beside the page: its site.json says so. @type {Model[]} */
const ON_SITE = [{ id: "smollm2", name: "SmolLM2 Instruct", parameters: 134_515_008, download: 98_362_432, near: true, stored: "q4" }];

/** The hub's files of these are all f32, and their lm_head is tied. @type {Model[]} */
const GPT2 = [
  { id: "distilbert/distilgpt2", name: "DistilGPT-2", parameters: 81_912_576, download: 327_650_304 },
  { id: "openai-community/gpt2", name: "GPT-2", parameters: 124_439_808, download: 497_759_232 },
  { id: "openai-community/gpt2-medium", name: "GPT-2 Medium", parameters: 354_823_168, download: 1_419_292_672 },
  { id: "openai-community/gpt2-large", name: "GPT-2 Large", parameters: 774_030_080, download: 3_096_120_320 },
  { id: "openai-community/gpt2-xl", name: "GPT-2 XL", parameters: 1_557_611_200, download: 6_230_444_800 },
];

/** Parameters as their configs give them. Pythia's and TinyStories' files hold masks as well, which are not fetched. */
const OTHERS = [
  // Its safetensors are in a commit beside the main branch.
  { id: "roneneldan/TinyStories-33M@b6536809543085dc7c6cab3f36fd265be3255004", name: "TinyStories-33M", parameters: 68_514_048, download: 274_056_192 },
  { id: "EleutherAI/pythia-70m", name: "Pythia", parameters: 70_426_624, download: 140_853_248 },
  { id: "EleutherAI/pythia-160m", name: "Pythia", parameters: 162_322_944, download: 324_645_888 },
];

/** All in bf16, their lm_head is tied. */
const CHAT = [
  { id: "HuggingFaceTB/SmolLM2-135M-Instruct", name: "SmolLM2 Instruct", parameters: 134_515_008, download: 269_030_016 },
  { id: "HuggingFaceTB/SmolLM2-360M-Instruct", name: "SmolLM2 Instruct", parameters: 361_821_120, download: 723_642_240 },
  { id: "Qwen/Qwen2.5-0.5B-Instruct", name: "Qwen2.5 Instruct", parameters: 494_032_768, download: 988_065_536 },
  { id: "Qwen/Qwen3-0.6B", name: "Qwen3", parameters: 596_049_920, download: 1_192_099_840 },
];

export const CUSTOM = "custom";
export const FOLDER = "folder";
const BY_ID = new Map([STORY, ...ON_SITE, ...GPT2, ...OTHERS, ...CHAT].map((model) => [model.id, model]));

/** @param {string} id */
export const known = (id) => BY_ID.get(id);

/** A model's name for people. @param {string} id */
export const nameOf = (id) => {
  const model = BY_ID.get(id);
  return model ? `${model.name} ${parameters(model.parameters)}` : id;
};

/** Bytes that a weight takes at a precision: q8 and q4 keep a scale, and q4 a minimum, for each 32 of them. */
const BYTES = { f32: 4, f16: 2, q8: 34 / 32, q4: 20 / 32 };
/** Up to here f32 stays f32 where "auto" is asked for; see app/engine/backends.py. */
const SMALL = 30_000_000;

/** @typedef {{maxBufferSize?: number}} Limits of an adapter */

/**
 * What a model needs on the GPU, and whether that will fit as far as anyone can tell: browsers name the largest buffer
 * that a GPU allows, but not how much memory it has.
 * @param {Model} model @param {string} precision as chosen @param {Limits|null} limits null: no GPU
 */
export function needs({ parameters: count, download, stored }, precision, limits) {
  if (!limits) return `at least ${size(4 * count)} of memory on the CPU, where it is slow`;
  const f32 = count <= SMALL && download >= 4 * count;
  const chosen = /** @type {keyof typeof BYTES} */ (stored ?? (precision === "auto" ? (f32 ? "f32" : "f16") : precision));
  const bytes = BYTES[chosen] * count;
  const largest = limits.maxBufferSize ?? 0;
  const fits = bytes < largest / 2 ? "should fit" : bytes < 2 * largest ? "may fit" : "may not fit";
  return `about ${size(bytes)} of GPU memory in ${chosen}: ${fits}`;
}

/** As the picker lists it. The hub may have one of the same name. @param {Model} model @param {boolean} [kept] in storage */
const labelOf = ({ id, download, near }, kept = false) =>
  [nameOf(id), ...(near ? ["on this server"] : []), kept ? "in storage" : size(download)].join(", ");

/** @param {HTMLSelectElement} select */
export function fillPicker(select) {
  /** @param {Model[]} models */
  const options = (models) => models.map((model) => new Option(labelOf(model), model.id));
  select.replaceChildren(
    group("On this page", [new Option(`${nameOf(STORY.id)}, no download`, STORY.id)]),
    group("GPT-2 from the hub", options(GPT2)),
    group("Chat, from the hub", options(CHAT)),
    group("Others from the hub", options(OTHERS)),
    group("Your own", [new Option("Another from the hub", CUSTOM), new Option("A folder on this device", FOLDER)]),
  );
}

/** Offer what this server has beside the page. @param {HTMLSelectElement} select @param {unknown} ids */
export function offerOnSite(select, ids) {
  if (!Array.isArray(ids)) return;
  const models = ON_SITE.filter(({ id }) => ids.includes(id));
  const options = models.map((model) => new Option(labelOf(model), model.id));
  select.querySelector("optgroup")?.append(...options);
}

/** Mark what is kept in the browser's storage. @param {HTMLSelectElement} select @param {(id: string) => boolean} has */
export function markKept(select, has) {
  for (const option of select.options) {
    const model = BY_ID.get(option.value);
    if (!model || model === STORY) continue;
    const text = labelOf(model, has(model.id));
    if (option.textContent !== text) option.textContent = text;
  }
}

/** @param {string} label @param {HTMLOptionElement[]} options */
function group(label, options) {
  const element = document.createElement("optgroup");
  element.label = label;
  element.append(...options);
  return element;
}
