// Raw rows of a checkpoint -> q8 or q4 weights as lib/weights_q8.wgsl and lib/weights_q4.wgsl read them.
//
// source: see lib/source.wgsl. One thread quantises one block of 32 weights: BITS 8: code = round(w / scale) with scale =
// max |w| / 127; BITS 4: code = round((w - minimum) / scale) with scale = (max - min) / 15, both as f16 has them.
// Grid: blocks of the piece / WG over x, then y.
@group(0) @binding(1) var<storage, read_write> destination: array<u32>; // codes
@group(0) @binding(2) var<storage, read_write> scales: array<u32>;      // a word a block

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(num_workgroups) grid: vec3u,
  @builtin(local_invocation_index) t: u32,
) {
  let j = job((workgroup.y * grid.x + workgroup.x) * WG + t, 32u);
  if (!j.valid) {
    return;
  }
  let block = (j.row * piece.k + j.k) / 32u;
  var low = value(j, 0u);
  var high = low;
  for (var i = 1u; i < 32u; i++) {
    let v = value(j, i);
    low = min(low, v);
    high = max(high, v);
  }
  if (BITS == 8u) {
    let scale = max(abs(low), abs(high)) / 127.0;
    scales[block] = bitcast<u32>(scale);
    for (var word = 0u; word < 8u; word++) {
      var v = vec4f(0.0);
      for (var i = 0u; i < 4u; i++) {
        v[i] = value(j, 4u * word + i);
      }
      let codes = select(vec4f(0.0), round(v / scale), scale > 0.0);
      destination[block * 8u + word] = pack4xI8(vec4i(clamp(codes, vec4f(-127.0), vec4f(127.0))));
    }
  } else {
    let packed = pack2x16float(clamp(vec2f((high - low) / 15.0, low), vec2f(-65504.0), vec2f(65504.0)));
    scales[block] = packed;
    let scale = unpack2x16float(packed);
    for (var word = 0u; word < 4u; word++) {
      var codes = 0u;
      for (var i = 0u; i < 8u; i++) {
        let code = select(0.0, round((value(j, 8u * word + i) - scale.y) / scale.x), scale.x > 0.0);
        codes |= u32(clamp(code, 0.0, 15.0)) << (4u * i);
      }
      destination[block * 4u + word] = codes;
    }
  }
}
