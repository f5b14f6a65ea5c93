// What happens to the sums of a QKV matrix: bias, rotation; then queries go into q [n, N_HEAD, D_PAD], keys and values
// straight into the cache kv [2, N_KV_HEAD, N_CTX, D_PAD]. Needs lib/heads. An item is a row, or the pair of rows that
// turn together. Constants: BIAS (a switch), N (rows).
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> kv: array<f32>;

fn rows_of(item: u32) -> vec2u {
  return rows_at(place(item));
}

fn addends(_token: u32, item: u32) -> vec2f {
  if (BIAS) {
    let rows = min(rows_of(item), vec2u(N - 1u));
    return vec2f(bias[rows.x], bias[rows.y]);
  }
  return vec2f(0.0);
}

fn put(token: u32, head: u32, d: u32, v: f32) {
  if (head < N_HEAD) {
    out[(token * N_HEAD + head) * D_PAD + d] = v;
  } else {
    kv[((head - N_HEAD) * N_CTX + step.position + token) * D_PAD + d] = v;
  }
}

fn store(token: u32, item: u32, sums: vec2f, added: vec2f) {
  let p = place(item);
  let v = turned(p, sums + added, step.position + token);
  put(token, p.head, p.d.x, v.x);
  if (SUMS == 2u) {
    put(token, p.head, p.d.y, v.y);
  }
}
