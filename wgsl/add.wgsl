// out = a + b, elementwise over [n, STRIDE]. Grid: ceil(STRIDE / WG) over x, n over y.
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let i = workgroup.x * WG + t;
  if (i < STRIDE) {
    out[workgroup.y * STRIDE + i] = a[workgroup.y * STRIDE + i] + b[workgroup.y * STRIDE + i];
  }
}
