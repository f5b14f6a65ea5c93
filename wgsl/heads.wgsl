// qkv [n, STRIDE] -> queries in out [n, N_HEAD, D_PAD], keys and values in the cache kv [2, N_KV_HEAD, N_CTX, D_PAD] at
// positions [position, position + n). NORMED: each head of queries and keys is RMS-normed first (Qwen3), with a weight
// [D] for all queries' heads and another, NORM_STRIDE later, for the keys'. Then they are turned, see lib/heads.
// One workgroup of WG threads takes a head of a token. Grid: N_HEAD + 2·N_KV_HEAD over x, n over y.
@group(0) @binding(0) var<storage, read> qkv: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(4) var<storage, read_write> kv: array<f32>;
@group(0) @binding(5) var<storage, read> norm: array<f32>;

const ITEMS: u32 = D / SUMS; // of a head

fn item_of(head: u32, i: u32) -> u32 {
  if (SUMS == 1u && QKV_INTERLEAVED) {
    return (head % N_HEAD * 3u + head / N_HEAD) * D + i;
  }
  return head * ITEMS + i;
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let head = workgroup.x;
  let token = workgroup.y;
  let base = token * STRIDE;
  var scale = 1.0;
  if (NORMED) {
    var squares = 0.0;
    for (var i = t; i < ITEMS; i += WG) {
      let rows = rows_at(place(item_of(head, i)));
      let v = vec2f(qkv[base + rows.x], select(0.0, qkv[base + rows.y], SUMS == 2u));
      squares += dot(v, v);
    }
    scale = inverseSqrt(sum_workgroup(vec2f(squares, 0.0), t).x / f32(D) + EPSILON);
  }
  for (var i = t; i < ITEMS; i += WG) {
    let p = place(item_of(head, i));
    let rows = rows_at(p);
    var v = vec2f(qkv[base + rows.x], qkv[base + rows.y]);
    if (NORMED && head < N_HEAD + N_KV_HEAD) {
      let weight = select(0u, NORM_STRIDE, head >= N_HEAD);
      v *= scale * vec2f(norm[weight + p.d.x], norm[weight + p.d.y]);
    }
    v = turned(p, v, step.position + token);
    for (var j = 0u; j < SUMS; j++) {
      if (head < N_HEAD) {
        out[(token * N_HEAD + head) * D_PAD + p.d[j]] = v[j];
      } else {
        kv[((head - N_HEAD) * N_CTX + step.position + token) * D_PAD + p.d[j]] = v[j];
      }
    }
  }
}
