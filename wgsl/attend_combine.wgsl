// The end of a split attention: partial results [splits, N_HEAD, D_PAD + 4] -> out [STRIDE], heads side by side.
// Grid: ceil(STRIDE / WG). (Fused plans do this in the next matvec's prologue.)
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let i = workgroup.x * WG + t;
  if (i >= STRIDE) {
    return;
  }
  if (i >= N_HEAD * D) {
    out[i] = 0.0;
    return;
  }
  let head = i / D;
  let splits = (step.position + step.n + SPLIT - 1u) / SPLIT;
  var highest = -3.0e38;
  for (var s = 0u; s < splits; s++) {
    highest = max(highest, x[(s * N_HEAD + head) * (D_PAD + 4u)]);
  }
  var total = 0.0;
  var v = 0.0;
  for (var s = 0u; s < splits; s++) {
    let base = (s * N_HEAD + head) * (D_PAD + 4u);
    let weight = exp(x[base] - highest);
    total += weight * x[base + 1u];
    v += weight * x[base + 4u + i % D];
  }
  out[i] = v / total;
}
