// Sampling from the whole vocabulary, nothing cut off: the inverse CDF in the order of ids, first over blocks, then
// inside the one that the uniform number falls into. Grid: 1. WG threads, BLOCK / WG logits each.
@group(0) @binding(5) var<storage, read> uniforms: array<f32>;

var<workgroup> block: u32;
var<workgroup> before: f32;
var<workgroup> mass: array<f32, BLOCK>;
var<workgroup> chosen: atomic<u32>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) t: u32) {
  let s = summary(t);
  let wanted = uniforms[next_step.drawn % RING] * s.mass;
  if (t == 0u) {
    var running = 0.0;
    block = 0u;
    before = 0.0;
    for (var b = 0u; b < BLOCKS; b++) {
      let m = blocks[b].mass * exp(blocks[b].best - s.best);
      if (running <= wanted && m > 0.0) { // the last block that begins at or before it
        block = b;
        before = running;
      }
      running += m;
    }
    atomicStore(&chosen, 0xffffffffu);
  }
  workgroupBarrier();
  for (var j = t; j < BLOCK; j += WG) {
    let id = block * BLOCK + j;
    mass[j] = 0.0;
    if (id < N && logits[id] > LOWEST) {
      let was_seen = rules.penalty != 1.0 && bit_of(seen[id / 32u], id);
      mass[j] = exp(score_of(logits[id], was_seen) - s.best);
    }
  }
  workgroupBarrier();
  let share = BLOCK / WG;
  var running = before;
  for (var j = 0u; j < t * share; j++) {
    running += mass[j];
  }
  for (var j = t * share; j < (t + 1u) * share; j++) {
    running += mass[j];
    if (running > wanted) {
      atomicMin(&chosen, j);
      break;
    }
  }
  workgroupBarrier();
  if (t == 0u) {
    var j = atomicLoad(&chosen);
    if (j == 0xffffffffu) { // the sum was rounded below the uniform number's share: the last token with any weight
      j = 0u;
      for (var i = 0u; i < BLOCK; i++) {
        if (mass[i] > 0.0) {
          j = i;
        }
      }
    }
    finish(min(block * BLOCK + j, N - 1u), s, OK, rules.top);
  }
}
