// Sums over the threads of a workgroup with subgroup operations, for any subgroup size up to LANES.
// WG threads in groups of LANES consecutive ones; subgroups are runs of consecutive threads. Every thread must call,
// in uniform control flow: subgroupAdd is undefined elsewhere.
var<workgroup> reduce_slots: array<vec2f, WG>;

fn reduce_group(v: vec2f, t: u32, lanes: u32) -> vec2f {
  let sum = subgroupAdd(v);
  if (SUBGROUP_SIZE == lanes) {
    return sum;
  }
  let size = subgroupAdd(1u); // the subgroup's actual size
  workgroupBarrier(); // the slots may still be read by an earlier reduction
  if (t % size == 0u) {
    reduce_slots[t / size] = sum;
  }
  workgroupBarrier();
  var total = vec2f(0.0);
  let first = (t - t % lanes) / size;
  for (var slot = first; slot < first + lanes / size; slot++) {
    total += reduce_slots[slot];
  }
  return total;
}

// The sums over the LANES threads that share t's row.
fn sum_lanes(v: vec2f, t: u32) -> vec2f {
  return reduce_group(v, t, LANES);
}

// The sums over the whole workgroup.
fn sum_workgroup(v: vec2f, t: u32) -> vec2f {
  return reduce_group(v, t, WG);
}
