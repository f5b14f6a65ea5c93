// Raw rows of a checkpoint -> f32 or f16 weights as the kernels read them: [N, K], K padded to a multiple of 32 by zeros.
//
// source: see lib/source.wgsl. destination: one part of the target; one thread writes one word (PER_WORD weights).
// Grid: words of the piece / WG over x, then y.
@group(0) @binding(1) var<storage, read_write> destination: array<u32>;

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(num_workgroups) grid: vec3u,
  @builtin(local_invocation_index) t: u32,
) {
  let j = job((workgroup.y * grid.x + workgroup.x) * WG + t, PER_WORD);
  if (!j.valid) {
    return;
  }
  let place = (j.row * piece.k + j.k) / PER_WORD;
  if (PER_WORD == 1u) {
    destination[place] = bitcast<u32>(value(j, 0u));
  } else {
    // Out of f16's range, pack2x16float gives whatever it likes.
    let pair = clamp(vec2f(value(j, 0u), value(j, 1u)), vec2f(-65504.0), vec2f(65504.0));
    destination[place] = pack2x16float(pair);
  }
}
