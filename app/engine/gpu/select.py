"""Picks a kernel, its constants, bindings and grid for each node of a graph. Pure Python: nothing here needs a GPU."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from app.engine.gpu.kernels import Constant, Kernel, kernel
from app.engine.gpu.layout import BITS, VECTOR_ALIGN, MatrixLayout
from app.engine.models.config import Config
from app.engine.models.rope import Rope
from app.engine.ops.record import Cache, Graph, Node, Tensor, Weight, padded

ACTIVATION_NUMBERS = {None: 0, "gelu_new": 1, "gelu": 2, "relu": 3, "silu": 4}
_PROLOGUE_NUMBERS = {None: 0, "layer_norm": 1, "combine": 2, "rms_norm": 3}


_EARLY_CHUNKS = 4
"""Loads of weights that a thread starts before all else: as many as registers are cheap for."""
_ENOUGH_WORKGROUPS = 1024
"""Workgroups that fill any GPU."""
_ENOUGH_THREADS = 65_536
"""Threads that do."""


@dataclass(frozen=True)
class Tuning:
    """What differs between adapters. The defaults are right everywhere."""

    subgroup_size: int | None = None
    """None: no subgroup operations. 0: they exist, in varying sizes up to `lanes`. Else the one size that occurs."""
    lanes: int = 32
    """Threads that share a row of a matvec, where there are many rows."""
    most_lanes: int = 128
    """Threads that share a long row at most, where there are few rows."""
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


Slot = Tensor | Cache | WeightPart | WeightScales | Vectors | Weight | Literal["step", "angles", "none"]
"""What a binding is given: an activation, a layer's cache, weights, the step's numbers, the angles of rotary positions,
or a buffer nobody reads."""


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
        wte, wpe = node.inputs["wte"], node.inputs.get("wpe", "none")
        assert isinstance(wte, Weight)
        layout = self.matrices[wte.name]
        for index, part in enumerate(layout.parts):
            pieces = ("step", f"weights_{layout.precision}")
            shape: dict[str, Constant] = {"K": layout.k, "K_TRUE": layout.columns, "POSITIONS": wpe != "none"}
            k = kernel("embed", *pieces, WG=64, **shape, ROW_BASE=part.first, PART=part.rows)
            bindings: dict[str, Slot] = {"ids": _slot(node.inputs["ids"]), "out": node.out, "wpe": _slot(wpe)}
            yield Dispatch(k, {**bindings, **_part(layout, wte.name, index)}, (1, PerRow()), node)

    def _layer_norm(self, _: Graph, node: Node) -> Iterator[Dispatch]:
        width = node.out.width
        pieces, constants = self._reduce(128, 128)
        k = kernel(
            node.op,
            *_enable_first("step", *pieces),
            **constants,
            **_norm_constants(width, node.attrs),
            K=padded(width),
        )
        norm = _vectors(node, "weight", "bias")
        yield Dispatch(k, {"x": _slot(node.inputs["x"]), "out": node.out, "norm": norm}, (1, _rows(node.out)), node)

    _rms_norm = _layer_norm

    def _linear(self, graph: Graph, node: Node) -> Iterator[Dispatch]:
        weight, inputs = weight_of(node), node.inputs
        layout = self.matrices[weight.name]
        bindings: dict[str, Slot] = {"x": _slot(inputs["x"]), "out": node.out, "bias": _vectors(node, "bias")}
        constants: dict[str, Constant] = {
            **_head_constants(graph),
            "K": layout.k,
            "N": layout.rows,
            "OUT_STRIDE": padded(node.out.width),
            "BIAS": "bias" in inputs,
            "ACTIVATION": ACTIVATION_NUMBERS[node.attrs.get("activation")],
        }
        paired = False
        if node.op == "linear_qkv":
            constants |= _rope_constants(node)
            bindings |= {"kv": _slot(inputs["kv"]), "angles": "angles" if "rope" in node.attrs else "none"}
            paired = "rope" in node.attrs
            end: tuple[str, ...] = ("heads", "epilogue_heads")
            items = layout.rows // (2 if paired else 1)
        elif node.op == "linear_gated":
            constants["N"] = node.out.width
            paired = True
            end = ("activation", "epilogue_gated")
            items = padded(node.out.width)
        else:
            constants["RESIDUAL"] = "residual" in inputs
            bindings["residual"] = _slot(inputs.get("residual", "none"))
            end = ("activation", "epilogue")
            items = padded(layout.rows)
        assert not paired or len(layout.parts) == 1, f"{weight.name} is in parts"
        assert not paired or self.tuning.tile // self.tuning.side % 2 == 0, "a thread's block must hold whole pairs"
        pieces = ("step", f"weights_{layout.precision}", *end)
        for index, part in enumerate(layout.parts):
            # The last part also writes the output's padding.
            is_last = index == len(layout.parts) - 1
            count = items - part.first if is_last else part.rows
            mine: dict[str, Slot] = {**bindings, **_part(layout, weight.name, index)}
            shared = {**constants, "ROW_BASE": part.first, "ROWS": count, "PART": part.rows}
            if node.out.single:
                yield self._matvec(node, pieces, shared, mine, count, paired=paired)
            else:
                tile = self.tuning.tile
                grid = (-(-count * (2 if paired else 1) // tile), PerRow(tile))
                yield Dispatch(kernel("matmul", *pieces, **shared, TILE=tile, SIDE=self.tuning.side), mine, grid, node)

    _linear_qkv = _linear_gated = _linear

    def _matvec(
        self,
        node: Node,
        pieces: tuple[str, ...],
        constants: dict[str, Constant],
        bindings: dict[str, Slot],
        items: int,
        *,
        paired: bool,
    ) -> Dispatch:
        prologue = node.attrs.get("prologue")
        threads = self.tuning.combine_threads if prologue == "combine" else self.tuning.matvec_threads
        k = int(constants["K"])
        in_row = k * BITS[self.matrices[weight_of(node).name].precision] // 128
        lanes = self._lanes(items, in_row, threads)
        reduce_pieces, reduce_constants = self._reduce(lanes, threads)
        chunks = -(-in_row // lanes)
        early = min(chunks, _EARLY_CHUNKS // (2 if paired else 1))
        # A prologue is worth many items where there are more workgroups than a GPU runs at once anyway.
        repeat = max(1, min(8, items // (threads // lanes) // _ENOUGH_WORKGROUPS)) if prologue else 1
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
        bindings["norm"] = _vectors(node, "norm_weight", "norm_bias")
        name = kernel("matvec", *_enable_first(*pieces, *reduce_pieces), **constants)
        return Dispatch(name, bindings, _spread(-(-items // (threads // lanes * repeat))), node)

    def _lanes(self, items: int, chunks: int, threads: int) -> int:
        """How many threads share an item with rows of so many chunks: more than `lanes` if the GPU has too little to do
        otherwise, and each still has a few chunks."""
        lanes = self.tuning.lanes
        most = min(self.tuning.most_lanes, threads)
        while 2 * lanes <= most and chunks >= 3 * lanes and items * lanes < _ENOUGH_THREADS:
            lanes *= 2
        return lanes

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

    def _gated(self, _: Graph, node: Node) -> Iterator[Dispatch]:
        x = node.inputs["x"]
        assert isinstance(x, Tensor)
        stride, width = padded(node.out.width), node.out.width
        kind = ACTIVATION_NUMBERS[node.attrs["kind"]]
        k = kernel("gated", "activation", WG=64, STRIDE=stride, X_STRIDE=padded(x.width), N=width, ACTIVATION=kind)
        yield Dispatch(k, {"x": x, "out": node.out}, (-(-stride // 64), _rows(node.out)), node)

    def _add(self, _: Graph, node: Node) -> Iterator[Dispatch]:
        yield self._elementwise("add", node, {"a": "a", "b": "b"})

    def _last(self, _: Graph, node: Node) -> Iterator[Dispatch]:
        yield self._elementwise("last", node, {"x": "x"}, "step")

    def _split_heads(self, graph: Graph, node: Node) -> Iterator[Dispatch]:
        qkv = node.inputs["qkv"]
        assert isinstance(qkv, Tensor)
        constants = _only(_head_constants(graph), "N_HEAD", "N_KV_HEAD", "D", "D_PAD")
        constants["QKV_INTERLEAVED"] = bool(node.attrs["interleaved"])
        k = kernel("split_heads", WG=64, STRIDE=padded(qkv.width), **constants)
        bindings: dict[str, Slot] = {"qkv": qkv, **{name: _slot(node.outputs[name]) for name in "qkv"}}
        yield Dispatch(k, bindings, (-(-qkv.width // 64), _rows(qkv)), node)

    def _heads(self, graph: Graph, node: Node) -> Iterator[Dispatch]:
        qkv, config = node.inputs["qkv"], graph.config
        assert isinstance(qkv, Tensor)
        reduce_pieces, reduce_constants = self._reduce(self.tuning.lanes, self.tuning.lanes)
        constants: dict[str, Constant] = {
            **_head_constants(graph),
            **_rope_constants(node),
            **reduce_constants,
            **_only(_norm_constants(config.head_dim, node.attrs), "NORM_STRIDE", "EPSILON"),
            "STRIDE": padded(qkv.width),
            "NORMED": "q_norm" in node.inputs,
        }
        k = kernel("heads", *_enable_first("step", "heads", *reduce_pieces), **constants)
        bindings: dict[str, Slot] = {
            "qkv": qkv,
            "out": node.out,
            "kv": _slot(node.inputs["kv"]),
            "norm": _vectors(node, "q_norm", "k_norm"),
            "angles": "angles" if "rope" in node.attrs else "none",
        }
        rows: Axis = 1 if graph.single else PerRow()
        yield Dispatch(k, bindings, (config.n_head + 2 * config.n_kv_head, rows), node)

    def _head_norm(self, graph: Graph, node: Node) -> Iterator[Dispatch]:
        heads = node.out.width // graph.config.head_dim
        reduce_pieces, constants = self._reduce(self.tuning.lanes, self.tuning.lanes)
        constants |= {**_only(_head_constants(graph), "D", "D_PAD"), "HEADS": heads, "EPSILON": node.attrs["epsilon"]}
        k = kernel("head_norm", *_enable_first(*reduce_pieces), **constants)
        bindings = {"x": _slot(node.inputs["x"]), "out": node.out, "norm": _vectors(node, "weight")}
        yield Dispatch(k, bindings, (heads, 1 if graph.single else PerRow()), node)

    def _rotate(self, graph: Graph, node: Node) -> Iterator[Dispatch]:
        heads = node.out.width // graph.config.head_dim
        constants = {**_head_constants(graph), **_rope_constants(node), "HEADS": heads}
        k = kernel("rotate", "step", "heads", WG=64, **constants)
        bindings: dict[str, Slot] = {"x": _slot(node.inputs["x"]), "out": node.out, "angles": "angles"}
        yield Dispatch(k, bindings, (-(-node.out.width // 2 // 64), 1 if graph.single else PerRow()), node)

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
        k = kernel("attend_split", "step", **constants, **_attention_constants(node.attrs))
        bindings: dict[str, Slot] = {"q": _slot(node.inputs["q"]), "kv": _slot(node.inputs["kv"]), "out": node.out}
        yield Dispatch(k, bindings, (graph.config.n_head, PerPosition(split)), node)

    def _attend_combine(self, graph: Graph, node: Node) -> Iterator[Dispatch]:
        stride = padded(node.out.width)
        constants = _only(_head_constants(graph), "N_HEAD", "D", "D_PAD")
        k = kernel("attend_combine", "step", WG=64, STRIDE=stride, SPLIT=self.tuning.split, **constants)
        bindings: dict[str, Slot] = {"x": _slot(node.inputs["x"]), "out": node.out}
        yield Dispatch(k, bindings, (-(-stride // 64), 1), node)

    def _attend(self, graph: Graph, node: Node) -> Iterator[Dispatch]:
        constants = {**_head_constants(graph), **_attention_constants(node.attrs)}
        k = kernel("attend_tile", "step", **constants, STRIDE=padded(node.out.width))
        bindings: dict[str, Slot] = {"q": _slot(node.inputs["q"]), "kv": _slot(node.inputs["kv"]), "out": node.out}
        yield Dispatch(k, bindings, (graph.config.n_head, PerRow(16)), node)


def attention_map(graph: Graph, settings: Mapping[str, Any], *, threads: int) -> Kernel:
    """The kernel that shows the attention of a layer; `settings` are what the model gave to `attend`."""
    constants: dict[str, Constant] = {
        **_head_constants(graph),
        "WG": threads,
        **_attention_constants(settings),
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
    layer = name.split(".", 2)[2] if name.startswith(("h.", "layers.")) else name
    return f"{dispatch.kernel.name} {layer}".strip()


def head_dim_padded(head_dim: int) -> int:
    """Heads are stored as whole vectors of 4."""
    return padded(head_dim, 4)


def cache_floats(config: Config, context: int) -> int:
    """f32s in one layer's cache [2, n_kv_head, context, head_dim padded to 4]."""
    return 2 * config.n_kv_head * context * head_dim_padded(config.head_dim)


