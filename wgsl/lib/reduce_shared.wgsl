// Sums over the threads of a workgroup through workgroup memory: right on every adapter.
// WG threads (a power of two) in groups of LANES (a power of two) consecutive ones. Every thread must call.
var<workgroup> reduce_slots: array<f32, WG>;

fn reduce_group(v: f32, t: u32, lanes: u32) -> f32 {
  workgroupBarrier(); // the slots may still be read by an earlier reduction
  reduce_slots[t] = v;
  workgroupBarrier();
  for (var half = lanes / 2u; half > 0u; half /= 2u) {
    if (t % lanes < half) {
      reduce_slots[t] += reduce_slots[t + half];
    }
    workgroupBarrier();
  }
  return reduce_slots[t - t % lanes];
}

// The sum over the LANES threads that share t's row.
fn sum_row(v: f32, t: u32) -> f32 {
  return reduce_group(v, t, LANES);
}

// The sum over the whole workgroup.
fn sum_workgroup(v: f32, t: u32) -> f32 {
  return reduce_group(v, t, WG);
}
