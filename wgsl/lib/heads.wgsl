// Where the rows of a QKV matrix belong: queries' heads, then keys', then values', D features each; and how queries and
// keys are turned by their position (Su et al. 2021). If any are (ROTARY features of a head, an even number), rows go in
// pairs, so that one thread has what it needs: pair i turns features (i, i + ROTARY / 2), or (2i, 2i + 1) if
// ROPE_INTERLEAVED. QKV_INTERLEAVED: a head's query, key and value lie together in the matrix.
// Constants: N_HEAD, N_KV_HEAD, D, D_PAD, N_CTX, ROTARY, ROPE_INTERLEAVED, QKV_INTERLEAVED.
@group(0) @binding(6) var<storage, read> angles: array<vec2f>; // [N_CTX, ROTARY / 2]: cosine and sine

const SUMS: u32 = select(1u, 2u, ROTARY > 0u); // rows that one thread needs at once
const PAIRS: u32 = ROTARY / 2u;
const HALF: u32 = max(D / 2u, 1u);

struct Place {
  head: u32,
  pair: u32, // below PAIRS if it is turned
  d: vec2u,
}

// Of a row, or of a pair of rows.
fn place(item: u32) -> Place {
  if (SUMS == 1u) {
    let head = item / D;
    let natural = select(head, head / 3u + head % 3u * N_HEAD, QKV_INTERLEAVED);
    return Place(natural, 0u, vec2u(item % D));
  }
  let head = item / HALF;
  let i = item % HALF;
  if (i >= PAIRS || head >= N_HEAD + N_KV_HEAD) {
    return Place(head, PAIRS, vec2u(2u * i, 2u * i + 1u));
  }
  return Place(head, i, select(vec2u(i, i + PAIRS), vec2u(2u * i, 2u * i + 1u), ROPE_INTERLEAVED));
}

// The rows of the matrix.
fn rows_at(p: Place) -> vec2u {
  let head = select(p.head, p.head % N_HEAD * 3u + p.head / N_HEAD, QKV_INTERLEAVED);
  return head * D + p.d;
}

fn turned(p: Place, v: vec2f, position: u32) -> vec2f {
  if (SUMS == 1u || p.pair >= PAIRS) {
    return v;
  }
  let a = angles[position * PAIRS + p.pair];
  return vec2f(v.x * a.x - v.y * a.y, v.y * a.x + v.x * a.y);
}
