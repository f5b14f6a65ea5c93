// @ts-check
/** The models that the picker offers by name. */

import { parameters, size } from "./format.js";

/**
 * @typedef {object} Model
 * @property {string} id what `lm.load` takes
 * @property {string} name
 * @property {number} parameters
 * @property {number} download bytes that are fetched: the weights without attention masks
 */

/** @type {Model} */
export const STORY = { id: "story", name: "Story", parameters: 13_989_888, download: 27_979_776 };

/** The hub's files of these are all f32, and their lm_head is tied. @type {Model[]} */
const HUB = [
  { id: "distilbert/distilgpt2", name: "DistilGPT-2", parameters: 81_912_576, download: 327_650_304 },
  { id: "openai-community/gpt2", name: "GPT-2", parameters: 124_439_808, download: 497_759_232 },
  { id: "openai-community/gpt2-medium", name: "GPT-2 Medium", parameters: 354_823_168, download: 1_419_292_672 },
  { id: "openai-community/gpt2-large", name: "GPT-2 Large", parameters: 774_030_080, download: 3_096_120_320 },
  { id: "openai-community/gpt2-xl", name: "GPT-2 XL", parameters: 1_557_611_200, download: 6_230_444_800 },
];

export const CUSTOM = "custom";
export const FOLDER = "folder";
const BY_ID = new Map([STORY, ...HUB].map((model) => [model.id, model]));

/** @param {string} id */
export const known = (id) => BY_ID.get(id);

/** A model's name for people. @param {string} id */
export const nameOf = (id) => {
  const model = BY_ID.get(id);
  return model ? `${model.name} ${parameters(model.parameters)}` : id;
};

/** @param {HTMLSelectElement} select */
export function fillPicker(select) {
  const local = group("On this page", [new Option(`${nameOf(STORY.id)}, no download`, STORY.id)]);
  const hub = group(
    "From the hub",
    HUB.map((model) => new Option(`${nameOf(model.id)}, ${size(model.download)}`, model.id)),
  );
  const own = [new Option("Another GPT-2", CUSTOM), new Option("A folder on this device", FOLDER)];
  select.replaceChildren(local, hub, group("Your own", own));
}

/** @param {string} label @param {HTMLOptionElement[]} options */
function group(label, options) {
  const element = document.createElement("optgroup");
  element.label = label;
  element.append(...options);
  return element;
}
