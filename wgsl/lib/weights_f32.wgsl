// Weights in f32: a chunk is one 16-byte load, CHUNK weights.
const CHUNK: u32 = 4u;
@group(0) @binding(8) var<storage, read> weights: array<vec4f>;

// Weights [4·i, 4·i + 4) of the matrix, rows padded to K.
fn weight4(i: u32) -> vec4f {
  return weights[i];
}

alias Chunk = vec4f;

fn load_chunk(c: u32) -> Chunk {
  return weights[c];
}

// A chunk times the CHUNK inputs from x4(i) on.
fn dot_chunk(w: Chunk, i: u32) -> f32 {
  return dot(w, x4(i));
}
