// Scores: the logits after the repetition penalty and the temperature, as sampling.py defines them.
// A block is BLOCK logits, taken by a workgroup of WG threads. BLOCKS of them cover the vocabulary of N.
struct Rules {
  temperature: f32, // 0: greedy
  penalty: f32,     // 1: none
  top_p: f32,       // 1: off
  min_p: f32,       // 0: off
  top_k: u32,       // 0: off
  top: u32,         // how many of the likeliest tokens to report
}
struct Block {
  best: f32,      // the greatest score
  mass: f32,      // sum of exp(score - best)
  raw_best: f32,  // the same of the logits themselves
  raw_mass: f32,
  best_id: u32,   // the lowest id with the greatest score
  bad: u32,       // 1 if a logit is NaN or +inf
}
@group(0) @binding(0) var<storage, read> logits: array<f32>;
@group(0) @binding(11) var<uniform> rules: Rules;

const LOWEST: f32 = -3.4e38;

// Past f32's range, and NaN: WGSL may assume that they do not occur, so look at the bits. -inf is allowed.
fn is_bad(v: f32) -> bool {
  let bits = bitcast<u32>(v);
  return (bits & 0x7f800000u) == 0x7f800000u && bits != 0xff800000u;
}

// Whether the token is marked in its word of a bitmap.
fn bit_of(word: u32, id: u32) -> bool {
  return ((word >> (id % 32u)) & 1u) == 1u;
}

fn score_of(raw: f32, was_seen: bool) -> f32 {
  var v = max(raw, LOWEST);
  if (was_seen) {
    v = select(v * rules.penalty, v / rules.penalty, v > 0.0);
  }
  if (rules.temperature > 0.0) {
    v /= rules.temperature;
  }
  return max(v, LOWEST);
}
