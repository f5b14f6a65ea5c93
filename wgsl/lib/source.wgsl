// Raw rows of a checkpoint, as they were uploaded: rows [first, first + rows) of a [?, columns] array of SOURCE (0 F32,
// 1 F16, 2 BF16, 3 Q4_0, 4 Q4_1, 5 Q5_0, 6 Q5_1, 7 Q8_0, 8 Q4_K, 9 Q5_K, 10 Q6_K: blocks as app/engine/weights/blocks.py
// reads them), packed. TRANSPOSED false: rows are output features. true: rows are input features (GPT-2's Conv1D), and
// first is a multiple of 32. They fill a part of the target: output features [part, part + part_rows).
struct Piece {
  first: u32,
  rows: u32,
  columns: u32,
  part: u32,
  part_rows: u32,
  k: u32,       // the target's padded row
  k_count: u32, // how many input features this piece fills, from first on if TRANSPOSED (padding included at the end)
}
@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(10) var<uniform> piece: Piece;

const BLOCK_BYTES: u32 = array<u32, 11>(4u, 2u, 2u, 18u, 20u, 22u, 24u, 34u, 144u, 176u, 210u)[SOURCE];
const BLOCK_SIZE: u32 = select(select(256u, 32u, SOURCE < 8u), 1u, SOURCE < 3u);

fn byte_at(place: u32) -> u32 {
  return (source[place / 4u] >> (8u * (place & 3u))) & 0xffu;
}

// Two bytes from an even place on.
fn pair_at(place: u32) -> u32 {
  return (source[place / 4u] >> (8u * (place & 2u))) & 0xffffu;
}

fn half_at(place: u32) -> f32 {
  return unpack2x16float(pair_at(place)).x;
}

fn signed_at(place: u32) -> f32 {
  return f32(i32(byte_at(place) << 24u) >> 24u);
}

// Weight `i` of a block of 32 that begins at byte `start`.
fn small_block(start: u32, i: u32) -> f32 {
  if (SOURCE == 7u) {
    return half_at(start) * signed_at(start + 2u + i);
  }
  // The codes' lower four bits are the block's last 16 bytes; for Q5 the fifth bits are the four bytes before.
  var code = (byte_at(start + BLOCK_BYTES - 16u + (i & 15u)) >> (4u * (i >> 4u))) & 15u;
  if (SOURCE == 5u || SOURCE == 6u) {
    code |= ((byte_at(start + BLOCK_BYTES - 20u + i / 8u) >> (i & 7u)) & 1u) << 4u;
  }
  if (SOURCE == 3u) {
    return half_at(start) * (f32(code) - 8.0);
  }
  if (SOURCE == 5u) {
    return half_at(start) * (f32(code) - 16.0);
  }
  return half_at(start) * f32(code) + half_at(start + 2u);
}

// Weight `i` of a block of 256 that begins at byte `start`.
fn large_block(start: u32, i: u32) -> f32 {
  if (SOURCE == 10u) {
    let part = i / 128u; // 64 bytes of lower halves, 32 of upper pairs
    let low = (byte_at(start + 64u * part + i % 64u) >> (4u * ((i % 128u) / 64u))) & 15u;
    let high = (byte_at(start + 128u + 32u * part + i % 32u) >> (2u * ((i % 128u) / 32u))) & 3u;
    let scale = half_at(start + 208u) * signed_at(start + 192u + i / 16u);
    return scale * (f32(low | (high << 4u)) - 32.0);
  }
  let run = i / 32u;
  // Six bits each of factor and offset: those of the last four runs have their upper two bits beside the first four's.
  var factor = byte_at(start + 4u + run) & 63u;
  var offset = byte_at(start + 8u + run) & 63u;
  if (run >= 4u) {
    let both = byte_at(start + 8u + run);
    factor = (both & 15u) | ((byte_at(start + run) >> 6u) << 4u);
    offset = (both >> 4u) | ((byte_at(start + 4u + run) >> 6u) << 4u);
  }
  var code = (byte_at(start + BLOCK_BYTES - 128u + 32u * (run / 2u) + i % 32u) >> (4u * (run & 1u))) & 15u;
  if (SOURCE == 9u) {
    code |= ((byte_at(start + 16u + i % 32u) >> run) & 1u) << 4u;
  }
  return half_at(start) * f32(factor) * f32(code) - half_at(start + 2u) * f32(offset);
}

fn element(row: u32, column: u32) -> f32 {
  if (row >= piece.rows || column >= piece.columns) {
    return 0.0;
  }
  let i = row * piece.columns + column;
  if (BLOCK_SIZE == 32u) {
    return small_block(i / 32u * BLOCK_BYTES, i % 32u);
  }
  if (BLOCK_SIZE == 256u) {
    return large_block(i / 256u * BLOCK_BYTES, i % 256u);
  }
  if (SOURCE == 0u) {
    return bitcast<f32>(source[i]);
  }
  let half = (source[i / 2u] >> (16u * (i & 1u))) & 0xffffu;
  if (SOURCE == 1u) {
    return unpack2x16float(half).x;
  }
  return bitcast<f32>(half << 16u);
}

// What one thread converts: `size` input features of one output feature.
struct Job {
  valid: bool,
  row: u32,   // of the part
  k: u32,     // first input feature, of the whole row
  line: u32,  // where they are in the piece
  place: u32,
}

fn job(i: u32, size: u32) -> Job {
  let count = piece.k_count / size;
  if (TRANSPOSED) {
    // Neighbouring threads take neighbouring output features, which are neighbours in the source.
    let o = i % piece.part_rows;
    let k = i / piece.part_rows * size;
    return Job(k < piece.k_count, o, piece.first + k, piece.part + o, k);
  }
  let row = max(piece.first, piece.part) + i / count;
  let k = i % count * size;
  return Job(row < min(piece.first + piece.rows, piece.part + piece.part_rows), row - piece.part, k, row - piece.first, k);
}

// Input feature j of a job.
fn value(job: Job, j: u32) -> f32 {
  if (TRANSPOSED) {
    return element(job.place + j, job.line);
  }
  return element(job.line, job.place + j);
}
