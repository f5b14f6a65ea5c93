"""From a model name to tensors: hub, safetensors, loader."""
