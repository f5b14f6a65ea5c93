// Blocks of a GGUF file -> q8 or q4 weights as lib/weights_q8.wgsl and lib/weights_q4.wgsl read them, the same numbers.
//
// source: rows of Q8_0 (BITS 8), Q4_0 or Q4_1 (BITS 4), see lib/source.wgsl. One thread takes one block of 32 weights.
// A Q4_0 block's weights are scale * (code - 8): its minimum is -8 * scale, which f16 holds exactly.
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
  let start = (j.line * piece.columns + j.place) / 32u * BLOCK_BYTES;
  if (BITS == 8u) {
    scales[block] = bitcast<u32>(half_at(start));
    for (var word = 0u; word < 8u; word++) {
      let place = start + 2u + 4u * word;
      destination[block * 8u + word] = pair_at(place) | (pair_at(place + 2u) << 16u);
    }
  } else {
    let scale = pair_at(start);
    if (SOURCE == 4u) {
      scales[block] = scale | (pair_at(start + 2u) << 16u);
    } else {
      scales[block] = scale | (pack2x16float(vec2f(-8.0 * half_at(start), 0.0)) << 16u);
    }
    for (var word = 0u; word < 4u; word++) {
      // Codes 0 to 15 are the lower halves of the block's 16 bytes, codes 16 to 31 the upper ones.
      var codes = 0u;
      for (var i = 0u; i < 8u; i++) {
        let byte = byte_at(start + BLOCK_BYTES - 16u + 8u * (word & 1u) + i);
        codes |= ((byte >> (4u * (word >> 1u))) & 15u) << (4u * i);
      }
      destination[block * 4u + word] = codes;
    }
  }
}