def _head_constants(graph: Graph) -> dict[str, Constant]:
    config = graph.config
    d = config.head_dim
    return {
        "N_HEAD": config.n_head,
        "N_KV_HEAD": config.n_kv_head,
        "D": d,
        "D_PAD": head_dim_padded(d),
        "N_CTX": graph.context,
    }


def _rope_constants(node: Node) -> dict[str, Constant]:
    rope: Rope | None = node.attrs.get("rope")
    return {
        "ROTARY": 0 if rope is None else rope.width,
        "ROPE_INTERLEAVED": rope is not None and rope.interleaved,
        "QKV_INTERLEAVED": bool(node.attrs.get("interleaved", False)),
    }


def _attention_constants(attrs: Mapping[str, Any]) -> dict[str, Constant]:
    return {"SCALE": float(attrs["scale"]), "WINDOW": int(attrs.get("window") or 0)}


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


def _vectors(node: Node, *names: str) -> Slot:
    """The vectors among a node's inputs that have these names, which lie one behind the other."""
    found = [vector.name for name in names if isinstance(vector := node.inputs.get(name), Weight)]
    return Vectors(found[0], found[-1]) if found else "none"


def _spread(count: int) -> tuple[int, int]:
    """`count` workgroups over x, then y: one axis holds at most 65,535."""
    y = -(-count // 65_535)
    return -(-count // y), y
