// Weights in q8: blocks of 32 along a row, each code a signed byte, times the block's scale (f32). A chunk is one 16-byte
// load: 16 codes.
const CHUNK: u32 = 16u;
@group(0) @binding(8) var<storage, read> weights: array<vec4u>;
@group(0) @binding(9) var<storage, read> scales: array<f32>;

// Weights [4·i, 4·i + 4) of the matrix, rows padded to K.
fn weight4(i: u32) -> vec4f {
  return scales[i / 8u] * vec4f(unpack4xI8(weights[i / 4u][i % 4u]));
}

struct Chunk {
  codes: vec4u,
  scale: f32,
}

fn load_chunk(c: u32) -> Chunk {
  return Chunk(weights[c], scales[c / 2u]);
}

// A chunk times the CHUNK inputs from x4(i) on.
fn dot_chunk(w: Chunk, i: u32) -> f32 {
  return w.scale * (dot(vec4f(unpack4xI8(w.codes.x)), x4(i)) + dot(vec4f(unpack4xI8(w.codes.y)), x4(i + 1u))
       + dot(vec4f(unpack4xI8(w.codes.z)), x4(i + 2u)) + dot(vec4f(unpack4xI8(w.codes.w)), x4(i + 3u)));
}
