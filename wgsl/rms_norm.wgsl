// out = x / sqrt(mean of x² + EPSILON) · weight, row by row (Zhang & Sennrich 2019).
//
// x and out [n, K], K_TRUE features padded to K by zeros. One workgroup a row. Grid: 1 over x, n over y.
// LAST: only row n - 1 of x, which becomes out's first.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read> norm: array<f32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let source = select(workgroup.y, step.n - 1u, LAST) * K;
  var squares = 0.0;
  for (var i = t; i < K_TRUE; i += WG) {
    squares += x[source + i] * x[source + i];
  }
  let scale = inverseSqrt(sum_workgroup(vec2f(squares, 0.0), t).x / f32(K_TRUE) + EPSILON);
  for (var i = t; i < K; i += WG) {
    out[workgroup.y * K + i] = select(0.0, x[source + i] * scale * norm[i], i < K_TRUE);
  }
}
