"""The operations, recorded: running a model over `RecordOps` gives its `Graph`, which `fuse` rewrites and a plan runs.

Nothing here knows GPT-2 or a GPU. Rows are padded to STRIDE_ALIGN features by zeros, and every kernel that writes a row
writes its padding, so that readers may load whole vectors and weight blocks without a bounds check.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from app.engine.models.config import Config
from app.engine.models.rope import Rope

STRIDE_ALIGN = 32
"""Features to which a row is padded: one block of the quantised formats."""


def padded(n: int, align: int = STRIDE_ALIGN) -> int:
    """Round up to a multiple of `align`."""
    return -(-n // align) * align


@dataclass(frozen=True)
class Weight:
    """A tensor of the checkpoint; a matrix is [out, in]."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Cache:
    """The KV cache of one layer; `version` counts the writes, so that a reader depends on its writer."""

    layer: int
    version: int = 0


@dataclass(eq=False)
class Tensor:
    """What a node computes: [n, width] activations in f32, n the tokens of the step; or one row if `single`."""

    name: str
    width: int
    single: bool = False
    layout: str = "rows"
    """"rows": [n, padded(width)] · "heads": [n, width / head_dim, head_dim padded to 4] · "ids": [n] u32 · "splits":
    attention's partial results."""


Value = Tensor | Weight | Cache


@dataclass(eq=False)
class Node:
    """One operation. `inputs` and `outputs` are named; `attrs` are numbers and switches."""

    op: str
    inputs: dict[str, Value]
    outputs: dict[str, Tensor | Cache]
    attrs: dict[str, Any] = field(default_factory=dict)

    @property
    def out(self) -> Tensor:
        """The output named "out"."""
        out = self.outputs["out"]
        assert isinstance(out, Tensor)
        return out


@dataclass
class Graph:
    """Nodes in the order of execution. `result` is the model's logits."""

    config: Config
    single: bool
    """The step is one token (decode), so that every tensor is a single row."""
    nodes: list[Node]
    ids: Tensor
    result: Tensor
    context: int
    """Positions that the caches hold."""
    taps: dict[str, Tensor] = field(default_factory=dict)
    """Tensors to keep and read back, by name."""

    def producer(self, value: Value) -> Node | None:
        """The node that computes `value`, if any does."""
        for node in self.nodes:
            if value in node.outputs.values():
                return node
        return None

    def readers(self, value: Value) -> list[Node]:
        """The nodes that read `value`."""
        return [node for node in self.nodes if value in node.inputs.values()]

    def only_reader(self, value: Value) -> Node | None:
        """The one node that reads `value`, if it is neither the result nor tapped nor read twice."""
        readers = self.readers(value)
        kept = value is self.result or value in self.taps.values()
        return readers[0] if len(readers) == 1 and not kept else None


