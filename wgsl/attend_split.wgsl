// Attention of one token, the cache split over workgroups: each takes one head and SPLIT positions and leaves a
// partial result [N_HEAD, D_PAD + 4] of its split: the highest score, the sum of exp(score - highest), two words of padding,
// then the weighted sum of values. The next kernel combines them (online softmax, Milakov & Gimelshein 2018).
//
// q [N_HEAD, D_PAD], kv [2, N_KV_HEAD, N_CTX, D_PAD], out [splits, N_HEAD, D_PAD + 4].
// Grid: N_HEAD over x, ceil(length / SPLIT) over y: the cost follows the true length.
@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read> kv: array<vec4f>;

var<workgroup> scores: array<f32, SPLIT>;

// q's padding is whatever the buffer held before; the cache's is zero, but 0 · NaN is not.
fn q4(head: u32, i: u32) -> vec4f {
  let v = q[head * (D_PAD / 4u) + i];
  if (D == D_PAD) {
    return v;
  }
  return select(vec4f(0.0), v, vec4u(4u * i, 4u * i + 1u, 4u * i + 2u, 4u * i + 3u) < vec4u(D));
}

@compute @workgroup_size(SPLIT)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let head = workgroup.x;
  let kv_head = head / (N_HEAD / N_KV_HEAD);
  let start = workgroup.y * SPLIT;
  let length = step.position + step.n;
  let here = min(length - min(start, length), SPLIT); // positions in this split
  let keys = (kv_head * N_CTX + start) * (D_PAD / 4u);
  var score = -3.0e38;
  if (t < here) {
    var products = vec4f(0.0);
    for (var i = 0u; i < D_PAD / 4u; i++) {
      products += q4(head, i) * kv[keys + t * (D_PAD / 4u) + i];
    }
    score = SCALE * (products.x + products.y + products.z + products.w);
  }
  scores[t] = score;
  workgroupBarrier();
  var highest = -3.0e38;
  for (var i = 0u; i < here; i++) {
    highest = max(highest, scores[i]);
  }
  workgroupBarrier();
  scores[t] = select(0.0, exp(score - highest), t < here);
  workgroupBarrier();
  let base = (workgroup.y * N_HEAD + head) * (D_PAD + 4u);
  if (t == 0u) {
    var total = 0.0;
    for (var i = 0u; i < here; i++) {
      total += scores[i];
    }
    out[base] = highest;
    out[base + 1u] = total;
  }
  let values = ((N_KV_HEAD + kv_head) * N_CTX + start) * (D_PAD / 4u);
  for (var i = t; i < D_PAD / 4u; i += SPLIT) {
    var v = vec4f(0.0);
    for (var j = 0u; j < here; j++) {
      v += scores[j] * kv[values + j * (D_PAD / 4u) + i];
    }
    for (var j = 0u; j < 4u; j++) {
      out[base + 4u + 4u * i + j] = v[j];
    }
  }
}
