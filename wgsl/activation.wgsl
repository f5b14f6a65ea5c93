// out = activate(x), elementwise over [n, STRIDE]. Grid: ceil(STRIDE / WG) over x, n over y.
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let i = workgroup.x * WG + t;
  if (i < STRIDE) {
    out[workgroup.y * STRIDE + i] = activate(x[workgroup.y * STRIDE + i]); // every activation keeps 0, so padding stays 0
  }
}
