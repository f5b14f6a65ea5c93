// out [1, STRIDE] = row n - 1 of x [n, STRIDE]: only the last token's logits are wanted. Grid: ceil(STRIDE / WG).
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let i = workgroup.x * WG + t;
  if (i < STRIDE) {
    out[i] = x[(step.n - 1u) * STRIDE + i];
  }
}
