"""Picks a kernel, its constants, bindings and grid for each node of a graph. Pure Python: nothing here needs a GPU."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.engine.gpu.kernels import Constant, Kernel, kernel
from app.engine.gpu.layout import BITS, VECTOR_ALIGN, MatrixLayout
from app.engine.ops.record import Cache, Graph, Node, Tensor, Weight, padded

ACTIVATION_NUMBERS = {None: 0, "gelu_new": 1, "gelu": 2, "relu": 3, "silu": 4}
_PROLOGUE_NUMBERS = {None: 0, "norm": 1, "combine": 2}


_EARLY_CHUNKS = 4
"""Loads of weights that a thread starts before the prologue: as many as registers are cheap for."""
_ENOUGH_WORKGROUPS = 1024
"""Workgroups that fill any GPU."""


@dataclass(frozen=True)
class Tuning:
    """What differs between adapters. The defaults are right everywhere."""

    subgroup_size: int | None = None
    """None: no subgroup operations. 0: they exist, in varying sizes up to `lanes`. Else the one size that occurs."""
    lanes: int = 32
    """Threads that share a row of a matvec."""
    matvec_threads: int = 128
    """Threads in a workgroup of a matvec."""
    combine_threads: int = 256
    """The same of one that combines attention's partial results first."""
    tile: int = 64
    """Tokens and outputs of a matmul's tile."""
    side: int = 16
    """The side of the square of threads that computes it."""
    split: int = 64
    """Positions that one workgroup of attend_split takes."""
    attend_threads: int = 256
    """Threads in a workgroup of attend_split, a multiple of `split`."""
    prefill_from: int = 2
    """Tokens of a prompt from which the tiled plan is worth it; fewer are read one after the other."""
    sampler_threads: int = 128
    """Threads in a workgroup of the sampler's kernels."""


@dataclass(frozen=True)
class PerRow:
    """A grid axis with one workgroup for each `tile` tokens of the step."""

    tile: int = 1


@dataclass(frozen=True)
class PerPosition:
    """A grid axis with one workgroup for each `tile` positions of the cache, the step's tokens included."""

    tile: int


Axis = int | PerRow | PerPosition


@dataclass(frozen=True)
class WeightPart:
    """One part of a matrix."""

    name: str
    index: int


@dataclass(frozen=True)
class WeightScales:
    """The scales of one part of a quantised matrix."""

    name: str
    index: int


@dataclass(frozen=True)
class Vectors:
    """A slice of the vectors' buffer, from the first named vector to the end of the last."""

    first: str
    last: str


Slot = Tensor | Cache | WeightPart | WeightScales | Vectors | Weight | Literal["step", "none"]
"""What a binding is given: an activation, a layer's cache, weights, the step's numbers, or a buffer nobody reads."""


@dataclass
class Dispatch:
    """One kernel launch."""

    kernel: Kernel
    bindings: dict[str, Slot]
    grid: tuple[Axis, Axis]
    node: Node


