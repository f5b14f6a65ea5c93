// Causal attention of the n tokens of a step over the cache, with online softmax: no score matrix in memory.
//
// q [n, N_HEAD, D_PAD], kv [2, N_KV_HEAD, N_CTX, D_PAD], out [n, STRIDE], heads side by side, padding set to 0.
// A workgroup takes one head and QUERIES tokens, and walks over the cache in tiles of KEYS positions, up to its last
// token's own; with WINDOW > 0 a token sees only so many, itself included, and the walk begins where the first one's
// begin. 16 threads share a query. Grid: N_HEAD over x, ceil(n / QUERIES) over y.
@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read> kv: array<vec4f>;

const QUERIES: u32 = 16u;
const KEYS: u32 = 32u;
const SHARE: u32 = 16u; // threads to a query
const D4: u32 = D_PAD / 4u;
const MINE: u32 = (D4 + SHARE - 1u) / SHARE; // vectors of the output that one thread keeps
const SLICE: u32 = 8u;  // vectors of a key that are staged at once
const LINE: u32 = KEYS + 1u;
var<workgroup> scores: array<f32, QUERIES * KEYS>;
var<workgroup> key_tile: array<vec4f, SLICE * LINE>; // [vector][key]

fn q4(token: u32, head: u32, i: u32) -> vec4f {
  let v = q[(token * N_HEAD + head) * D4 + i];
  if (D == D_PAD) {
    return v;
  }
  // q's padding is whatever the buffer held before; the cache's is zero, but 0 · NaN is not.
  return select(vec4f(0.0), v, vec4u(4u * i, 4u * i + 1u, 4u * i + 2u, 4u * i + 3u) < vec4u(D));
}

// Of the positions up to a token's own, how many lie before its window.
fn out_of_sight(visible: u32) -> u32 {
  return select(0u, visible - min(visible, WINDOW), WINDOW > 0u);
}

@compute @workgroup_size(SHARE, QUERIES)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_id) thread: vec3u) {
  let head = workgroup.x;
  let kv_head = head / (N_HEAD / N_KV_HEAD);
  let token = workgroup.y * QUERIES + thread.y;
  let query = min(token, step.n - 1u);
  let visible = step.position + query + 1u; // positions that this token may see
  let before = out_of_sight(visible);
  let begin = out_of_sight(step.position + workgroup.y * QUERIES + 1u) / KEYS * KEYS;
  let end = step.position + min((workgroup.y + 1u) * QUERIES, step.n); // and the last one of the workgroup
  let keys = kv_head * N_CTX * D4;
  let values = (N_KV_HEAD + kv_head) * N_CTX * D4;
  var highest = -3.0e38;
  var total = 0.0;
  var sums: array<vec4f, MINE>;
  for (var start = begin; start < end; start += KEYS) {
    // The tile's keys go to workgroup memory once, SLICE vectors at a time, for all of its queries.
    var products: array<vec4f, KEYS / SHARE>;
    for (var m = 0u; m < KEYS / SHARE; m++) {
      products[m] = vec4f(0.0); // the declaration should do; on one implementation it does so only the first time around
    }
    for (var first = 0u; first < D4; first += SLICE) {
      for (var p = thread.y * SHARE + thread.x; p < KEYS * SLICE; p += SHARE * QUERIES) {
        let position = min(start + p / SLICE, end - 1u);
        key_tile[p % SLICE * LINE + p / SLICE] = kv[keys + position * D4 + min(first + p % SLICE, D4 - 1u)];
      }
      workgroupBarrier();
      for (var i = 0u; i < min(SLICE, D4 - first); i++) {
        let qv = q4(query, head, first + i);
        for (var m = 0u; m < KEYS / SHARE; m++) {
          products[m] += qv * key_tile[i * LINE + thread.x + m * SHARE];
        }
      }
      workgroupBarrier();
    }
    for (var m = 0u; m < KEYS / SHARE; m++) {
      let j = thread.x + m * SHARE;
      let score = SCALE * (products[m].x + products[m].y + products[m].z + products[m].w);
      scores[thread.y * KEYS + j] = select(-3.0e38, score, start + j >= before && start + j < visible);
    }
    workgroupBarrier();
    var tile_highest = highest;
    for (var j = 0u; j < KEYS; j++) {
      tile_highest = max(tile_highest, scores[thread.y * KEYS + j]);
    }
    let keep = exp(highest - tile_highest); // what earlier tiles count for now
    highest = tile_highest;
    total *= keep;
    for (var m = 0u; m < MINE; m++) {
      sums[m] *= keep;
    }
    workgroupBarrier();
    // Each thread takes the exponentials of its own keys; past what the query may see they are 0.
    for (var j = thread.x; j < KEYS; j += SHARE) {
      let place = thread.y * KEYS + j;
      let seen = start + j >= before && start + j < visible;
      scores[place] = select(0.0, exp(scores[place] - highest), seen);
    }
    workgroupBarrier();
    let here = min(KEYS, end - start);
    for (var j = 0u; j < here; j++) {
      let weight = scores[thread.y * KEYS + j];
      total += weight;
      for (var m = 0u; m < MINE; m++) {
        let i = min(thread.x + m * SHARE, D4 - 1u);
        sums[m] += weight * kv[values + (start + j) * D4 + i];
      }
    }
    workgroupBarrier();
  }
  if (token < step.n) {
    for (var m = 0u; m < MINE; m++) {
      for (var j = 0u; j < 4u; j++) {
        let d = 4u * (thread.x + m * SHARE) + j;
        if (d < D) {
          out[token * STRIDE + head * D + d] = sums[m][j] / total;
        }
      }
    }
    if (head == 0u) {
      for (var i = N_HEAD * D + thread.x; i < STRIDE; i += SHARE) {
        out[token * STRIDE + i] = 0.0;
      }
    }
  }
}
