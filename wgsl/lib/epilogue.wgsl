// What happens to a linear layer's sum before it is stored: bias, activation, residual; then either a plain row, or
// queries into q [n, N_HEAD, D_PAD] and keys and values straight into the cache kv [2, N_KV_HEAD, N_CTX, D_PAD].
// Constants: BIAS, RESIDUAL, QKV (switches), ACTIVATION, N (outputs), OUT_STRIDE (a row of out), N_HEAD, N_KV_HEAD, D, D_PAD, N_CTX.
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> residual: array<f32>;
@group(0) @binding(4) var<storage, read_write> kv: array<f32>;

// What will be added to the sum of output `row` of token `token`: bias before the activation, residual after it. To be
// asked for early, so that the loads do not come last of all.
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

// Store the sum of output `row` of token `token`; a row past N is padding and becomes 0.
fn store(token: u32, row: u32, sum: f32, added: vec2f) {
  if (row >= N) {
    if (!QKV) {
      out[token * OUT_STRIDE + row] = 0.0;
    }
    return;
  }
  let v = activate(sum + added.x) + added.y;
  if (!QKV) {
    out[token * OUT_STRIDE + row] = v;
    return;
  }
  let head = row / D; // q heads, then k heads, then v heads
  let d = row % D;
  if (head < N_HEAD) {
    out[(token * N_HEAD + head) * D_PAD + d] = v;
  } else {
    kv[((head - N_HEAD) * N_CTX + step.position + token) * D_PAD + d] = v;
  }
}
