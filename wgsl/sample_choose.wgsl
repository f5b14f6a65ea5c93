// Applies top-k, top-p and min-p to the candidates and draws one, exactly as sampling.py does. Grid: 1.
// Ranks and sums are by counting: a few hundred candidates at most, and no sorting network to get wrong.
// DRAW false: only report the likeliest tokens, and leave the drawing to sample_full.
@group(0) @binding(5) var<storage, read> uniforms: array<f32>;
@group(0) @binding(6) var<storage, read_write> work: array<u32>; // see sample_collect

var<workgroup> scores: array<f32, CANDIDATES>; // first as they come, then in falling order, then their weights
var<workgroup> tokens: array<u32, CANDIDATES>;
var<workgroup> kept: atomic<u32>;
var<workgroup> chosen: atomic<u32>;

@compute @workgroup_size(WG)
fn main(@builtin(local_invocation_index) t: u32) {
  let s = summary(t);
  let found = work[BINS];
  let count = min(found, CANDIDATES);
  for (var i = t; i < count; i += WG) {
    scores[i] = bitcast<f32>(work[BINS + 1u + 2u * i]);
    tokens[i] = work[BINS + 2u + 2u * i];
  }
  if (t == 0u) {
    atomicStore(&kept, 0u);
    atomicStore(&chosen, 0xffffffffu);
  }
  workgroupBarrier();
  // Each thread finds the ranks of its candidates, and all move at once.
  var rank: array<u32, CANDIDATES / WG>;
  var score: array<f32, CANDIDATES / WG>;
  var token: array<u32, CANDIDATES / WG>;
  for (var m = 0u; m < CANDIDATES / WG; m++) {
    let i = m * WG + t;
    if (i < count) {
      score[m] = scores[i];
      token[m] = tokens[i];
      for (var j = 0u; j < count; j++) {
        if (scores[j] > score[m] || (scores[j] == score[m] && tokens[j] < token[m])) {
          rank[m]++;
        }
      }
    }
  }
  workgroupBarrier();
  for (var m = 0u; m < CANDIDATES / WG; m++) {
    if (m * WG + t < count) {
      scores[rank[m]] = exp(score[m] - s.best);
      tokens[rank[m]] = token[m];
    }
  }
  workgroupBarrier();
  let top = min(rules.top, count);
  for (var i = t; i < top; i += WG) {
    let base = result_base() + 4u;
    results[base + i] = tokens[i];
    results[base + TOP + i] = bitcast<u32>(logits[tokens[i]] - s.log_sum);
  }
  let limit = select(count, min(count, rules.top_k), rules.top_k > 0u);
  var wanted = s.mass;
  if (rules.top_k > 0u) {
    wanted = 0.0;
    for (var i = 0u; i < limit; i++) {
      wanted += scores[i];
    }
  }
  wanted *= rules.top_p;
  // The kept tokens are a prefix of the order: each thread looks where it ends.
  for (var i = t; i < limit; i += WG) {
    var before = 0.0;
    for (var j = 0u; j < i; j++) {
      before += scores[j];
    }
    if (i == 0u || ((rules.top_p >= 1.0 || before < wanted) && scores[i] >= rules.min_p)) {
      atomicMax(&kept, i + 1u);
    }
  }
  workgroupBarrier();
  let size = atomicLoad(&kept);
  var sum = 0.0;
  for (var i = 0u; i < size; i++) {
    sum += scores[i];
  }
  let drawn = uniforms[next_step.drawn % RING] * sum;
  for (var i = t; i < size; i += WG) {
    var running = 0.0; // the mass of this token and of those with lower ids
    for (var j = 0u; j < size; j++) {
      running += select(0.0, scores[j], tokens[j] <= tokens[i]);
    }
    if (running > drawn) {
      atomicMin(&chosen, tokens[i]);
    }
  }
  workgroupBarrier();
  if (DRAW && t == 0u) {
    let id = atomicLoad(&chosen);
    // Whether top-p ends among the candidates is only known here, where their masses are exact.
    let complete = work[BINS + 1u + 2u * CANDIDATES] == 1u || size < count || sum >= wanted;
    let undecided = found > CANDIDATES || id >= N || !complete;
    finish(min(id, N - 1u), s, select(OK, UNDECIDED, undecided), top);
  }
  for (var bin = t; bin <= BINS; bin += WG) {
    work[bin] = 0u; // for the next token
  }
}
