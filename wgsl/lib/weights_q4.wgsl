// Weights in q4: blocks of 32 along a row, each code 4 bits (the lower half of a byte first): minimum + scale · code, with
// the block's scale and minimum in f16. A chunk is one 16-byte load: a block.
const CHUNK: u32 = 32u;
@group(0) @binding(8) var<storage, read> weights: array<vec4u>;
@group(0) @binding(9) var<storage, read> scales: array<u32>;

// Codes 0 to 3 of the lower half of a word.
fn codes4(word: u32) -> vec4f {
  return vec4f((vec4u(word) >> vec4u(0u, 4u, 8u, 12u)) & vec4u(15u));
}

// Weights [4·i, 4·i + 4) of the matrix, rows padded to K.
fn weight4(i: u32) -> vec4f {
  let scale = unpack2x16float(scales[i / 8u]);
  let word = weights[i / 8u][(i / 2u) % 4u] >> (16u * (i & 1u));
  return scale.y + scale.x * codes4(word);
}

struct Chunk {
  codes: vec4u,
  scale: u32,
}

fn load_chunk(c: u32) -> Chunk {
  return Chunk(weights[c], scales[c]);
}

// A chunk times the CHUNK inputs from x4(i) on.
fn dot_chunk(w: Chunk, i: u32) -> f32 {
  var products = 0.0;
  var sum = vec4f(0.0);
  for (var j = 0u; j < 4u; j++) {
    let low = x4(i + 2u * j);
    let high = x4(i + 2u * j + 1u);
    products += dot(codes4(w.codes[j]), low) + dot(codes4(w.codes[j] >> 16u), high);
    sum += low + high;
  }
  let scale = unpack2x16float(w.scale);
  return scale.x * products + scale.y * (sum.x + sum.y + sum.z + sum.w);
}
