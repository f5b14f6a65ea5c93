// qkv [n, STRIDE] -> q [n, N_HEAD, D_PAD], k and v [n, N_KV_HEAD, D_PAD]; heads are padded to a multiple of 4.
// QKV_INTERLEAVED: qkv's rows are each head's query, key and value together.
// Grid: ceil((N_HEAD + 2·N_KV_HEAD)·D / WG) over x, n over y. (Fused plans do this in the linear layer's epilogue.)
@group(0) @binding(0) var<storage, read> qkv: array<f32>;
@group(0) @binding(1) var<storage, read_write> q: array<f32>;
@group(0) @binding(2) var<storage, read_write> k: array<f32>;
@group(0) @binding(3) var<storage, read_write> v: array<f32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let token = workgroup.y;
  let i = workgroup.x * WG + t;
  if (i >= (N_HEAD + 2u * N_KV_HEAD) * D) {
    return;
  }
  let value = qkv[token * STRIDE + i];
  let place = i / D;
  let head = select(place, place / 3u + place % 3u * N_HEAD, QKV_INTERLEAVED);
  let d = i % D;
  if (head < N_HEAD) {
    q[(token * N_HEAD + head) * D_PAD + d] = value;
  } else if (head < N_HEAD + N_KV_HEAD) {
    k[(token * N_KV_HEAD + head - N_HEAD) * D_PAD + d] = value;
  } else {
    v[(token * N_KV_HEAD + head - N_HEAD - N_KV_HEAD) * D_PAD + d] = value;
  }
}
