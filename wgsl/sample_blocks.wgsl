// The first look at the logits [N]: for each block of BLOCK, its greatest score, where that is, and the sum of exp.
// Grid: BLOCKS over x. WG threads, a power of two.
@group(0) @binding(1) var<storage, read_write> blocks: array<Block>;
@group(0) @binding(2) var<storage, read> seen: array<u32>;

var<workgroup> best: array<vec2f, WG>; // score, raw
var<workgroup> best_id: array<u32, WG>;
var<workgroup> mass: array<vec2f, WG>;
var<workgroup> bad: atomic<u32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  var scores: array<vec2f, BLOCK / WG>;
  var mine = vec2f(LOWEST);
  var mine_id = 0xffffffffu;
  for (var j = 0u; j < BLOCK / WG; j++) {
    let id = workgroup.x * BLOCK + j * WG + t; // ascending, so that the first of equals wins
    scores[j] = vec2f(LOWEST);
    if (id < N) {
      let raw = logits[id];
      if (is_bad(raw)) {
        atomicStore(&bad, 1u);
      } else {
        let was_seen = rules.penalty != 1.0 && bit_of(seen[id / 32u], id);
        scores[j] = vec2f(score_of(raw, was_seen), max(raw, LOWEST));
        if (scores[j].x > mine.x || mine_id == 0xffffffffu) {
          mine_id = id;
        }
        mine = max(mine, scores[j]);
      }
    }
  }
  best[t] = mine;
  best_id[t] = mine_id;
  workgroupBarrier();
  for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
    if (t < stride) {
      let a = best[t];
      let b = best[t + stride];
      if (b.x > a.x || (b.x == a.x && best_id[t + stride] < best_id[t])) {
        best_id[t] = best_id[t + stride];
      }
      best[t] = max(a, b);
    }
    workgroupBarrier();
  }
  let top = best[0];
  var sum = vec2f(0.0);
  for (var j = 0u; j < BLOCK / WG; j++) {
    if (scores[j].y > LOWEST) {
      sum += exp(scores[j] - top);
    }
  }
  mass[t] = sum;
  workgroupBarrier();
  for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
    if (t < stride) {
      mass[t] += mass[t + stride];
    }
    workgroupBarrier();
  }
  if (t == 0u) {
    blocks[workgroup.x] = Block(top.x, mass[0].x, top.y, mass[0].y, min(best_id[0], N - 1u), atomicLoad(&bad));
  }
}
