// out = x / sqrt(mean of x² + EPSILON) · weight for each head: x and out [n, HEADS, D_PAD], weight [D].
// One workgroup of WG threads takes a head of a token. Grid: HEADS over x, n over y. (Fused plans do this in heads.wgsl.)
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read> norm: array<f32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let base = (workgroup.y * HEADS + workgroup.x) * D_PAD;
  var squares = 0.0;
  for (var i = t; i < D; i += WG) {
    squares += x[base + i] * x[base + i];
  }
  let scale = inverseSqrt(sum_workgroup(vec2f(squares, 0.0), t).x / f32(D) + EPSILON);
  for (var i = t; i < D; i += WG) {
    out[base + i] = x[base + i] * scale * norm[i];
  }
}
