// Attention of one token, the cache split over workgroups: each takes one head and SPLIT positions and leaves a
// partial result [N_HEAD, D_PAD + 4] of its split: the highest score, the sum of exp(score - highest), two words of padding,
// then the weighted sum of values. The next kernel combines them (online softmax, Milakov & Gimelshein 2018).
//
// q [N_HEAD, D_PAD], kv [2, N_KV_HEAD, N_CTX, D_PAD], out [splits, N_HEAD, D_PAD + 4].
// Grid: N_HEAD over x, ceil(length / SPLIT) over y: the cost follows the true length. WINDOW > 0: only the last so many
// positions count; a split before them does next to nothing.
// WG threads, a multiple of SPLIT: WG / SPLIT of them share a key, and D_PAD / 4 of them a value, so that every load is
// one of a few in a row and nobody walks alone through 64 positions.
@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4f>;
@group(0) @binding(4) var<storage, read> kv: array<vec4f>;

const D4: u32 = D_PAD / 4u;
const SHARE: u32 = WG / SPLIT;
const LINE: u32 = min(D4, WG);     // threads to a value
const GROUPS: u32 = WG / LINE;     // values at once
var<workgroup> products: array<f32, WG>;
var<workgroup> scores: array<f32, SPLIT>;
var<workgroup> sums: array<vec4f, GROUPS * LINE>;

// q's padding is whatever the buffer held before; the cache's is zero, but 0 · NaN is not.
fn q4(head: u32, i: u32) -> vec4f {
  let v = q[head * D4 + i];
  if (D == D_PAD) {
    return v;
  }
  return select(vec4f(0.0), v, vec4u(4u * i, 4u * i + 1u, 4u * i + 2u, 4u * i + 3u) < vec4u(D));
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let head = workgroup.x;
  let kv_head = head / (N_HEAD / N_KV_HEAD);
  let start = workgroup.y * SPLIT;
  let length = step.position + step.n;
  let before = select(0u, length - min(length, WINDOW), WINDOW > 0u); // positions out of sight
  let hidden = min(before - min(before, start), SPLIT); // of them in this split
  let here = select(min(length - min(start, length), SPLIT), 0u, hidden == SPLIT); // positions in this split
  let keys = (kv_head * N_CTX + start) * D4;
  let key = min(t / SHARE, max(here, 1u) - 1u); // clamped: the loads then need no branch
  var product = vec4f(0.0);
  for (var i = t % SHARE; i < D4; i += SHARE) {
    product += q4(head, i) * kv[keys + key * D4 + i];
  }
  products[t] = product.x + product.y + product.z + product.w;
  workgroupBarrier();
  if (t < SPLIT) {
    var score = 0.0;
    for (var i = 0u; i < SHARE; i++) {
      score += products[t * SHARE + i];
    }
    scores[t] = select(-3.0e38, SCALE * score, t >= hidden && t < here);
  }
  workgroupBarrier();
  var highest = -3.0e38;
  for (var i = 0u; i < SPLIT; i++) {
    highest = max(highest, scores[i]);
  }
  workgroupBarrier();
  if (t < SPLIT) {
    scores[t] = select(0.0, exp(scores[t] - highest), t >= hidden && t < here);
  }
  workgroupBarrier();
  let base = (workgroup.y * N_HEAD + head) * (D4 + 1u);
  if (t == 0u) {
    var total = 0.0;
    for (var i = 0u; i < SPLIT; i++) {
      total += scores[i];
    }
    out[base] = vec4f(highest, total, 0.0, 0.0);
  }
  let values = ((N_KV_HEAD + kv_head) * N_CTX + start) * D4;
  for (var first = 0u; first < D4; first += LINE) {
    let i = first + t % LINE;
    var v = vec4f(0.0);
    if (t < GROUPS * LINE && i < D4) {
      for (var j = t / LINE; j < here; j += GROUPS) {
        v += scores[j] * kv[values + j * D4 + i];
      }
      sums[t] = v;
    }
    workgroupBarrier();
    if (t < LINE && i < D4) {
      for (var group = 1u; group < GROUPS; group++) {
        v += sums[group * LINE + t];
      }
      out[base + 1u + i] = v;
    }
    workgroupBarrier();
  }
}
