// A linear layer for the n tokens of a step: out = epilogue(x·Wᵀ).
//
// x [n, K], W [N, K] with K padded to a multiple of 32 by zeros. Items and the epilogue as in matvec.wgsl.
// Each workgroup computes a tile of TILE tokens × TILE rows, each of its SIDE × SIDE threads a block of BLOCK × BLOCK, an
// even number where rows go in pairs; both operands pass through workgroup memory in slices of 16 along K.
// Grid: ceil(ROWS · SUMS / TILE) over x, ceil(n / TILE) over y. ROW_BASE, ROWS and PART as in matvec.wgsl.
@group(0) @binding(0) var<storage, read> x: array<vec4f>;

const SLICE: u32 = 16u;
const BLOCK: u32 = TILE / SIDE;
// Transposed, [k][token or row], so that the inner loop reads consecutive words; a word of padding per line
// spreads the transposing writes over the banks.
const LINE: u32 = TILE + 1u;
var<workgroup> x_tile: array<f32, SLICE * LINE>;
var<workgroup> w_tile: array<f32, SLICE * LINE>;

fn x4(i: u32) -> vec4f {
  return x[i];
}

// The item of a tile's line. A thread has the lines t % SIDE + SIDE · b, and both rows of a pair are its own: b and b + 1.
fn item_of(line: u32) -> u32 {
  return select(line, line % SIDE + SIDE * (line / (2u * SIDE)), SUMS == 2u);
}

fn row_of(item0: u32, line: u32) -> u32 {
  let rows = rows_of(ROW_BASE + item0 + item_of(line));
  let row = select(rows.x, rows.y, SUMS == 2u && line / SIDE % 2u == 1u);
  return min(row - ROW_BASE, PART - 1u);
}

@compute @workgroup_size(SIDE, SIDE)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let token0 = workgroup.y * TILE;
  let item0 = workgroup.x * (TILE / SUMS);
  var sums: array<array<f32, BLOCK>, BLOCK>;
  for (var k = 0u; k < K; k += SLICE) {
    for (var i = t; i < TILE * SLICE / 4u; i += SIDE * SIDE) {
      let line = i / (SLICE / 4u);
      let k4 = i % (SLICE / 4u);
      let xv = x[min(token0 + line, step.n - 1u) * (K / 4u) + k / 4u + k4];
      let wv = weight4(row_of(item0, line) * (K / 4u) + k / 4u + k4);
      for (var j = 0u; j < 4u; j++) {
        x_tile[(4u * k4 + j) * LINE + line] = xv[j];
        w_tile[(4u * k4 + j) * LINE + line] = wv[j];
      }
    }
    workgroupBarrier();
    for (var j = 0u; j < SLICE; j++) {
      var xs: array<f32, BLOCK>;
      var ws: array<f32, BLOCK>;
      for (var b = 0u; b < BLOCK; b++) {
        xs[b] = x_tile[j * LINE + t / SIDE + SIDE * b];
        ws[b] = w_tile[j * LINE + t % SIDE + SIDE * b];
      }
      for (var a = 0u; a < BLOCK; a++) {
        for (var b = 0u; b < BLOCK; b++) {
          sums[a][b] += xs[a] * ws[b];
        }
      }
    }
    workgroupBarrier();
  }
  for (var a = 0u; a < BLOCK; a++) {
    let token = token0 + t / SIDE + SIDE * a;
    for (var b = 0u; b < BLOCK; b += SUMS) {
      let item = item0 + item_of(t % SIDE + SIDE * b);
      if (token < step.n && item < ROWS) {
        let pair = vec2f(sums[a][b], sums[a][b + SUMS - 1u]);
        store(token, ROW_BASE + item, pair, addends(token, ROW_BASE + item));
      }
    }
  }
}
