"""The operations in NumPy: the oracle for kernels and plans, the fallback without WebGPU, the text to read first."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.engine.models import forward, nest, weight_specs
from app.engine.models.config import Config
from app.engine.models.rope import Rope, angle_table
from app.engine.weights.blocks import to_float32
from app.engine.weights.quantize import dequantize
from app.engine.weights.spec import Blob, WeightSpec, merged

Array = NDArray[np.float32]


@dataclass
class KVCache:
    """Keys and values [2, n_ctx, n_kv_head, head_dim] of one layer; `length` positions are filled."""

    data: Array
    length: int = 0


def erf(x: Array) -> Array:
    """Abramowitz & Stegun 7.1.26, |error| <= 1.5e-7: NumPy has no erf, and this is all that SciPy would be for."""
    t = 1.0 / (1.0 + 0.3275911 * np.abs(x))
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return np.asarray(np.sign(x) * (1.0 - series * np.exp(-x * x)), dtype=np.float32)


def gelu_new(x: Array) -> Array:
    """0.5x(1 + tanh(√(2/π)(x + 0.044715x³))) (Hendrycks & Gimpel 2016)."""
    return np.asarray(0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x * x * x))), dtype=np.float32)


def gelu(x: Array) -> Array:
    """x·Φ(x), by erf."""
    return np.asarray(0.5 * x * (1.0 + erf(x / np.sqrt(2.0))), dtype=np.float32)


def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, np.float32(0))


def silu(x: Array) -> Array:
    """x·σ(x); the exponent is clamped, so that very negative x gives -0 rather than an overflow."""
    return np.asarray(x / (1.0 + np.exp(np.minimum(-x, 80.0))), dtype=np.float32)


_ACTIVATIONS = {"gelu_new": gelu_new, "gelu": gelu, "relu": relu, "silu": silu}


class EagerOps:
    """`ops.Ops` computed at once. `position` is the number of tokens that the cache already holds."""

    def __init__(self, position: int = 0) -> None:
        self.position = position

    def embed(self, ids: Any, wte: Array, wpe: Array | None = None) -> Array:
        """See `Ops.embed`."""
        if wpe is None:
            return np.asarray(wte[ids], dtype=np.float32)
        return np.asarray(wte[ids] + wpe[self.position : self.position + len(ids)], dtype=np.float32)

    def layer_norm(self, x: Array, weight: Array, bias: Array, *, epsilon: float) -> Array:
        """See `Ops.layer_norm`."""
        mean = x.mean(axis=-1, keepdims=True)
        variance = x.var(axis=-1, keepdims=True)
        return np.asarray((x - mean) / np.sqrt(variance + np.float32(epsilon)) * weight + bias, dtype=np.float32)

    def rms_norm(self, x: Array, weight: Array, *, epsilon: float) -> Array:
        """See `Ops.rms_norm`."""
        mean = np.square(x).mean(axis=-1, keepdims=True)
        return np.asarray(x / np.sqrt(mean + np.float32(epsilon)) * weight, dtype=np.float32)

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        """See `Ops.linear`."""
        return x @ weight.T if bias is None else x @ weight.T + bias

    def activation(self, x: Array, *, kind: str) -> Array:
        """See `Ops.activation`."""
        return _ACTIVATIONS[kind](x)

    def gated(self, x: Array, *, kind: str) -> Array:
        """See `Ops.gated`."""
        gate, up = np.split(x, 2, axis=-1)
        return _ACTIVATIONS[kind](gate) * up

    def add(self, a: Array, b: Array) -> Array:
        """See `Ops.add`."""
        return a + b

    def split_heads(
        self, qkv: Array, *, n_head: int, n_kv_head: int | None = None, interleaved: bool = False
    ) -> tuple[Array, Array, Array]:
        """See `Ops.split_heads`."""
        n, n_kv_head = len(qkv), n_kv_head or n_head
        if interleaved:
            q, k, v = np.moveaxis(qkv.reshape(n, n_head, 3, -1), 2, 0)
        else:
            q, k, v = np.split(qkv.reshape(n, n_head + 2 * n_kv_head, -1), [n_head, n_head + n_kv_head], axis=1)
        return q, k, v

    def head_norm(self, x: Array, weight: Array, *, epsilon: float) -> Array:
        """See `Ops.head_norm`."""
        return self.rms_norm(x, weight, epsilon=epsilon)

    def rotate(self, x: Array, *, rope: Rope) -> Array:
        """See `Ops.rotate`."""
        angles = angle_table(rope, self.position, self.position + len(x))[:, None]  # [n, 1, width / 2, 2]
        half = rope.width // 2
        first = np.s_[..., 0 : rope.width : 2] if rope.interleaved else np.s_[..., :half]
        second = np.s_[..., 1 : rope.width : 2] if rope.interleaved else np.s_[..., half : rope.width]
        a, b, cos, sin = x[first], x[second], angles[..., 0], angles[..., 1]
        out = x.copy()
        out[first], out[second] = a * cos - b * sin, b * cos + a * sin
        return out

    def append_cache(self, kv: KVCache, k: Array, v: Array) -> KVCache:
        """See `Ops.append_cache`."""
        end = self.position + len(k)
        kv.data[0, self.position : end] = k
        kv.data[1, self.position : end] = v
        return KVCache(kv.data, end)

    def attend(self, q: Array, kv: KVCache, *, scale: float, window: int = 0) -> Array:
        """See `Ops.attend`."""
        n, n_head, head_dim = q.shape
        k, v = kv.data[:, : kv.length]
        n_kv_head = k.shape[1]
        q = q.reshape(n, n_kv_head, n_head // n_kv_head, head_dim)  # neighbouring query heads share keys and values
        scores = np.einsum("qhgd,khd->hgqk", q, k, optimize=True) * np.float32(scale)
        own, other = self.position + np.arange(n)[:, None], np.arange(kv.length)
        hidden = other > own
        if window:
            hidden |= other <= own - window
        scores[..., hidden] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.asarray(np.einsum("hgqk,khd->qhgd", weights, v, optimize=True).reshape(n, -1), dtype=np.float32)

    def last(self, x: Array) -> Array:
        """See `Ops.last`."""
        return x[-1:]

    def logits(self, x: Array, weight: Array) -> Array:
        """See `Ops.logits`."""
        return x @ weight.T


class EagerRunner:
    """A `Runner` in NumPy. `params` is what `NumpySink` gathered: f32, matrices as [out, in]."""

    def __init__(self, config: Config, params: dict[str, Array], *, context: int | None = None) -> None:
        """Make a cache of `context` positions, by default all that the model knows."""
        self.config = config
        self.n_ctx = config.n_ctx if context is None else context
        self.n_vocab = config.n_vocab
        self.tokens: list[int] = []
        self._params = nest(params)
        self._weight_bytes = sum(array.nbytes for array in params.values())
        shape = (2, self.n_ctx, config.n_kv_head, config.head_dim)
        self._cache = [KVCache(np.zeros(shape, np.float32)) for _ in range(config.n_layer)]
        self._logits: Array | None = None

    async def feed(self, ids: Sequence[int]) -> None:
        """See `Runner.feed`."""
        self.take(ids, EagerOps(self.length))

    def take(self, ids: Sequence[int], ops: Any) -> None:
        """Feed, computing with `ops`, which may note what passes through."""
        self._logits = self.run(ids, ops)[-1]
        self.tokens += ids

    def run(self, ids: Sequence[int], ops: Any) -> Array:
        """Compute a step with `ops` and return what `logits` gave; the cache is written, but counts no longer."""
        model = forward(self.config)
        logits: Array = model(np.asarray(ids, dtype=np.int64), self._params, self._cache, config=self.config, ops=ops)
        return logits

    def inspector(self) -> Any:
        """See `InspectableRunner.inspector`."""
        from app.engine.ops.tap import EagerInspector

        return EagerInspector(self)

    async def settle(self) -> None:
        """See `Runner.settle`."""

    @property
    def length(self) -> int:
        """See `Runner.length`."""
        return len(self.tokens)

    async def logits(self) -> Array:
        """See `Runner.logits`."""
        assert self._logits is not None, "feed() comes before logits()"
        return self._logits

    def rewind(self, length: int) -> None:
        """See `Runner.rewind`."""
        del self.tokens[length:]

    def memory(self) -> dict[str, int]:
        """See `Runner.memory`."""
        cache = sum(layer.data.nbytes for layer in self._cache)
        return {"weights": self._weight_bytes, "cache": cache, "activations": 0, "staging": 0}

    def free(self) -> None:
        """See `Runner.free`."""
        self._params, self._cache, self._logits = {}, [], None


@dataclass
class NumpySink:
    """A loader's `Sink` that gathers f32 arrays in `params`, matrices as [out, in], dequantised from q8 and q4."""

    config: Config
    params: dict[str, Array] = field(default_factory=dict)
    _codes: dict[str, NDArray[np.uint32]] = field(default_factory=dict)
    """Of matrices whose scales have not come."""

    def __post_init__(self) -> None:
        self._shapes = {spec.name: spec.out_shape for spec in merged(weight_specs(self.config))}

    async def write(self, spec: WeightSpec, dtype: str, row: int, rows: int, data: Blob) -> None:
        """See `Sink.write`."""
        if spec.of is not None:
            self._write_words(
                spec, spec.of, spec.first + row, rows, np.frombuffer(data.to_bytes(), "<u4").reshape(rows, -1)
            )
            return
        values = to_float32(data.to_bytes(), dtype)
        target = self._target(spec)
        if spec.kind == "vector":
            target[...] = values
            return
        if spec.kind == "conv1d":
            target = target.T
        target[row : row + rows] = values.reshape(rows, -1)

    def _target(self, spec: WeightSpec) -> Array:
        """Return where a tensor belongs, [out, in]: an array of its own, or rows of the one that holds several."""
        name = spec.target
        if name not in self.params:
            self.params[name] = np.empty(self._shapes[name], np.float32)
        return self.params[name][spec.at : spec.at + spec.out_shape[0]]

    def _write_words(self, spec: WeightSpec, matrix: WeightSpec, row: int, rows: int, words: NDArray[Any]) -> None:
        """Keep codes, and once their scales come, what the two stand for."""
        out, columns = matrix.out_shape
        stop = row + rows
        if spec.kind == "codes":
            if row == 0:
                self._codes[matrix.name] = np.empty((out, spec.shape[1]), np.uint32)
            self._codes[matrix.name][row:stop] = words
            return
        codes = self._codes[matrix.name]
        precision = f"q{codes.shape[1] // spec.shape[1]}"  # words a block of 32: as many as bits a code
        self._target(matrix)[row:stop] = dequantize(codes[row:stop], words, precision)[:, :columns]
        if stop == out:
            del self._codes[matrix.name]
