// @ts-check
/** The document for elsewhere: as text, and as JSON with every token and its probability. */

import { textOf } from "./document.js";

/** @typedef {import("./document.js").Pieces} Pieces */

/** @param {number|null} logprob */
const probability = (logprob) => (logprob === null ? null : Math.exp(logprob));

/** @param {Pieces} pieces */
const plain = (pieces) =>
  pieces.map(({ text, tokens, model }) => ({
    text,
    by: tokens ? "model" : "user",
    ...(tokens && {
      vocabulary: model,
      tokens: tokens.map(({ id, text, logprob, top }) => ({
        ...{ id, text, logprob, probability: probability(logprob) },
        top: top.map((one) => ({ id: one.id, text: one.text, probability: probability(one.logprob) })),
      })),
    }),
  }));

/**
 * @param {import("./editor.js").State} state @param {import("./lm.js").Loaded|null} model that is loaded now
 */
export function asJson({ pieces, generation }, model) {
  const { model: name, revision, commit, family, precision, backend } = model ?? {};
  const data = {
    format: "tabgpt 1",
    model: model && { model: name, revision, commit, family, precision, backend },
    text: textOf(pieces),
    pieces: plain(pieces),
    continuations: (generation?.takes ?? []).map((take, place) => ({
      ...{ chosen: place === generation?.chosen, seed: take.seed, finish: take.finish, options: take.options },
      pieces: plain(take.pieces),
    })),
  };
  return `${JSON.stringify(data, null, 1)}\n`;
}

/** @param {string} content @param {string} name of the file @param {string} type */
export function save(content, name, type) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** @param {string} text */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // No clipboard on an insecure page, or not allowed: the old way.
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "visually-hidden";
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
