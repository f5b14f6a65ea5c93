// Raw rows of a checkpoint, as they were uploaded: rows [first, first + rows) of a [?, columns] array of SOURCE (0 F32,
// 1 F16, 2 BF16), packed. TRANSPOSED false: rows are output features. true: rows are input features (GPT-2's Conv1D), and
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

fn element(row: u32, column: u32) -> f32 {
  if (row >= piece.rows || column >= piece.columns) {
    return 0.0;
  }
  let i = row * piece.columns + column;
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