@dataclass
class RecordOps:
    """`ops.Ops` that draw a graph."""

    config: Config
    single: bool
    nodes: list[Node] = field(default_factory=list)

    def _node(self, op: str, inputs: Mapping[str, Value], out: Tensor, **attrs: Any) -> Tensor:
        self.nodes.append(Node(op, dict(inputs), {"out": out}, attrs))
        return out

    def _tensor(self, op: str, width: int, *, single: bool | None = None, layout: str = "rows") -> Tensor:
        name = f"{len(self.nodes)}.{op}"
        return Tensor(name, width, self.single if single is None else single, layout)

    def embed(self, ids: Tensor, wte: Weight, wpe: Weight | None = None) -> Tensor:
        """See `Ops.embed`."""
        positions = {} if wpe is None else {"wpe": wpe}
        return self._node("embed", {"ids": ids, "wte": wte, **positions}, self._tensor("embed", wte.shape[1]))

    def layer_norm(self, x: Tensor, weight: Weight, bias: Weight, *, epsilon: float) -> Tensor:
        """See `Ops.layer_norm`."""
        out = self._tensor("layer_norm", x.width, single=x.single)
        return self._node("layer_norm", {"x": x, "weight": weight, "bias": bias}, out, epsilon=epsilon)

    def rms_norm(self, x: Tensor, weight: Weight, *, epsilon: float) -> Tensor:
        """See `Ops.rms_norm`."""
        out = self._tensor("rms_norm", x.width, single=x.single)
        return self._node("rms_norm", {"x": x, "weight": weight}, out, epsilon=epsilon)

    def linear(self, x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
        """See `Ops.linear`."""
        out = self._tensor("linear", weight.shape[0], single=x.single)
        biases = {} if bias is None else {"bias": bias}
        return self._node("linear", {"x": x, "weight": weight, **biases}, out)

    def activation(self, x: Tensor, *, kind: str) -> Tensor:
        """See `Ops.activation`."""
        return self._node("activation", {"x": x}, self._tensor("activation", x.width, single=x.single), kind=kind)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """See `Ops.add`."""
        return self._node("add", {"a": a, "b": b}, self._tensor("add", a.width, single=a.single))

    def gated(self, x: Tensor, *, kind: str) -> Tensor:
        """See `Ops.gated`."""
        return self._node("gated", {"x": x}, self._tensor("gated", x.width // 2, single=x.single), kind=kind)

    def split_heads(
        self, qkv: Tensor, *, n_head: int, n_kv_head: int | None = None, interleaved: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `Ops.split_heads`."""
        n_kv_head = n_kv_head or n_head
        head_dim = qkv.width // (n_head + 2 * n_kv_head)
        q, k, v = (
            self._tensor(f"split_heads.{name}", heads * head_dim, layout="heads")
            for name, heads in (("q", n_head), ("k", n_kv_head), ("v", n_kv_head))
        )
        self.nodes.append(Node("split_heads", {"qkv": qkv}, {"q": q, "k": k, "v": v}, {"interleaved": interleaved}))
        return q, k, v

    def head_norm(self, x: Tensor, weight: Weight, *, epsilon: float) -> Tensor:
        """See `Ops.head_norm`."""
        out = self._tensor("head_norm", x.width, layout="heads")
        return self._node("head_norm", {"x": x, "weight": weight}, out, epsilon=epsilon)

    def rotate(self, x: Tensor, *, rope: Rope) -> Tensor:
        """See `Ops.rotate`."""
        return self._node("rotate", {"x": x}, self._tensor("rotate", x.width, layout="heads"), rope=rope)

    def append_cache(self, kv: Cache, k: Tensor, v: Tensor) -> Cache:
        """See `Ops.append_cache`."""
        after = Cache(kv.layer, kv.version + 1)
        self.nodes.append(Node("append_cache", {"kv": kv, "k": k, "v": v}, {"kv": after}))
        return after

    def attend(self, q: Tensor, kv: Cache, *, scale: float, window: int = 0) -> Tensor:
        """See `Ops.attend`. A single token's attention is recorded as its two halves, so that they can be fused."""
        out = self._tensor("attend", q.width)
        if not self.single:
            return self._node("attend", {"q": q, "kv": kv}, out, scale=scale, window=window)
        parts = self._tensor("attend_split", q.width, layout="splits")
        self._node("attend_split", {"q": q, "kv": kv}, parts, scale=scale, window=window)
        return self._node("attend_combine", {"x": parts}, out)

    def last(self, x: Tensor) -> Tensor:
        """See `Ops.last`."""
        return x if x.single else self._node("last", {"x": x}, self._tensor("last", x.width, single=True))

    def logits(self, x: Tensor, weight: Weight) -> Tensor:
        """See `Ops.logits`."""
        return self._node("linear", {"x": x, "weight": weight}, self._tensor("logits", weight.shape[0], single=True))


Model = Callable[..., Any]


def record(
    model: Model, params: Mapping[str, Any], config: Config, *, single: bool, context: int | None = None
) -> Graph:
    """Run `model` over symbols. `single`: for one token a step (decode), else for a chunk of the prompt (prefill).

    `context`: positions that the caches hold, by default all that the model knows.
    """
    ops = RecordOps(config, single)
    ids = Tensor("ids", 1, single, "ids")
    caches = [Cache(layer) for layer in range(config.n_layer)]
    result = model(ids, params, caches, config=config, ops=ops)
    return Graph(config, single, ops.nodes, ids, result, config.n_ctx if context is None else context)


def last_uses(nodes: Sequence[Node], keep: Iterable[Tensor]) -> list[list[Tensor]]:
    """For each node, the tensors that nobody reads after it, so that their memory can serve again."""
    kept = set(keep)
    seen: set[Tensor] = set()
    freed: list[list[Tensor]] = []
    for node in reversed(nodes):
        values = [*node.inputs.values(), *node.outputs.values()]
        ended = dict.fromkeys(v for v in values if isinstance(v, Tensor) and v not in seen and v not in kept)
        seen |= ended.keys()
        freed.append(list(ended))
    return freed[::-1]
