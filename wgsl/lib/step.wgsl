// What changes from step to step. Python writes it before a prefill; in decode the sampler advances it on the GPU.
struct Step {
  position: u32, // tokens in the KV cache before this step
  n: u32,        // tokens of this step
  drawn: u32,    // tokens sampled since the prompt
}
@group(0) @binding(10) var<uniform> step: Step;
