// out [n, STRIDE] = wte[id] + wpe[position]: the token's embedding plus, if POSITIONS, that of its place in the text.
//
// ids [n], wte [N, K] in any precision, wpe [N_CTX, K] in f32; K_TRUE features, padded to K, a multiple of 32, by zeros.
// Grid: 1 over x, n over y. A table larger than a binding is split by rows: this dispatch knows rows
// [ROW_BASE, ROW_BASE + PART) and leaves other tokens to its siblings.
@group(0) @binding(0) var<storage, read> ids: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4f>;
@group(0) @binding(2) var<storage, read> wpe: array<vec4f>;

fn x4(i: u32) -> vec4f {
  return wpe[i];
}

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let token = workgroup.y;
  let id = ids[token];
  if (id < ROW_BASE || id - ROW_BASE >= PART) {
    return;
  }
  for (var i = t; i < K / 4u; i += WG) {
    var v = weight4((id - ROW_BASE) * (K / 4u) + i);
    if (POSITIONS) {
      v += x4((step.position + token) * (K / 4u) + i);
    }
    // q4 has no exact zero, so that a table's padding may not be any.
    let inside = vec4u(4u * i, 4u * i + 1u, 4u * i + 2u, 4u * i + 3u) < vec4u(K_TRUE);
    out[token * (K / 4u) + i] = select(vec4f(0.0), v, inside);
  }
}
