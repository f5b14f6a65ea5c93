// How many tokens lie how far below the best one, in logits: bins of 1 / BINS_PER_NAT, the last for all that is farther.
// Grid: BLOCKS over x. work [BINS + 2 + 2·CANDIDATES] begins with the bins, zero before; then the number of candidates.
@group(0) @binding(1) var<storage, read> blocks: array<Block>;
@group(0) @binding(2) var<storage, read> seen: array<u32>;
@group(0) @binding(3) var<storage, read_write> work: array<atomic<u32>>;

var<workgroup> best: array<f32, WG>;
var<workgroup> counts: array<atomic<u32>, BINS>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  var mine = LOWEST;
  for (var b = t; b < BLOCKS; b += WG) {
    mine = max(mine, blocks[b].best);
  }
  best[t] = mine;
  workgroupBarrier();
  for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
    if (t < stride) {
      best[t] = max(best[t], best[t + stride]);
    }
    workgroupBarrier();
  }
  for (var j = t; j < BLOCK; j += WG) {
    let id = workgroup.x * BLOCK + j;
    if (id < N) {
      let was_seen = rules.penalty != 1.0 && bit_of(seen[id / 32u], id);
      let distance = (best[0] - score_of(logits[id], was_seen)) * rules.temperature;
      atomicAdd(&counts[u32(min(distance * BINS_PER_NAT, f32(BINS - 1u)))], 1u);
    }
  }
  workgroupBarrier();
  for (var bin = t; bin < BINS; bin += WG) {
    let count = atomicLoad(&counts[bin]);
    if (count > 0u) {
      atomicAdd(&work[bin], count);
    }
  }
}
