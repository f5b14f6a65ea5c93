// What happens to the sums of a matrix of gates, then ups, N rows each: out = activate(gate) · up (Shazeer 2020), its
// padding set to 0. An item is a gate and its up. Constants: BIAS (a switch), ACTIVATION, N, OUT_STRIDE (a row of out).
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;

const SUMS: u32 = 2u;

fn rows_of(item: u32) -> vec2u {
  return vec2u(item, N + item);
}

fn addends(_token: u32, item: u32) -> vec2f {
  if (BIAS) {
    let i = min(item, N - 1u);
    return vec2f(bias[i], bias[N + i]);
  }
  return vec2f(0.0);
}

fn store(token: u32, item: u32, sums: vec2f, added: vec2f) {
  let v = sums + added;
  out[token * OUT_STRIDE + item] = select(0.0, activate(v.x) * v.y, item < N);
}
