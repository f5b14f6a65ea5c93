"""Rewrite rules from the recorded operations to fused kernels.

Each rule is a function over the graph that folds one node into another, wherever that is allowed; `fuse` applies the
named ones in order. With a rule left out the same plan runs with one more kernel: that is how fusing is tested.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from app.engine.ops.record import Graph, Node, Tensor, Weight, padded

_NORMS = ("layer_norm", "rms_norm")


@dataclass(frozen=True)
class FuseLimits:
    """What the device allows a fused kernel."""

    workgroup_bytes: int = 16384
    """maxComputeWorkgroupStorageSize; a norm or a combined attention is staged there."""
    in_parts: Collection[str] = ()
    """Matrices that are larger than a binding. Rows that a kernel needs together may lie in two parts of them."""


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


def gate_into_linear(graph: Graph, limits: FuseLimits) -> None:
    """linear → gated: a gate and what it lets through are computed by the same threads."""
    for node in list(graph.nodes):
        if node.op == "gated" and (linear := _foldable(graph, node.inputs["x"])) and _whole(linear, limits):
            linear.op = "linear_gated"
            linear.attrs["activation"] = node.attrs["kind"]
            _take_over(graph, linear, node)


def heads_into_one(graph: Graph, _: FuseLimits) -> None:
    """split_heads → head_norm → rotate → append_cache: all between a QKV matrix and attention."""
    for node in list(graph.nodes):
        if node.op != "split_heads":
            continue
        queries, keys = (_chain(graph, node.outputs[name]) for name in "qk")
        q, k = (chain[-1].out if chain else node.outputs[name] for name, chain in (("q", queries), ("k", keys)))
        append = graph.only_reader(k)
        alike = [(link.op, link.attrs) for link in queries] == [(link.op, link.attrs) for link in keys]
        if not alike or append is None or append.op != "append_cache":
            continue
        if graph.only_reader(node.outputs["v"]) is not append:
            continue
        weights = [link.inputs["weight"] for link in (*queries, *keys) if link.op == "head_norm"]
        inputs = {"qkv": node.inputs["qkv"], "kv": append.inputs["kv"]}
        inputs |= dict(zip(("q_norm", "k_norm"), weights, strict=False))
        attrs = {key: value for link in (node, *queries) for key, value in link.attrs.items()}
        together = Node("heads", inputs, {"out": q, "kv": append.outputs["kv"]}, attrs)
        graph.nodes[graph.nodes.index(append)] = together
        for link in (node, *queries, *keys):
            graph.nodes.remove(link)


def cache_into_linear(graph: Graph, limits: FuseLimits) -> None:
    """linear → heads without a norm: queries, keys and values are turned and stored where attention reads them."""
    for node in list(graph.nodes):
        if node.op != "heads" or "q_norm" in node.inputs or not (linear := _foldable(graph, node.inputs["qkv"])):
            continue
        if "rope" in node.attrs and not _whole(linear, limits):
            continue
        linear.op = "linear_qkv"
        linear.inputs["kv"] = node.inputs["kv"]
        linear.attrs |= node.attrs
        graph.nodes.remove(linear)
        graph.nodes[graph.nodes.index(node)] = linear
        linear.outputs = node.outputs


def last_into_norm(graph: Graph, _: FuseLimits) -> None:
    """last → norm: the norm reads the last row where it stands."""
    for node in list(graph.nodes):
        if node.op == "last" and (norm := graph.only_reader(node.out)) and norm.op in _NORMS:
            norm.inputs["x"] = node.inputs["x"]
            norm.attrs["last"] = True
            graph.nodes.remove(node)


def norm_into_linear(graph: Graph, limits: FuseLimits) -> None:
    """norm → linear of a single row: each workgroup of the matvec norms the row for itself."""
    for node in list(graph.nodes):
        if node.op not in _NORMS or not node.out.single:
            continue
        linear = graph.only_reader(node.out)
        # the staged row, and the slots of two reductions with up to 256 threads
        needed = 4 * padded(node.out.width) + 2048
        if linear is None or not _is_plain_matvec(linear) or needed > limits.workgroup_bytes:
            continue
        linear.inputs |= {f"norm_{name}": node.inputs[name] for name in ("weight", "bias") if name in node.inputs}
        linear.inputs["x"] = node.inputs["x"]
        linear.attrs |= {"prologue": node.op, "epsilon": node.attrs["epsilon"], "last": node.attrs.get("last", False)}
        graph.nodes.remove(node)


def combine_into_linear(graph: Graph, limits: FuseLimits) -> None:
    """attend_combine → linear: the matvec combines the partial results while it reads them."""
    config = graph.config
    needed = 4 * padded(config.n_head * config.head_dim) + 2048
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
    "gate": gate_into_linear,
    "residual": residual_into_linear,
    "heads": heads_into_one,
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


def _whole(linear: Node, limits: FuseLimits) -> bool:
    """Whether all rows of the node's matrix are in one binding."""
    weight = linear.inputs["weight"]
    return isinstance(weight, Weight) and weight.name not in limits.in_parts


def _chain(graph: Graph, value: object) -> list[Node]:
    """The nodes that change a head's features, one after the other, from `value` on."""
    links: list[Node] = []
    while isinstance(value, Tensor) and (link := graph.only_reader(value)) and link.op in ("head_norm", "rotate"):
        links.append(link)
        value = link.out
    return links


def _take_over(graph: Graph, linear: Node, node: Node) -> None:
    """Let `linear` write what `node` wrote, and run where `node` ran, by when all of its inputs exist."""
    linear.outputs = {"out": node.out}
    graph.nodes.remove(linear)
    graph.nodes[graph.nodes.index(node)] = linear


def _is_plain_matvec(node: Node) -> bool:
    return node.op in ("linear", "linear_qkv", "linear_gated") and node.out.single and "prologue" not in node.attrs
