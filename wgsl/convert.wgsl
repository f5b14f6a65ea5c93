// Raw rows of a checkpoint -> weights as the kernels read them: [N, K] with K padded to a multiple of 32 by zeros.
//
// source: rows [first, first + rows) of a [?, columns] array of SOURCE (0 F32, 1 F16, 2 BF16), packed.
// TRANSPOSED false: rows are output features. true: rows are input features (GPT-2's Conv1D), first is a multiple of 32.
// target: f32 or f16 pairs, for output features [part, part + part_rows).
// One thread writes one word. Grid: words of the piece / WG over x, then y.
struct Piece {
  first: u32,
  rows: u32,
  columns: u32,
  part: u32,
  part_rows: u32,
  k: u32,         // the target's padded row
  k_count: u32,   // how many input features this piece fills, from first on if TRANSPOSED (padding included at the end)
}
@group(0) @binding(0) var<storage, read> source: array<u32>;
@group(0) @binding(1) var<storage, read_write> destination: array<u32>;
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

// Weight k (counted from the piece's first input feature) of output feature o (counted from the piece's first one).
fn weight(o: u32, k: u32) -> f32 {
  if (TRANSPOSED) {
    return element(k, o);
  }
  return element(o, k);
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(num_workgroups) grid: vec3u,
  @builtin(local_invocation_index) t: u32,
) {
  let i = (workgroup.y * grid.x + workgroup.x) * WG + t;
  let words = piece.k_count / PER_WORD;
  // Neighbouring threads read neighbouring words of the source: along o if it is transposed, else along k.
  var o = i / words;
  var word = i % words;
  if (TRANSPOSED) {
    o = i % piece.part_rows;
    word = i / piece.part_rows;
  }
  if (o >= piece.part_rows || word >= words) {
    return;
  }
  let row_words = piece.k / PER_WORD;
  let k = word * PER_WORD;
  if (TRANSPOSED) {
    let place = o * row_words + piece.first / PER_WORD + word;
    if (PER_WORD == 1u) {
      destination[place] = bitcast<u32>(weight(piece.part + o, k));
    } else {
      destination[place] = pack2x16float(clamp_half(vec2f(weight(piece.part + o, k), weight(piece.part + o, k + 1u))));
    }
  } else {
    // Rows [first, first + rows) meet the part's rows [part, part + part_rows) in the o-th row of the overlap.
    let row = max(piece.first, piece.part) + o;
    if (row >= min(piece.first + piece.rows, piece.part + piece.part_rows)) {
      return;
    }
    let place = (row - piece.part) * row_words + word;
    if (PER_WORD == 1u) {
      destination[place] = bitcast<u32>(weight(row - piece.first, k));
    } else {
      destination[place] = pack2x16float(clamp_half(vec2f(weight(row - piece.first, k), weight(row - piece.first, k + 1u))));
    }
  }
}

// Out of f16's range, pack2x16float gives whatever it likes.
fn clamp_half(v: vec2f) -> vec2f {
  return clamp(v, vec2f(-65504.0), vec2f(65504.0));
}
