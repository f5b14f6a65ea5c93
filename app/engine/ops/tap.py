"""Looks into a model while it runs: `Tap` wraps any `Ops` and notes the tensors that people want to see.

It works for every family and for computed as for recorded operations, since it relies only on what all of them do: a
layer appends to its cache, attends, and ends with a sum, which is what the next layer starts from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.ops.eager import EagerOps, EagerRunner

Array = NDArray[np.float32]

PARTS = ("q", "k", "v", "attended", "hidden")
"""What a layer shows beside its output: queries, keys and values as attention takes them, what it gives, and what the
last matrix of the MLP reads."""


@dataclass
class LayerTaps:
    """One layer's tensors: [n, heads, head_dim] for q, k and v, [n, width] for the others."""

    q: Any
    k: Any
    v: Any
    kv: Any
    """The cache that it attends to."""
    attended: Any
    settings: dict[str, Any]
    """How it attends: `scale`, and what else its family gives."""
    hidden: Any = None
    out: Any = None
    """The residual stream after the layer."""


class Tap:
    """`ops.Ops` that pass everything on to others, and remember. For one run of a model."""

    def __init__(self, ops: Any) -> None:
        self._ops = ops
        self.layers: list[LayerTaps] = []
        self.embedded: Any = None
        """The residual stream before the first layer."""
        self._stream: Any = None
        self._read: Any = None
        self._hidden: Any = None
        self._keys: Any = None
        self._values: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def embed(self, *args: Any, **named: Any) -> Any:
        """See `Ops.embed`."""
        self._stream = self._ops.embed(*args, **named)
        return self._stream

    def linear(self, x: Any, *args: Any, **named: Any) -> Any:
        """See `Ops.linear`."""
        self._read = x
        return self._ops.linear(x, *args, **named)

    def add(self, *args: Any, **named: Any) -> Any:
        """See `Ops.add`."""
        self._stream, self._hidden = self._ops.add(*args, **named), self._read
        return self._stream

    def append_cache(self, kv: Any, k: Any, v: Any, **named: Any) -> Any:
        """See `Ops.append_cache`."""
        self._keys, self._values = k, v
        return self._ops.append_cache(kv, k, v, **named)

    def attend(self, q: Any, kv: Any, **named: Any) -> Any:
        """See `Ops.attend`."""
        self._end_layer()
        attended = self._ops.attend(q, kv, **named)
        self.layers.append(LayerTaps(q, self._keys, self._values, kv, attended, named))
        return attended

    def last(self, x: Any) -> Any:
        """See `Ops.last`."""
        self._end_layer()
        return self._ops.last(x)

    def _end_layer(self) -> None:
        if self.layers:
            self.layers[-1].out, self.layers[-1].hidden = self._stream, self._hidden
        else:
            self.embedded = self._stream

    def named(self, parts: Sequence[str] = ()) -> dict[str, Any]:
        """Return the stream as "out.0" (embedded) to "out.L", the queries "q.0", ..., and the `parts` asked for."""
        found = {"out.0": self.embedded}
        for layer, taps in enumerate(self.layers):
            found[f"out.{layer + 1}"] = taps.out
            found |= {f"{part}.{layer}": getattr(taps, part) for part in dict.fromkeys(("q", *parts))}
        return found


class Rows:
    """`ops.Ops` whose `last` gives other rows than the last: a model's end, applied to any residual stream."""

    def __init__(self, ops: Any, rows: Any, *, on_last: Callable[[], None] = lambda: None) -> None:
        self._ops = ops
        self._rows = rows
        self._on_last = on_last

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def last(self, _: Any) -> Any:
        """Return the rows; `on_last` is told that the model's end begins."""
        self._on_last()
        return self._rows


@dataclass
class EagerInspector:
    """See `inspection.Inspector`: in NumPy."""

    runner: EagerRunner
    chunk: int = 16
    _taps: Tap | None = None
    _position: int = 0
    _ids: list[int] = field(default_factory=list)

    async def feed(self, ids: Sequence[int], *, parts: bool = False) -> None:
        """See `Inspector.feed`."""
        del parts  # they are all there anyway
        self._position = self.runner.length
        self._taps = Tap(EagerOps(self._position))
        self.runner.take(ids, self._taps)

    async def stream(self) -> Array:
        """See `Inspector.stream`."""
        taps = self._noted()
        return np.stack([taps.embedded, *(layer.out for layer in taps.layers)])

    async def attention(self, layers: Sequence[int], heads: Sequence[int], *, cell: int, cells: int) -> Array:
        """See `Inspector.attention`."""
        maps = []
        for layer in layers:
            taps = self._noted().layers[layer]
            keys = taps.kv.data[0, : self.runner.length]
            weights = attention_weights(taps.q, keys, position=self._position, **taps.settings)[list(heads)]
            weights = np.pad(weights, ((0, 0), (0, 0), (0, max(0, cell * cells - weights.shape[-1]))))
            maps.append(weights[..., : cell * cells].reshape(*weights.shape[:2], cells, cell).sum(axis=-1))
        return np.stack(maps)

    async def part(self, name: str, layer: int) -> Array:
        """See `Inspector.part`."""
        rows: Array = getattr(self._noted().layers[layer], name)
        return np.ascontiguousarray(rows[-1])

    async def lens(self, rows: Array) -> Array:
        """See `Inspector.lens`."""
        # The model runs once more for its last token, whose place in the cache is written with the same values.
        last = self.runner.length - 1
        return self.runner.run(self.runner.tokens[-1:], Rows(EagerOps(last), rows))

    def free(self) -> None:
        """See `Inspector.free`."""
        self._taps = None

    def _noted(self) -> Tap:
        assert self._taps is not None, "feed() comes first"
        return self._taps


def attention_weights(q: Array, keys: Array, *, position: int, scale: float, window: int | None = None) -> Array:
    """softmax(scale · q·kᵀ) over what each query may see: [n_head, n, length].

    q is [n, n_head, head_dim], keys [length, n_kv_head, head_dim]. Query i stands at `position` + i and sees what is
    not after it, and of that the last `window` positions. Several heads share a key's (grouped queries, Ainslie et al.
    2023).
    """
    n, n_head, _ = q.shape
    keys = np.repeat(keys, n_head // keys.shape[1], axis=1)
    scores = np.einsum("qhd,khd->hqk", q, keys, optimize=True) * np.float32(scale)
    own, other = position + np.arange(n)[:, None], np.arange(len(keys))
    hidden = other > own
    if window:
        hidden |= other <= own - window
    scores[:, hidden] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True), dtype=np.float32)
