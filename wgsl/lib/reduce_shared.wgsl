// Sums over the threads of a workgroup through workgroup memory: right on every adapter.
// WG threads (a power of two) in groups of LANES (a power of two) consecutive ones. Every thread must call.
var<workgroup> reduce_slots: array<vec2f, WG>;

fn reduce_group(v: vec2f, t: u32, lanes: u32) -> vec2f {
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

// The sums over the LANES threads that share t's row.
fn sum_lanes(v: vec2f, t: u32) -> vec2f {
  return reduce_group(v, t, LANES);
}

// The sums over the whole workgroup.
fn sum_workgroup(v: vec2f, t: u32) -> vec2f {
  return reduce_group(v, t, WG);
}
