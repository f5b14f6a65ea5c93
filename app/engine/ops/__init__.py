"""The operations that models are written over: computed at once (`eager`), or recorded as a graph (`record`).

A matrix's rows are output features: `linear` computes x·Wᵀ. n counts the tokens of this step.
"""

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # the models are written over this
    from app.engine.models.rope import Rope


class Ops(Protocol):
    """What a model may ask for. Tensors are `Any`: NumPy arrays or symbols, as the implementation likes."""

    def embed(self, ids: Any, wte: Any, wpe: Any | None = None) -> Any:
        """ids [n] -> [n, n_embd]: token embedding, plus position embedding if any, positions continuing the cache."""

    def layer_norm(self, x: Any, weight: Any, bias: Any, *, epsilon: float) -> Any:
        """[n, n_embd] -> the same: (x - mean) / sqrt(variance + epsilon) · weight + bias, row by row."""

    def rms_norm(self, x: Any, weight: Any, *, epsilon: float) -> Any:
        """[n, n_embd] -> the same: x / sqrt(mean of x² + epsilon) · weight, row by row (Zhang & Sennrich 2019)."""

    def linear(self, x: Any, weight: Any, bias: Any | None = None) -> Any:
        """[n, in] -> [n, out]: x·weightᵀ + bias, weight [out, in]."""

    def activation(self, x: Any, *, kind: str) -> Any:
        """Elementwise: gelu_new, gelu, relu or silu."""

    def gated(self, x: Any, *, kind: str) -> Any:
        """[n, 2·width] -> [n, width]: activation of the first half, times the second (Shazeer 2020)."""

    def add(self, a: Any, b: Any) -> Any:
        """Elementwise sum of two tensors of one shape."""

    def split_heads(
        self, qkv: Any, *, n_head: int, n_kv_head: int | None = None, interleaved: bool = False
    ) -> tuple[Any, Any, Any]:
        """[n, (n_head + 2·n_kv_head)·head_dim] -> q [n, n_head, head_dim], k and v [n, n_kv_head, head_dim].

        n_kv_head is n_head unless given. `interleaved`: each head's query, key and value lie together, rather than all
        queries before all keys.
        """

    def head_norm(self, x: Any, weight: Any, *, epsilon: float) -> Any:
        """[n, heads, head_dim] -> the same: `rms_norm` of each head, weight [head_dim]."""

    def rotate(self, x: Any, *, rope: "Rope") -> Any:
        """[n, heads, head_dim] -> the same: pairs of features turned by position · frequency, see `models.rope`."""

    def append_cache(self, kv: Any, k: Any, v: Any) -> Any:
        """Write k and v of the new tokens behind those in the layer's cache; returns the cache to attend to."""

    def attend(self, q: Any, kv: Any, *, scale: float, window: int = 0) -> Any:
        """softmax(scale · q·kᵀ, causal)·v -> [n, n_head·head_dim]; n_head / n_kv_head query heads share a key's.

        `window` > 0: over the last so many positions only, a token's own included.
        """

    def last(self, x: Any) -> Any:
        """[n, width] -> [1, width]: only the last token's row."""

    def logits(self, x: Any, weight: Any) -> Any:
        """[1, n_embd] -> [1, n_vocab]: x·weightᵀ."""