@dataclass(frozen=True)
class Selector:
    """Chooses kernels for one model on one adapter."""

    matrices: Mapping[str, MatrixLayout]
    tuning: Tuning

    def dispatches(self, graph: Graph) -> list[Dispatch]:
        """Every launch of the graph, in order."""
        return [dispatch for node in graph.nodes for dispatch in self._select(graph, node)]

    def _select(self, graph: Graph, node: Node) -> Iterator[Dispatch]:
        method = getattr(self, f"_{node.op}")
        result: Iterator[Dispatch] = method(graph, node)
        return result

    def _reduce(self, lanes: int, threads: int) -> tuple[tuple[str, ...], dict[str, Constant]]:
        """The pieces and constants of sums over threads."""
        size = self.tuning.subgroup_size
        if size is None or size > lanes:
            return ("reduce_shared",), {"WG": threads, "LANES": lanes}
        constants: dict[str, Constant] = {"WG": threads, "LANES": lanes, "SUBGROUP_SIZE": size}
        return ("enable_subgroups", "reduce_subgroup"), constants

    def _embed(self, _: Graph, node: Node) -> Iterator[Dispatch]:
        wte, wpe = node.inputs["wte"], node.inputs["wpe"]
        assert isinstance(wte, Weight)
        layout = self.matrices[wte.name]
        for index, part in enumerate(layout.parts):
            pieces = ("step", f"weights_{layout.precision}")
            shape: dict[str, Constant] = {"K": layout.k, "K_TRUE": layout.columns}
            k = kernel("embed", *pieces, WG=64, **shape, ROW_BASE=part.first, PART=part.rows)
            bindings: dict[str, Slot] = {"ids": _slot(node.inputs["ids"]), "out": node.out, "wpe": _slot(wpe)}
            yield Dispatch(k, {**bindings, **_part(layout, wte.name, index)}, (1, PerRow()), node)

    def _layer_norm(self, _: Graph, node: Node) -> Iterator[Dispatch]:
        width = node.out.width
        pieces, constants = self._reduce(128, 128)
        k = kernel(
            "layer_norm",
            *_enable_first("step", *pieces),
            **constants,
            **_norm_constants(width, node.attrs),
            K=padded(width),
        )
        norm = _norm_slot(node.inputs["weight"], node.inputs["bias"])
        yield Dispatch(k, {"x": _slot(node.inputs["x"]), "out": node.out, "norm": norm}, (1, _rows(node.out)), node)

    def _linear(self, graph: Graph, node: Node) -> Iterator[Dispatch]:
        weight, attrs, inputs = node.inputs["weight"], node.attrs, node.inputs
        assert isinstance(weight, Weight)
        layout = self.matrices[weight.name]
        qkv = node.op == "linear_qkv"
        single = node.out.single
        bindings: dict[str, Slot] = {
            "x": _slot(inputs["x"]),
            "out": node.out,
            "bias": _norm_slot(inputs["bias"], inputs["bias"]) if "bias" in inputs else "none",
            "residual": _slot(inputs["residual"]) if "residual" in inputs else "none",
            "kv": _slot(inputs["kv"]) if qkv else "none",
        }
        constants: dict[str, Constant] = {
            **_head_constants(graph),
            "K": layout.k,
            "N": layout.rows,
            "OUT_STRIDE": padded(layout.rows),
            "BIAS": "bias" in inputs,
            "RESIDUAL": "residual" in inputs,
            "QKV": qkv,
            "ACTIVATION": ACTIVATION_NUMBERS[attrs.get("activation")],
        }
        pieces: tuple[str, ...] = ("step", f"weights_{layout.precision}", "activation", "epilogue")
        for index, part in enumerate(layout.parts):
            # The last part also writes the output's padding.
            is_last = index == len(layout.parts) - 1
            rows = padded(layout.rows) - part.first if is_last and not qkv else part.rows
            mine: dict[str, Slot] = {**bindings, **_part(layout, weight.name, index)}
            shared = {**constants, "ROW_BASE": part.first, "ROWS": rows, "PART": part.rows}
            if single:
                yield self._matvec(node, pieces, shared, mine, rows)
            else:
                tile = self.tuning.tile
                grid = (-(-rows // tile), PerRow(tile))
                yield Dispatch(kernel("matmul", *pieces, **shared, TILE=tile, SIDE=self.tuning.side), mine, grid, node)

    _linear_qkv = _linear

    def _matvec(
        self,
        node: Node,
        pieces: tuple[str, ...],
        constants: dict[str, Constant],
        bindings: dict[str, Slot],
        rows: int,
    ) -> Dispatch:
        prologue = node.attrs.get("prologue")
        lanes = self.tuning.lanes
        threads = self.tuning.combine_threads if prologue == "combine" else self.tuning.matvec_threads
        reduce_pieces, reduce_constants = self._reduce(lanes, threads)
        k = int(constants["K"])
        chunk = 128 // BITS[self.matrices[weight_of(node).name].precision]
        chunks = -(-k // (chunk * lanes))
        early = min(chunks, _EARLY_CHUNKS) if prologue else 0
        # A prologue is worth many rows where there are more workgroups than a GPU runs at once anyway.
        repeat = max(1, min(8, rows // (threads // lanes) // _ENOUGH_WORKGROUPS)) if prologue else 1
        x = node.inputs["x"]
        assert isinstance(x, Tensor)
        constants = {
            **constants,
            **reduce_constants,
            **_norm_constants(x.width, node.attrs),
            "PROLOGUE": _PROLOGUE_NUMBERS[prologue],
            "STAGED": k // 4 if prologue else 1,
            "SPLIT": self.tuning.split,
            "EARLY": early,
            "REPEAT": repeat,
        }
        if prologue == "norm":
            bindings["norm"] = _norm_slot(node.inputs["norm_weight"], node.inputs["norm_bias"])
        else:
            bindings["norm"] = "none"
        name = kernel("matvec", *_enable_first(*pieces, *reduce_pieces), **constants)
        return Dispatch(name, bindings, _spread(-(-rows // (threads // lanes * repeat))), node)

    def _elementwise(self, name: str, node: Node, inputs: dict[str, str], *pieces: str) -> Dispatch:
        stride = padded(node.out.width)
        constants: dict[str, Constant] = {"WG": 64, "STRIDE": stride}
        if "kind" in node.attrs:
            constants["ACTIVATION"] = ACTIVATION_NUMBERS[node.attrs["kind"]]
        bindings: dict[str, Slot] = {binding: _slot(node.inputs[key]) for binding, key in inputs.items()}
        grid = (-(-stride // 64), _rows(node.out))
        return Dispatch(kernel(name, *pieces, **constants), {**bindings, "out": node.out}, grid, node)

    def _activation(self, _: Graph, node: Node) -> Iterator[Dispatch]:
        yield self._elementwise("activation", node, {"x": "x"}, "activation")

    def _add(self, _: Graph, node: Node) -> Iterator[Dispatch]:
        yield self._elementwise("add", node, {"a": "a", "b": "b"})

    def _last(self, _: Graph, node: Node) -> Iterator[Dispatch]:
        yield self._elementwise("last", node, {"x": "x"}, "step")

    def _split_heads(self, graph: Graph, node: Node) -> Iterator[Dispatch]:
        qkv = node.inputs["qkv"]
        assert isinstance(qkv, Tensor)
        constants = _head_constants(graph)
        k = kernel(
            "split_heads", WG=64, STRIDE=padded(qkv.width), **_only(constants, "N_HEAD", "N_KV_HEAD", "D", "D_PAD")
        )
        bindings: dict[str, Slot] = {"qkv": qkv, **{name: _slot(node.outputs[name]) for name in "qkv"}}
        yield Dispatch(k, bindings, (-(-qkv.width // 64), _rows(qkv)), node)

    def _append_cache(self, graph: Graph, node: Node) -> Iterator[Dispatch]:
        constants = _head_constants(graph)
        k = kernel("append_cache", "step", WG=64, **_only(constants, "N_KV_HEAD", "D", "D_PAD", "N_CTX"))
        bindings: dict[str, Slot] = {name: _slot(node.inputs[name]) for name in ("k", "v", "kv")}
        rows: Axis = 1 if graph.single else PerRow()
        width = 2 * int(constants["N_KV_HEAD"]) * int(constants["D"])
        yield Dispatch(k, bindings, (-(-width // 64), rows), node)

    def _attend_split(self, graph: Graph, node: Node) -> Iterator[Dispatch]:
        split = self.tuning.split
        constants = {**_head_constants(graph), "WG": self.tuning.attend_threads, "SPLIT": split}
        k = kernel("attend_split", "step", **constants, SCALE=float(node.attrs["scale"]))
        bindings: dict[str, Slot] = {"q": _slot(node.inputs["q"]), "kv": _slot(node.inputs["kv"]), "out": node.out}
        yield Dispatch(k, bindings, (graph.config.n_head, PerPosition(split)), node)

    def _attend_combine(self, graph: Graph, node: Node) -> Iterator[Dispatch]:
        stride = padded(node.out.width)
        constants = _only(_head_constants(graph), "N_HEAD", "D", "D_PAD")
        k = kernel("attend_combine", "step", WG=64, STRIDE=stride, SPLIT=self.tuning.split, **constants)
        bindings: dict[str, Slot] = {"x": _slot(node.inputs["x"]), "out": node.out}
        yield Dispatch(k, bindings, (-(-stride // 64), 1), node)

    def _attend(self, graph: Graph, node: Node) -> Iterator[Dispatch]:
        constants = _head_constants(graph)
        scale = float(node.attrs["scale"])
        k = kernel("attend_tile", "step", **constants, STRIDE=padded(node.out.width), SCALE=scale)
        bindings: dict[str, Slot] = {"q": _slot(node.inputs["q"]), "kv": _slot(node.inputs["kv"]), "out": node.out}
        yield Dispatch(k, bindings, (graph.config.n_head, PerRow(16)), node)


def attention_map(graph: Graph, settings: Mapping[str, Any], *, threads: int) -> Kernel:
    """The kernel that shows the attention of a layer; `settings` are what the model gave to `attend`."""
    constants: dict[str, Constant] = {
        **_head_constants(graph),
        "WG": threads,
        "SCALE": float(settings["scale"]),
        "WINDOW": int(settings.get("window") or 0),
    }
    return kernel("attention_map", "step", **constants)


def weight_of(node: Node) -> Weight:
    """The matrix that a linear node multiplies with."""
    weight = node.inputs["weight"]
    assert isinstance(weight, Weight)
    return weight


def describe(dispatch: Dispatch) -> str:
    """A launch in a few words: its kernel and, for a layer, the weights that it reads."""
    weight = dispatch.node.inputs.get("weight")
    name = weight.name.removesuffix(".weight") if isinstance(weight, Weight) else ""
    layer = name.split(".", 2)[2] if name.startswith("h.") else name
    return f"{dispatch.kernel.name} {layer}".strip()


def head_dim_padded(head_dim: int) -> int:
    """Heads are stored as whole vectors of 4."""
    return padded(head_dim, 4)


def cache_floats(graph_config: Any) -> int:
    """f32s in one layer's cache [2, n_head, n_ctx, head_dim padded to 4]."""
    return 2 * int(graph_config.n_head) * int(graph_config.n_ctx) * head_dim_padded(int(graph_config.head_dim))


def _head_constants(graph: Graph) -> dict[str, Constant]:
    config = graph.config
    d = config.head_dim
    return {
        "N_HEAD": config.n_head,
        "N_KV_HEAD": config.n_head,
        "D": d,
        "D_PAD": head_dim_padded(d),
        "N_CTX": config.n_ctx,
    }


def _norm_constants(width: int, attrs: Mapping[str, Any]) -> dict[str, Constant]:
    return {
        "K_TRUE": width,
        "NORM_STRIDE": padded(width, VECTOR_ALIGN),
        "EPSILON": float(attrs.get("epsilon", 0.0)),
        "LAST": bool(attrs.get("last", False)),
    }


def _only(constants: Mapping[str, Constant], *names: str) -> dict[str, Constant]:
    return {name: constants[name] for name in names}


def _part(layout: MatrixLayout, name: str, index: int) -> dict[str, Slot]:
    scales: dict[str, Slot] = {"scales": WeightScales(name, index)} if layout.quantised else {}
    return {"weights": WeightPart(name, index), **scales}


def _enable_first(*pieces: str) -> tuple[str, ...]:
    return tuple(sorted(pieces, key=lambda piece: not piece.startswith("enable_")))


def _rows(tensor: Tensor) -> Axis:
    return 1 if tensor.single else PerRow()


def _slot(value: Any) -> Slot:
    slot: Slot = value
    return slot


def _norm_slot(first: Any, last: Any) -> Vectors:
    return Vectors(first.name, last.name)


def _spread(count: int) -> tuple[int, int]:
    """`count` workgroups over x, then y: one axis holds at most 65,535."""
    y = -(-count // 65_535)
    return -(-count // y), y
