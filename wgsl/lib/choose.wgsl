// The end of every sampler: note the token and its probability, and set up the next step. One workgroup.
// results: RING entries of RESULT words: id, log-probability, status, how many top tokens, their ids, their log-probabilities.
struct NextStep { // Step, as step.wgsl has it; a kernel may not bind a buffer both for reading and for writing
  position: u32,
  n: u32,
  drawn: u32,
}
@group(0) @binding(1) var<storage, read> blocks: array<Block>;
@group(0) @binding(2) var<storage, read_write> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> seen: array<u32>; // one bit a token: it is in the prompt or was generated
@group(0) @binding(4) var<storage, read_write> results: array<u32>;
@group(0) @binding(12) var<storage, read_write> next_step: NextStep;

const TOP: u32 = 20u;
const RESULT: u32 = 4u + 2u * TOP;
const OK: u32 = 0u;
const BAD_LOGITS: u32 = 1u;  // NaN or infinite: the run ends
const UNDECIDED: u32 = 2u;   // more candidates than fit: Python decides this one

// log(sum of exp(logit)) over the vocabulary, and whether any logit is bad. Every thread gets the same answer.
struct Summary {
  best: f32,     // the greatest score
  mass: f32,     // sum of exp(score - best)
  log_sum: f32,  // of the raw logits
  bad: bool,
}
var<workgroup> shared_best: array<vec3f, WG>;
var<workgroup> shared_mass: array<vec2f, WG>;

fn summary(t: u32) -> Summary {
  var best = vec2f(LOWEST); // of scores, of raw logits
  var bad = 0u;
  for (var b = t; b < BLOCKS; b += WG) {
    best = max(best, vec2f(blocks[b].best, blocks[b].raw_best));
    bad |= blocks[b].bad;
  }
  shared_best[t] = vec3f(best, f32(bad));
  workgroupBarrier();
  for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
    if (t < stride) {
      shared_best[t] = max(shared_best[t], shared_best[t + stride]);
    }
    workgroupBarrier();
  }
  let all_best = shared_best[0];
  var mass = vec2f(0.0);
  for (var b = t; b < BLOCKS; b += WG) {
    mass += vec2f(blocks[b].mass, blocks[b].raw_mass)
      * exp(vec2f(blocks[b].best, blocks[b].raw_best) - all_best.xy);
  }
  shared_mass[t] = mass;
  workgroupBarrier();
  for (var stride = WG / 2u; stride > 0u; stride /= 2u) {
    if (t < stride) {
      shared_mass[t] += shared_mass[t + stride];
    }
    workgroupBarrier();
  }
  let masses = shared_mass[0];
  return Summary(all_best.x, masses.x, all_best.y + log(masses.y), all_best.z > 0.0 || all_best.y <= LOWEST);
}

fn result_base() -> u32 {
  return (next_step.drawn % RING) * RESULT;
}

// To be called by one thread, last.
fn finish(id: u32, s: Summary, status: u32, top: u32) {
  let base = result_base();
  results[base] = id;
  results[base + 1u] = bitcast<u32>(logits[id] - s.log_sum);
  results[base + 2u] = select(status, BAD_LOGITS, s.bad);
  results[base + 3u] = top;
  ids[0] = id;
  seen[id / 32u] |= 1u << (id % 32u);
  next_step.position += next_step.n;
  next_step.n = 1u;
  next_step.drawn += 1u;
}
