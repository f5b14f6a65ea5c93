// Weights in f16, two to a word, read with core WGSL (no shader-f16): a chunk is one 16-byte load, CHUNK weights.
const CHUNK: u32 = 8u;
@group(0) @binding(8) var<storage, read> weights: array<vec4u>;

// Weights [4·i, 4·i + 4) of the matrix, rows padded to K.
fn weight4(i: u32) -> vec4f {
  let words = weights[i / 2u];
  let pair = select(words.xy, words.zw, (i & 1u) == 1u);
  return vec4f(unpack2x16float(pair.x), unpack2x16float(pair.y));
}

alias Chunk = vec4u;

fn load_chunk(c: u32) -> Chunk {
  return weights[c];
}

// A chunk times the CHUNK inputs from x4(i) on.
fn dot_chunk(w: Chunk, i: u32) -> f32 {
  return dot(vec4f(unpack2x16float(w.x), unpack2x16float(w.y)), x4(i))
       + dot(vec4f(unpack2x16float(w.z), unpack2x16float(w.w)), x4(i + 1u));
}
