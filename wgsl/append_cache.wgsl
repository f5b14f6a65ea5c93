// k, v [n, N_KV_HEAD, D_PAD] -> kv [2, N_KV_HEAD, N_CTX, D_PAD] at positions [position, position + n).
// Grid: ceil(2·N_KV_HEAD·D / WG) over x, n over y. (Fused plans write the cache from the linear layer's epilogue.)
@group(0) @binding(0) var<storage, read> k: array<f32>;
@group(0) @binding(2) var<storage, read> v: array<f32>;
@group(0) @binding(4) var<storage, read_write> kv: array<f32>;

@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) workgroup: vec3u, @builtin(local_invocation_index) t: u32) {
  let token = workgroup.y;
  let i = workgroup.x * WG + t;
  if (i >= 2u * N_KV_HEAD * D) {
    return;
  }
  let head = i / D; // k's heads, then v's
  let d = i % D;
  let target_index = (head * N_CTX + step.position + token) * D_PAD + d;
  if (head < N_KV_HEAD) {
    kv[target_index] = k[(token * N_KV_HEAD + head) * D_PAD + d];
  } else {
    kv[target_index] = v[(token * N_KV_HEAD + head - N_KV_HEAD) * D_PAD + d];
  }
}
