// What happens to a linear layer's sum before it is stored: bias, activation, residual. An item is a row.
// Constants: BIAS, RESIDUAL (switches), ACTIVATION, N (outputs), OUT_STRIDE (a row of out).
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> residual: array<f32>;

// Every epilogue declares this: how many rows of the matrix make up an item, which they are, what will be added to their
// sums (to be asked for early, so that the loads do not come last of all), and how the item is stored.
const SUMS: u32 = 1u;

fn rows_of(item: u32) -> vec2u {
  return vec2u(item);
}

// Bias before the activation, residual after it.
fn addends(token: u32, row: u32) -> vec2f {
  let r = min(row, N - 1u);
  var v = vec2f(0.0);
  if (BIAS) {
    v.x = bias[r];
  }
  if (RESIDUAL) {
    v.y = residual[token * OUT_STRIDE + r];
  }
  return v;
}

// A row past N is padding and becomes 0.
fn store(token: u32, row: u32, sums: vec2f, added: vec2f) {
  out[token * OUT_STRIDE + row] = select(0.0, activate(sums.x + added.x) + added.y, row < N);
}
