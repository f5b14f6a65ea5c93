// Heads turned by their token's position, see lib/heads: x and out [n, HEADS, D_PAD].
// A thread takes a pair. Grid: ceil(HEADS·D / 2 / WG) over x, n over y. (Fused plans do this in the linear layer's
// epilogue, or in heads.wgsl.)
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let item = workgroup.x * WG + t;
  if (item >= HEADS * HALF) {
    return;
  }
  let p = place(item % HALF); // as of the first query's head: keys turn alike
  let base = (workgroup.y * HEADS + item / HALF) * D_PAD;
  let v = turned(p, vec2f(x[base + p.d.x], x[base + p.d.y]), step.position + workgroup.y);
  out[base + p.d.x] = v.x;
  out[base + p.d.y] = v.y;
}
