// @ts-check
/** What the sampling rules leave of a distribution: app/engine/sampling.py's rules 1 to 6, for a picture of them. */

/** @typedef {{temperature?: number, top_k?: number, top_p?: number, min_p?: number}} Rules */

/**
 * Logits in falling order, and the ids of the first of them.
 * @param {Float32Array} logits @param {number} first
 */
export function ranked(logits, first) {
  const scores = logits.slice().sort().reverse();
  const least = scores[Math.min(first, scores.length) - 1];
  /** @type {{id: number, score: number}[]} */
  const best = [];
  for (const [id, score] of logits.entries()) if (score >= least) best.push({ id, score });
  best.sort((a, b) => b.score - a.score || a.id - b.id);
  return { scores, ids: best.slice(0, first).map(({ id }) => id) };
}

/** The place of an id in falling order, counted from 1. @param {Float32Array} logits @param {number} id */
export const rankIn = (logits, id) =>
  1 + logits.reduce((higher, logit, other) => higher + Number(logit > logits[id] || (logit === logits[id] && other < id)), 0);

/** Weaken what the text has already, as transformers does. @param {Float32Array} logits @param {number[]} ids @param {number} penalty */
export function penalised(logits, ids, penalty) {
  if (penalty === 1) return logits;
  const scores = logits.slice();
  for (const id of new Set(ids)) scores[id] = scores[id] > 0 ? scores[id] / penalty : scores[id] * penalty;
  return scores;
}

/**
 * The tokens that the rules keep are the first `kept` in falling order. `probability` is of the token at a place: among
 * the kept for one that is kept, and what it had before the cut for any other. `mass` is what the kept had before.
 * @param {Float32Array} scores in falling order @param {Rules} rules
 */
export function cutBy(scores, { temperature = 1, top_k = 0, top_p = 1, min_p = 0 }) {
  const weights = scores.map((score) => Math.exp((score - scores[0]) / (temperature || 1)));
  const whole = sum(weights);
  if (temperature === 0) {
    return { kept: 1, mass: weights[0] / whole, probability: (/** @type {number} */ place) => (place ? weights[place] / whole : 1) };
  }
  let kept = top_k > 0 ? Math.min(top_k, scores.length) : scores.length;
  if (top_p < 1) {
    const wanted = top_p * sum(weights.subarray(0, kept));
    let [running, place] = [weights[0], 1];
    while (place < kept && running < wanted) running += weights[place++];
    kept = place;
  }
  if (min_p > 0) while (kept > 1 && weights[kept - 1] < min_p) kept -= 1;
  const held = sum(weights.subarray(0, kept));
  return {
    kept,
    mass: held / whole,
    probability: (/** @type {number} */ place) => weights[place] / (place < kept ? held : whole),
  };
}

/** @param {Float32Array} values */
function sum(values) {
  let total = 0;
  for (const value of values) total += value;
  return total;
}
