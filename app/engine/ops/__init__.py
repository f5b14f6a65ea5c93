"""The operations that models are written over: computed at once (`eager`), or recorded as a graph (`record`).

A matrix's rows are output features: `linear` computes x·Wᵀ. n counts the tokens of this step.
"""

from typing import Any, Protocol


class Ops(Protocol):
    """What a model may ask for. Tensors are `Any`: NumPy arrays or symbols, as the implementation likes."""

    def embed(self, ids: Any, wte: Any, wpe: Any) -> Any:
        """ids [n] -> [n, n_embd]: token embedding plus position embedding, positions continuing the cache."""

    def layer_norm(self, x: Any, weight: Any, bias: Any, *, epsilon: float) -> Any:
        """[n, n_embd] -> the same: (x - mean) / sqrt(variance + epsilon) · weight + bias, row by row."""

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        """[n, in] -> [n, out]: x·weightᵀ + bias, weight [out, in]."""

    def activation(self, x: Any, *, kind: str) -> Any:
        """Elementwise: gelu_new, gelu, relu or silu."""

    def add(self, a: Any, b: Any) -> Any:
        """Elementwise sum of two tensors of one shape."""

    def split_heads(self, qkv: Any, *, n_head: int) -> tuple[Any, Any, Any]:
        """[n, 3·n_embd] -> q, k, v, each [n, n_head, head_dim]."""

    def append_cache(self, kv: Any, k: Any, v: Any) -> Any:
        """Write k and v of the new tokens behind those in the layer's cache; returns the cache to attend to."""

    def attend(self, q: Any, kv: Any, *, scale: float) -> Any:
        """softmax(scale · q·kᵀ, causal)·v -> [n, n_head·head_dim]."""

    def last(self, x: Any) -> Any:
        """[n, width] -> [1, width]: only the last token's row."""

    def logits(self, x: Any, weight: Any) -> Any:
        """[1, n_embd] -> [1, n_vocab]: x·weightᵀ."""
