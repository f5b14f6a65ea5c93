"""WebGPU: device, buffers, kernels and plans. The only place that touches navigator.gpu."""
