"""Rewrite rules from the recorded operations to fused kernels.

Each rule is a function over the graph that folds one node into another, wherever that is allowed; `fuse` applies the
named ones in order. With a rule left out the same plan runs with one more kernel: that is how fusing is tested.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from app.engine.ops.record import Graph, Node, Tensor, padded


@dataclass(frozen=True)
class FuseLimits:
    """What the device allows a fused kernel."""

    workgroup_bytes: int = 16384
    """maxComputeWorkgroupStorageSize; a norm or a combined attention is staged there."""


def activation_into_linear(graph: Graph, _: FuseLimits) -> None:
    """linear → activation: the activation joins the linear layer's epilogue."""
    for node in list(graph.nodes):
        if node.op == "activation" and (linear := _foldable(graph, node.inputs["x"])):
            linear.attrs["activation"] = node.attrs["kind"]
            _take_over(graph, linear, node)


def residual_into_linear(graph: Graph, _: FuseLimits) -> None:
    """add(residual, linear): the addition joins the linear layer's epilogue."""
    for node in list(graph.nodes):
        if node.op == "add" and (linear := _foldable(graph, node.inputs["b"])):
            linear.inputs["residual"] = node.inputs["a"]
            _take_over(graph, linear, node)


def cache_into_linear(graph: Graph, _: FuseLimits) -> None:
    """linear → split_heads → append_cache: queries, keys and values are stored where attention reads them."""
    for node in list(graph.nodes):
        if node.op != "split_heads" or not (linear := _foldable(graph, node.inputs["qkv"])):
            continue
        append = graph.only_reader(node.outputs["k"])
        if append is None or append.op != "append_cache" or graph.only_reader(node.outputs["v"]) is not append:
            continue
        linear.op = "linear_qkv"
        linear.inputs["kv"] = append.inputs["kv"]
        linear.outputs = {"out": node.outputs["q"], "kv": append.outputs["kv"]}
        graph.nodes.remove(node)
        graph.nodes.remove(append)


def last_into_norm(graph: Graph, _: FuseLimits) -> None:
    """last → layer_norm: the norm reads the last row where it stands."""
    for node in list(graph.nodes):
        if node.op == "last" and (norm := graph.only_reader(node.out)) and norm.op == "layer_norm":
            norm.inputs["x"] = node.inputs["x"]
            norm.attrs["last"] = True
            graph.nodes.remove(node)


def norm_into_linear(graph: Graph, limits: FuseLimits) -> None:
    """layer_norm → linear of a single row: each workgroup of the matvec norms the row for itself."""
    for node in list(graph.nodes):
        if node.op != "layer_norm" or not node.out.single:
            continue
        linear = graph.only_reader(node.out)
        # the staged row, and the slots of two reductions with up to 256 threads
        needed = 4 * padded(node.out.width) + 2048
        if linear is None or not _is_plain_matvec(linear) or needed > limits.workgroup_bytes:
            continue
        linear.inputs |= {"x": node.inputs["x"], "norm_weight": node.inputs["weight"], "norm_bias": node.inputs["bias"]}
        linear.attrs |= {"prologue": "norm", "epsilon": node.attrs["epsilon"], "last": node.attrs.get("last", False)}
        graph.nodes.remove(node)


def combine_into_linear(graph: Graph, limits: FuseLimits) -> None:
    """attend_combine → linear: the matvec combines the partial results while it reads them."""
    config = graph.config
    needed = 4 * padded(config.n_embd) + 2048
    if config.head_dim % 4 or needed > limits.workgroup_bytes:
        return
    for node in list(graph.nodes):
        if node.op != "attend_combine":
            continue
        linear = graph.only_reader(node.out)
        if linear is not None and _is_plain_matvec(linear):
            linear.inputs["x"] = node.inputs["x"]
            linear.attrs["prologue"] = "combine"
            graph.nodes.remove(node)


Rule = Callable[[Graph, FuseLimits], None]
RULES: dict[str, Rule] = {
    "activation": activation_into_linear,
    "residual": residual_into_linear,
    "cache": cache_into_linear,
    "last": last_into_norm,
    "norm": norm_into_linear,
    "combine": combine_into_linear,
}


def fuse(graph: Graph, *, rules: Collection[str] = tuple(RULES), limits: FuseLimits | None = None) -> Graph:
    """Apply the named rules, in their fixed order, and return the same graph."""
    for name, rule in RULES.items():
        if name in rules:
            rule(graph, limits or FuseLimits())
    return graph


def _foldable(graph: Graph, value: object) -> Node | None:
    """The linear node behind `value`, if its epilogue is free and nobody else reads it."""
    if not isinstance(value, Tensor):
        return None
    node = graph.producer(value)
    free = node is not None and node.op == "linear" and not {"activation"} & node.attrs.keys()
    return node if free and node and "residual" not in node.inputs and graph.only_reader(value) else None


def _take_over(graph: Graph, linear: Node, node: Node) -> None:
    """Let `linear` write what `node` wrote, and run where `node` ran, by when all of its inputs exist."""
    linear.outputs = {"out": node.out}
    graph.nodes.remove(linear)
    graph.nodes[graph.nodes.index(node)] = linear


def _is_plain_matvec(node: Node) -> bool:
    return node.op in ("linear", "linear_qkv") and node.out.single and "prologue" not in node.attrs
