// A linear layer for one token: out = epilogue(W·prologue(x)).
//
// x [K], W [N, K] with K padded to a multiple of 32 by zeros. What is stored where is the epilogue's business: its items
// are rows, or pairs of rows (SUMS is 2) that it needs at once. LANES threads share an item and read it in 16-byte
// chunks; a workgroup of WG threads takes WG / LANES items at once, REPEAT times.
// Grid: ceil(ROWS / (WG / LANES · REPEAT)) workgroups over x, then y. Items [ROW_BASE, ROW_BASE + ROWS); the weights
// bound here start at ROW_BASE and hold PART rows (a matrix larger than a binding is split by rows, but not pairs).
//
// PROLOGUE 0: x as it is.
// PROLOGUE 1: layer norm of x [K_TRUE features], recomputed by each workgroup: cheaper than a dispatch of its own.
// PROLOGUE 2: x is attend_split's partial results [splits, N_HEAD, D_PAD + 4]; they are combined on the way in.
// PROLOGUE 3: RMS norm of x, else as 1.
@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(5) var<storage, read> norm: array<vec4f>; // weight, then bias NORM_STRIDE later

const SHARE: u32 = (K / 4u + WG - 1u) / WG; // vectors of x to a thread

var<workgroup> staged: array<vec4f, STAGED>; // the prologue's result; STAGED is K / 4, or 1 without a prologue

fn x4(i: u32) -> vec4f {
  if (PROLOGUE == 0u) {
    return x[i];
  }
  return staged[i];
}

// Every load is issued before the first barrier, and one reduction gives both sums. The sums are of x less its first
// feature: rows far from zero would otherwise lose their variance to cancellation.
fn norm_prologue(t: u32) {
  // LAST: x is a whole chunk of tokens, and only its last row is wanted.
  let base = select(0u, (step.n - 1u) * (K / 4u), LAST);
  var v: array<vec4f, SHARE>;
  var w: array<vec4f, SHARE>;
  var b: array<vec4f, SHARE>;
  let shift = x[base].x;
  for (var j = 0u; j < SHARE; j++) {
    let i = min(t + j * WG, K / 4u - 1u);
    v[j] = x[base + i];
    w[j] = norm[i];
    b[j] = norm[NORM_STRIDE / 4u + i];
  }
  var sums = vec2f(0.0);
  for (var j = 0u; j < SHARE; j++) {
    let i = t + j * WG;
    let inside = vec4u(4u * i, 4u * i + 1u, 4u * i + 2u, 4u * i + 3u) < vec4u(K_TRUE);
    v[j] = select(vec4f(0.0), v[j] - shift, inside);
    sums += vec2f(v[j].x + v[j].y + v[j].z + v[j].w, dot(v[j], v[j]));
  }
  sums = sum_workgroup(sums, t) / f32(K_TRUE);
  let scale = inverseSqrt(max(sums.y - sums.x * sums.x, 0.0) + EPSILON);
  for (var j = 0u; j < SHARE; j++) {
    let i = t + j * WG;
    if (i < K / 4u) {
      staged[i] = (v[j] - sums.x) * scale * w[j] + b[j]; // padded weight and bias are zero
    }
  }
  workgroupBarrier();
}

fn rms_norm_prologue(t: u32) {
  let base = select(0u, (step.n - 1u) * (K / 4u), LAST);
  var v: array<vec4f, SHARE>;
  var w: array<vec4f, SHARE>;
  for (var j = 0u; j < SHARE; j++) {
    let i = min(t + j * WG, K / 4u - 1u);
    v[j] = x[base + i];
    w[j] = norm[i];
  }
  var squares = 0.0;
  for (var j = 0u; j < SHARE; j++) {
    squares += select(0.0, dot(v[j], v[j]), t + j * WG < K / 4u); // x's padding is zero
  }
  let scale = inverseSqrt(sum_workgroup(vec2f(squares, 0.0), t).x / f32(K_TRUE) + EPSILON);
  for (var j = 0u; j < SHARE; j++) {
    let i = t + j * WG;
    if (i < K / 4u) {
      staged[i] = v[j] * scale * w[j];
    }
  }
  workgroupBarrier();
}

