// Attention weights, to be looked at: softmax(SCALE · q·kᵀ) of some queries of a step, summed over cells of keys.
//
// q [n, N_HEAD, D_PAD], kv [2, N_KV_HEAD, N_CTX, D_PAD], of which only the keys are read.
// view: the first query's place in the step, the queries, the keys to a cell, the cells to a row, then a head's number
// for each workgroup in x. out [heads, queries, cells]: cell c has the weight on positions [c · cell, (c + 1) · cell),
// and 0 for those that the query does not see.
// A workgroup takes one head and one query. Its WG threads walk twice over the keys: for the highest score and the sum
// (online softmax, Milakov & Gimelshein 2018), then for the cells. Grid: heads over x, queries over y.
@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read> view: array<u32>;
@group(0) @binding(4) var<storage, read> kv: array<vec4f>;

const D4: u32 = D_PAD / 4u;
const LOWEST: f32 = -3.0e38;
var<workgroup> highest_of: array<f32, WG>;
var<workgroup> total_of: array<f32, WG>;

// q's padding is whatever the buffer held before; the cache's is zero, but 0 · NaN is not.
fn q4(row: u32, i: u32) -> vec4f {
  let v = q[row * D4 + i];
  if (D == D_PAD) {
    return v;
  }
  return select(vec4f(0.0), v, vec4u(4u * i, 4u * i + 1u, 4u * i + 2u, 4u * i + 3u) < vec4u(D));
}

fn score(row: u32, key: u32) -> f32 {
  var product = vec4f(0.0);
  for (var i = 0u; i < D4; i++) {
    product += q4(row, i) * kv[key * D4 + i];
  }
  return SCALE * (product.x + product.y + product.z + product.w);
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let query = view[0] + workgroup.y;
  let cell = view[2];
  let cells = view[3];
  let head = view[4u + workgroup.x];
  let row = query * N_HEAD + head;
  let keys = head / (N_HEAD / N_KV_HEAD) * N_CTX;
  let end = step.position + query + 1u; // positions that this token may see
  let start = select(0u, end - min(end, WINDOW), WINDOW > 0u);
  var highest = LOWEST;
  var total = 0.0;
  for (var position = start + t; position < end; position += WG) {
    let s = score(row, keys + position);
    let higher = max(highest, s);
    total = total * exp(highest - higher) + exp(s - higher);
    highest = higher;
  }
  highest_of[t] = highest;
  total_of[t] = total;
  workgroupBarrier();
  highest = LOWEST;
  for (var i = 0u; i < WG; i++) {
    highest = max(highest, highest_of[i]);
  }
  total = 0.0;
  for (var i = 0u; i < WG; i++) {
    total += total_of[i] * exp(highest_of[i] - highest);
  }
  let base = (workgroup.x * view[1] + workgroup.y) * cells;
  for (var c = t; c < cells; c += WG) {
    var sum = 0.0;
    for (var position = max(start, c * cell); position < min(end, (c + 1u) * cell); position++) {
      sum += exp(score(row, keys + position) - highest);
    }
    out[base + c] = sum / total;
  }
}
