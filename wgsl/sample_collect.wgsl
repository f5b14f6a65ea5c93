// Gathers every token that the rules might keep: those in the bins down to a cut that is far enough for at least one
// of them. work: the bins, the number of candidates (past CANDIDATES too), then (score, id) of each, in any order.
// Grid: BLOCKS over x.
@group(0) @binding(1) var<storage, read> blocks: array<Block>;
@group(0) @binding(2) var<storage, read> seen: array<u32>;
@group(0) @binding(3) var<storage, read_write> work: array<atomic<u32>>;

const WEIGHTLESS: f32 = 1e-12; // nothing below this share of the best can be drawn with a 24-bit uniform number

var<workgroup> best: array<f32, WG>;
var<workgroup> total: array<f32, WG>;
var<workgroup> counts: array<u32, BINS>;
var<workgroup> cut: u32;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  var mine = LOWEST;
  for (var b = t; b < BLOCKS; b += WG) {
    mine = max(mine, blocks[b].best);
  }
  best[t] = mine;
  for (var bin = t; bin < BINS; bin += WG) {
    counts[bin] = atomicLoad(&work[bin]);
  }
  workgroupBarrier();
  for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
    if (t < stride) {
      best[t] = max(best[t], best[t + stride]);
    }
    workgroupBarrier();
  }
  var sum = 0.0;
  for (var b = t; b < BLOCKS; b += WG) {
    sum += blocks[b].mass * exp(blocks[b].best - best[0]);
  }
  total[t] = sum;
  workgroupBarrier();
  for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
    if (t < stride) {
      total[t] += total[t + stride];
    }
    workgroupBarrier();
  }
  if (t == 0u) {
    var count = 0u;
    var mass = 0.0; // at least what these bins hold
    var decided = false;
    cut = BINS;
    for (var bin = 0u; bin < BINS && cut == BINS; bin++) {
      count += counts[bin];
      let nearest = exp(-f32(bin) / (BINS_PER_NAT * rules.temperature)); // the most that a token of this bin weighs
      mass += f32(counts[bin]) * exp(-f32(bin + 1u) / (BINS_PER_NAT * rules.temperature));
      // One rule that is satisfied down to here suffices, since what is kept is a part of what it keeps. But top-p
      // after top-k is a share of the top k's mass, so that all of these are needed.
      let alone = rules.top_k == 0u || rules.top_p >= 1.0;
      decided = decided
        || (rules.top_k > 0u && count >= min(rules.top_k, N))
        // A margin for rounding: a bin more costs nothing.
        || (alone && rules.top_p < 1.0 && mass >= rules.top_p * total[0] * 1.0001)
        || nearest < select(WEIGHTLESS, max(rules.min_p, WEIGHTLESS), alone)
        || count == N;
      if (decided && count >= min(rules.top, N)) {
        cut = bin + 1u;
      }
    }
  }
  let end = workgroupUniformLoad(&cut);
  for (var j = t; j < BLOCK; j += WG) {
    let id = workgroup.x * BLOCK + j;
    if (id < N) {
      let was_seen = rules.penalty != 1.0 && bit_of(seen[id / 32u], id);
      let score = score_of(logits[id], was_seen);
      let distance = (best[0] - score) * rules.temperature;
      if (u32(min(distance * BINS_PER_NAT, f32(BINS - 1u))) < end) {
        let place = atomicAdd(&work[BINS], 1u);
        if (place < CANDIDATES) {
          atomicStore(&work[BINS + 1u + 2u * place], bitcast<u32>(score));
          atomicStore(&work[BINS + 2u + 2u * place], id);
        }
      }
    }
  }
}
