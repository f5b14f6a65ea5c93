"""What is recorded, and what each rule makes of it. Whether the results agree is tested on a GPU."""

from collections import Counter

import pytest

from app.engine.models import FAMILIES, forward, nest, weight_specs
from app.engine.models.config import Config, GPT2Config, config_from_dict
from app.engine.ops.fuse import RULES, FuseLimits, fuse
from app.engine.ops.record import Graph, Tensor, Weight, last_uses, record
from app.engine.weights.spec import merged
from tests.engine.models.test_config import FAMILIES as CONFIGS


def recorded(config: Config, *, single: bool, context: int | None = None) -> Graph:
    params = nest({spec.name: Weight(spec.name, spec.out_shape) for spec in merged(weight_specs(config))})
    return record(forward(config), params, config, single=single, context=context)


def graph_of(*, single: bool, n_layer: int = 3, n_embd: int = 64, n_head: int = 4) -> Graph:
    config = GPT2Config(n_layer=n_layer, n_head=n_head, n_embd=n_embd, n_vocab=100, n_ctx=32, n_inner=4 * n_embd)
    return recorded(config, single=single)


def graph_of_family(family: str, *, single: bool) -> Graph:
    """Of two layers."""
    return recorded(config_from_dict(CONFIGS[family]), single=single, context=20)


def ops_of(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes)


def test_the_recorded_operations_are_the_models() -> None:
    ops = ops_of(graph_of(single=False))
    assert ops == {
        "embed": 1, "layer_norm": 7, "linear": 13, "split_heads": 3, "append_cache": 3, "attend": 3,
        "activation": 3, "add": 6, "last": 1,
    }  # fmt: skip


def test_a_fused_token_takes_five_launches_a_layer() -> None:
    graph = fuse(graph_of(single=True, n_layer=12))
    assert ops_of(graph) == {"embed": 1, "linear_qkv": 12, "attend_split": 12, "linear": 37}
    assert len(graph.nodes) == 62


def test_a_fused_chunk_keeps_its_norms_and_attention() -> None:
    assert ops_of(fuse(graph_of(single=False))) == {
        "embed": 1, "layer_norm": 6, "linear_qkv": 3, "attend": 3, "linear": 10,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("family", "wanted"),
    [
        ("llama", {"embed": 1, "linear_qkv": 2, "attend_split": 2, "linear_gated": 2, "linear": 5}),
        ("qwen2", {"embed": 1, "linear_qkv": 2, "attend_split": 2, "linear_gated": 2, "linear": 5}),
        # The norm of a head needs all of it, which several workgroups compute.
        ("qwen3", {"embed": 1, "heads": 2, "attend_split": 2, "linear_gated": 2, "linear": 7}),
        ("gpt_neo", {"embed": 1, "linear_qkv": 2, "attend_split": 2, "linear": 7}),
        ("gpt_neox", {"embed": 1, "linear_qkv": 2, "attend_split": 2, "linear": 7}),
    ],
)
def test_a_fused_token_of_each_family(family: str, wanted: dict[str, int]) -> None:
    assert ops_of(fuse(graph_of_family(family, single=True))) == wanted


def test_rows_that_belong_together_may_not_be_in_two_parts() -> None:
    weights = [f"layers.0.{name}.weight" for name in ("self_attn.qkv_proj", "mlp.gate_up_proj")]
    ops = ops_of(fuse(graph_of_family("llama", single=True), limits=FuseLimits(in_parts=weights)))
    assert ops == {
        "embed": 1, "linear_qkv": 1, "heads": 1, "attend_split": 2, "linear_gated": 1, "gated": 1, "linear": 7,
    }  # fmt: skip
    fused = fuse(graph_of(single=True), limits=FuseLimits(in_parts=["h.0.attn.c_attn.weight"]))
    assert ops_of(fused)["linear_qkv"] == 3  # GPT-2's rows stand alone


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("single", [True, False])
def test_leaving_a_rule_out_leaves_more_nodes_or_as_many(family: str, single: bool) -> None:
    fused = len(fuse(graph_of_family(family, single=single)).nodes)
    for rule in RULES:
        others = [name for name in RULES if name != rule]
        assert len(fuse(graph_of_family(family, single=single), rules=others).nodes) >= fused
    graph = graph_of_family(family, single=single)
    assert len(fuse(graph_of_family(family, single=single), rules=[]).nodes) == len(graph.nodes)


def test_norms_too_wide_for_workgroup_memory_stay_alone() -> None:
    graph = fuse(graph_of(single=True, n_embd=4096, n_head=32), limits=FuseLimits(workgroup_bytes=16384))
    assert ops_of(graph)["layer_norm"] == 7
    assert ops_of(graph)["attend_combine"] == 3


def test_heads_that_are_no_whole_vectors_are_combined_alone() -> None:
    assert ops_of(fuse(graph_of(single=True, n_embd=60, n_head=10)))["attend_combine"] == 3


def test_a_tapped_tensor_is_not_fused_away() -> None:
    graph = graph_of(single=True)
    tapped = next(node for node in graph.nodes if node.op == "layer_norm").out
    graph.taps["first norm"] = tapped
    fuse(graph)
    assert graph.producer(tapped) is not None
    assert ops_of(graph)["layer_norm"] == 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("single", [True, False])
def test_every_input_is_computed_before_it_is_read(family: str, single: bool) -> None:
    for rules in ([], list(RULES)):
        graph = fuse(graph_of_family(family, single=single), rules=rules)
        known = {graph.ids}
        for node in graph.nodes:
            needed = {value for value in node.inputs.values() if isinstance(value, Tensor)}
            assert needed <= known
            known |= {value for value in node.outputs.values() if isinstance(value, Tensor)}
        assert graph.result in known


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_tensors_are_freed_after_their_last_reader_only(family: str) -> None:
    graph = fuse(graph_of_family(family, single=False))
    freed = last_uses(graph.nodes, [graph.result])
    gone: set[Tensor] = set()
    for node, now in zip(graph.nodes, freed, strict=True):
        assert not gone & {*node.inputs.values(), *node.outputs.values()}
        gone |= set(now)
    assert graph.result not in gone
