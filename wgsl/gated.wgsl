// out [n, STRIDE] = activate(first half of x) · second half (Shazeer 2020), N features each, padding set to 0.
// x [n, X_STRIDE]. Grid: ceil(STRIDE / WG) over x, n over y. (Fused plans do this in the linear layer's epilogue.)
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let i = workgroup.x * WG + t;
  if (i < STRIDE) {
    let source = workgroup.y * X_STRIDE + min(i, N - 1u);
    out[workgroup.y * STRIDE + i] = select(0.0, activate(x[source]) * x[source + N], i < N);
  }
}
