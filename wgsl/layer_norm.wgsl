// out = (x - mean) / sqrt(variance + EPSILON) · weight + bias, row by row (Ba et al. 2016).
//
// x and out [n, K], K_TRUE features padded to K by zeros. One workgroup a row. Grid: 1 over x, n over y.
// LAST: only row n - 1 of x, which becomes out's first.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(5) var<storage, read> norm: array<f32>; // weight, then bias NORM_STRIDE later

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let source = select(workgroup.y, step.n - 1u, LAST) * K;
  var sum = 0.0;
  for (var i = t; i < K_TRUE; i += WG) {
    sum += x[source + i];
  }
  let mean = sum_workgroup(vec2f(sum, 0.0), t).x / f32(K_TRUE);
  var squares = 0.0;
  for (var i = t; i < K_TRUE; i += WG) {
    let v = x[source + i] - mean;
    squares += v * v;
  }
  let scale = inverseSqrt(sum_workgroup(vec2f(squares, 0.0), t).x / f32(K_TRUE) + EPSILON);
  for (var i = t; i < K; i += WG) {
    let v = (x[source + i] - mean) * scale * norm[i] + norm[NORM_STRIDE + i];
    out[workgroup.y * K + i] = select(0.0, v, i < K_TRUE);
  }
}
