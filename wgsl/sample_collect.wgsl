// Gathers every token that the rules might keep: those in the bins down to a cut that is far enough for at least one
// of them. work: the bins, the number of candidates (past CANDIDATES too), then (score, id) of each, in any order, then
// whether the cut was exact rather than estimated.
// Grid: BLOCKS over x.
@group(0) @binding(1) var<storage, read> blocks: array<Block>;
@group(0) @binding(2) var<storage, read> seen: array<u32>;
@group(0) @binding(3) var<storage, read_write> work: array<atomic<u32>>;

const WEIGHTLESS: f32 = 1e-12; // nothing below this share of the best can be drawn with a 24-bit uniform number
const MARGIN: u32 = 2u;

var<workgroup> best: array<f32, WG>;
var<workgroup> total: array<f32, WG>;
var<workgroup> counts: array<u32, BINS>;
var<workgroup> masses: array<f32, BINS>;
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
  // The mass of a bin, as if its tokens lay in its middle: an estimate, which sample_choose checks.
  var sum = 0.0;
  for (var bin = t; bin < BINS; bin += WG) {
    masses[bin] = f32(counts[bin]) * exp(-(f32(bin) + 0.5) / (BINS_PER_NAT * rules.temperature));
    sum += masses[bin];
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
    // One rule that is satisfied down to a bin suffices, since what is kept is a part of what it keeps. But top-p after
    // top-k is a share of the top k's mass, so that all of these are needed.
    let alone = rules.top_k == 0u || rules.top_p >= 1.0;
    let only_report = rules.top_k == 0u && rules.top_p >= 1.0 && rules.min_p <= 0.0;
    let lightest = select(WEIGHTLESS, max(rules.min_p, WEIGHTLESS), alone);
    let beyond = -log(lightest) * BINS_PER_NAT * rules.temperature; // bins from here on weigh less
    let wanted_mass = select(3.0e38, rules.top_p * total[0], alone && rules.top_p < 1.0);
    let wanted_count = select(N, min(rules.top_k, N), rules.top_k > 0u);
    let reported = min(rules.top, N);
    var count = 0u;
    var mass = 0.0;
    cut = BINS;
    for (var bin = 0u; bin < BINS; bin++) {
      count += counts[bin];
      mass += masses[bin];
      let exact = only_report || count >= wanted_count || f32(bin) > beyond;
      if ((exact || mass >= wanted_mass) && count >= reported) {
        if (workgroup.x == 0u) {
          atomicStore(&work[BINS + 1u + 2u * CANDIDATES], select(0u, 1u, exact));
        }
        cut = bin + select(1u, 1u + MARGIN, wanted_mass < 3.0e38); // an estimate's margin
        break;
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