fn combine_prologue(t: u32) {
  let splits = (step.position + step.n + SPLIT - 1u) / SPLIT;
  let stride = D_PAD / 4u + 1u;
  for (var i = t; i < K / 4u; i += WG) {
    let head = min(4u * i / D, N_HEAD - 1u); // D is a multiple of 4 here; past the heads lies padding
    let base = head * stride;
    let d = 1u + (4u * i % D) / 4u;
    var highest = -3.0e38;
    var total = 0.0;
    var sum = vec4f(0.0);
    for (var s = 0u; s < splits; s++) {
      let part = base + s * N_HEAD * stride;
      let stats = x[part];
      let value = x[part + d];
      let next = max(highest, stats.x);
      let keep = exp(highest - next);
      let weight = exp(stats.x - next);
      total = total * keep + weight * stats.y;
      sum = sum * keep + weight * value;
      highest = next;
    }
    staged[i] = select(vec4f(0.0), sum / total, 4u * i < N_HEAD * D);
  }
  workgroupBarrier();
}

// Where the rows of an item begin, in chunks.
fn starts(item: u32) -> vec2u {
  return min(rows_of(ROW_BASE + item) - ROW_BASE, vec2u(PART - 1u)) * (K / CHUNK);
}

fn dots(a: Chunk, b: Chunk, c: u32) -> vec2f {
  let i = c * (CHUNK / 4u);
  if (SUMS == 1u) {
    return vec2f(dot_chunk(a, i), 0.0);
  }
  return vec2f(dot_chunk(a, i), dot_chunk(b, i));
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3u,
  @builtin(num_workgroups) grid: vec3u,
  @builtin(local_invocation_index) t: u32,
) {
  // Items are clamped, not skipped: reductions need every thread.
  let item0 = (workgroup.y * grid.x + workgroup.x) * (WG / LANES * REPEAT) + t / LANES;
  // The first item's weights are on their way while the prologue waits for its own loads and barriers.
  var early: array<Chunk, max(EARLY * SUMS, 1u)>;
  let first0 = starts(item0);
  for (var j = 0u; j < EARLY; j++) {
    let c = min(t % LANES + j * LANES, K / CHUNK - 1u);
    early[j * SUMS] = load_chunk(first0.x + c);
    if (SUMS == 2u) {
      early[j * SUMS + 1u] = load_chunk(first0.y + c);
    }
  }
  if (PROLOGUE == 1u) {
    norm_prologue(t);
  } else if (PROLOGUE == 2u) {
    combine_prologue(t);
  } else if (PROLOGUE == 3u) {
    rms_norm_prologue(t);
  }
  for (var r = 0u; r < REPEAT; r++) {
    let item = item0 + r * (WG / LANES);
    let first = starts(item);
    let added = addends(0u, ROW_BASE + item);
    var sums = vec2f(0.0);
    if (r == 0u) {
      for (var j = 0u; j < EARLY; j++) {
        let c = t % LANES + j * LANES;
        if (c < K / CHUNK) {
          sums += dots(early[j * SUMS], early[j * SUMS + SUMS - 1u], c);
        }
      }
    }
    for (var c = t % LANES + select(0u, EARLY * LANES, r == 0u); c < K / CHUNK; c += LANES) {
      let a = load_chunk(first.x + c);
      var b = a;
      if (SUMS == 2u) {
        b = load_chunk(first.y + c);
      }
      sums += dots(a, b, c);
    }
    sums = sum_lanes(sums, t);
    if (t % LANES == 0u && item < ROWS) {
      store(0u, ROW_BASE + item, sums, added);
    }
  }
}
