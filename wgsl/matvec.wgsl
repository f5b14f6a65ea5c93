// A linear layer for one token: out = epilogue(W·prologue(x)).
//
// x [K], W [N, K] with K padded to a multiple of 32 by zeros, out [OUT_STRIDE] with its padding set to 0.
// LANES threads share a row and read it in 16-byte chunks; a workgroup of WG threads takes WG / LANES rows.
// Grid: ceil(ROWS / (WG / LANES)) workgroups over x, then y. Rows [ROW_BASE, ROW_BASE + ROWS) of the output; the weights
// bound here start at ROW_BASE and hold PART rows (a matrix larger than a binding is split by rows).
//
// PROLOGUE 0: x as it is.
// PROLOGUE 1: layer norm of x [K_TRUE features], recomputed by each workgroup: cheaper than a dispatch of its own.
// PROLOGUE 2: x is attend_split's partial results [splits, N_HEAD, D_PAD + 4]; they are combined on the way in.
@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(5) var<storage, read> norm: array<f32>; // weight, then bias NORM_STRIDE later

var<workgroup> staged: array<vec4f, STAGED>; // the prologue's result; STAGED is K / 4, or 1 without a prologue
var<workgroup> split_weights: array<f32, SPLIT_WEIGHTS>; // N_HEAD · N_CTX / SPLIT, or 1

fn x4(i: u32) -> vec4f {
  if (PROLOGUE == 0u) {
    return x[i];
  }
  return staged[i];
}

fn norm_prologue(t: u32) {
  // LAST: x is a whole chunk of tokens, and only its last row is wanted.
  let base = select(0u, (step.n - 1u) * (K / 4u), LAST);
  var sum = 0.0;
  for (var i = t; i < K / 4u; i += WG) {
    let v = x[base + i]; // padding is zero and adds nothing
    staged[i] = v;
    sum += v.x + v.y + v.z + v.w;
  }
  let mean = sum_workgroup(sum, t) / f32(K_TRUE);
  var squares = 0.0;
  for (var i = t; i < K / 4u; i += WG) {
    let inside = vec4u(4u * i, 4u * i + 1u, 4u * i + 2u, 4u * i + 3u) < vec4u(K_TRUE);
    let v = select(vec4f(0.0), staged[i] - mean, inside);
    squares += dot(v, v);
  }
  let scale = inverseSqrt(sum_workgroup(squares, t) / f32(K_TRUE) + EPSILON);
  for (var i = t; i < K / 4u; i += WG) {
    let w = vec4f(norm[4u * i], norm[4u * i + 1u], norm[4u * i + 2u], norm[4u * i + 3u]);
    let j = NORM_STRIDE + 4u * i;
    let b = vec4f(norm[j], norm[j + 1u], norm[j + 2u], norm[j + 3u]);
    staged[i] = (staged[i] - mean) * scale * w + b; // padded weight and bias are zero
  }
  workgroupBarrier();
}

fn combine_prologue(t: u32) {
  let splits = (step.position + step.n + SPLIT - 1u) / SPLIT;
  let stride = (D_PAD + 4u) / 4u;
  for (var head = t; head < N_HEAD; head += WG) {
    var highest = -3.0e38;
    for (var s = 0u; s < splits; s++) {
      highest = max(highest, x[(s * N_HEAD + head) * stride].x);
    }
    var total = 0.0;
    for (var s = 0u; s < splits; s++) {
      let stats = x[(s * N_HEAD + head) * stride];
      let weight = exp(stats.x - highest);
      split_weights[s * N_HEAD + head] = weight;
      total += weight * stats.y;
    }
    for (var s = 0u; s < splits; s++) {
      split_weights[s * N_HEAD + head] /= total;
    }
  }
  workgroupBarrier();
  for (var i = t; i < K / 4u; i += WG) {
    let head = 4u * i / D; // D is a multiple of 4 here
    let d = 4u * i % D;
    var v = vec4f(0.0);
    if (head < N_HEAD) {
      for (var s = 0u; s < splits; s++) {
        v += split_weights[s * N_HEAD + head] * x[(s * N_HEAD + head) * stride + 1u + d / 4u];
      }
    }
    staged[i] = v;
  }
  workgroupBarrier();
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(num_workgroups) grid: vec3u,
  @builtin(local_invocation_index) t: u32,
) {
  if (PROLOGUE == 1u) {
    norm_prologue(t);
  } else if (PROLOGUE == 2u) {
    combine_prologue(t);
  }
  let row = (workgroup.y * grid.x + workgroup.x) * (WG / LANES) + t / LANES;
  let first = min(row, PART - 1u) * (K / CHUNK); // clamped, not skipped: reductions need every thread
  var sum = 0.0;
  for (var c = t % LANES; c < K / CHUNK; c += LANES) {
    sum += dot_chunk(first + c, c * (CHUNK / 4u));
  }
  sum = sum_row(sum, t);
  if (t % LANES == 0u && row < ROWS) {
    store(0u, ROW_BASE + row, sum);
  }
}
