"""Which kernels a graph gets, how weights are laid out, and how kernels are put together; no GPU needed."""

import pytest

from app.engine.gpu.kernels import kernel, wgsl_folder
from app.engine.gpu.layout import matrix_layout, vector_offsets
from app.engine.gpu.select import PerPosition, Selector, Tuning, WeightPart
from app.engine.models import FAMILIES, weight_specs
from app.engine.ops.fuse import RULES, fuse
from app.engine.ops.record import Graph
from app.engine.weights.spec import merged
from tests.engine.ops.test_fuse import graph_of, graph_of_family


def selector(
    precision: str = "f16", *, graph: Graph | None = None, max_bytes: int = 1 << 27, tuning: Tuning | None = None
) -> Selector:
    config = (graph or graph_of(single=True)).config
    shapes = {spec.name: spec.out_shape for spec in merged(weight_specs(config)) if spec.kind != "vector"}
    layouts = {name: matrix_layout(r, c, precision, max_bytes=max_bytes) for name, (r, c) in shapes.items()}
    return Selector(layouts, tuning or Tuning())


@pytest.mark.parametrize("precision", ["f32", "f16", "q8", "q4"])
@pytest.mark.parametrize("rules", [[], list(RULES)], ids=["unfused", "fused"])
@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("subgroup_size", [None, 0, 32])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_dispatch_binds_what_its_kernel_declares(
    precision: str, rules: list[str], single: bool, subgroup_size: int | None, family: str
) -> None:
    graph = fuse(graph_of_family(family, single=single), rules=rules)
    chosen = selector(precision, graph=graph, tuning=Tuning(subgroup_size=subgroup_size))
    for dispatch in chosen.dispatches(graph):
        declared = dispatch.kernel.bindings()
        assert declared.keys() - {"step"} == dispatch.bindings.keys()
        storage = [binding for binding in declared.values() if binding.type != "uniform"]
        assert len(storage) <= 8, "the default maxStorageBuffersPerShaderStage"
        assert len({binding.number for binding in declared.values()}) == len(declared)


@pytest.mark.parametrize(
    ("family", "wanted"), [("llama", 5), ("qwen2", 5), ("qwen3", 6), ("gpt_neo", 5), ("gpt_neox", 5)]
)
def test_a_token_takes_so_many_launches_a_layer(family: str, wanted: int) -> None:
    graph = fuse(graph_of_family(family, single=True))
    assert len(selector(graph=graph).dispatches(graph)) == 2 * wanted + 2  # the embedding, and lm_head


def test_few_long_rows_are_shared_by_more_threads() -> None:
    chosen = selector(tuning=Tuning(lanes=32, most_lanes=128))
    assert chosen._lanes(896, 304, 128) == 128  # Qwen2.5-0.5B's down_proj in q8
    assert chosen._lanes(768, 96, 256) == 64  # GPT-2's attn.c_proj in f16
    assert chosen._lanes(3072, 96, 128) == 32  # its c_fc has rows enough
    assert chosen._lanes(50257, 96, 128) == 32
    assert chosen._lanes(768, 24, 128) == 32  # too short
    assert chosen._lanes(896, 304, 32) == 32
    assert selector(tuning=Tuning(lanes=4, most_lanes=4))._lanes(896, 304, 64) == 4


def test_layers_share_their_pipelines() -> None:
    dispatches = selector().dispatches(fuse(graph_of(single=True, n_layer=3)))
    assert len({dispatch.kernel for dispatch in dispatches}) == 7


def test_a_matrix_in_parts_takes_a_launch_for_each() -> None:
    whole = selector().dispatches(fuse(graph_of(single=True)))
    parts = selector(max_bytes=2048).dispatches(fuse(graph_of(single=True)))
    assert len(parts) > len(whole)
    heads = [d.bindings["weights"] for d in parts if d.bindings.get("weights") == WeightPart("wte.weight", 1)]
    assert heads


def test_attention_over_the_cache_grows_with_its_length() -> None:
    attend = next(d for d in selector().dispatches(fuse(graph_of(single=True))) if d.kernel.name == "attend_split")
    assert attend.grid == (4, PerPosition(Tuning.split))


@pytest.mark.parametrize("rows", [1, 4, 97, 50257])
@pytest.mark.parametrize("precision", ["f32", "f16", "q8", "q4"])
@pytest.mark.parametrize("max_bytes", [4096, 100_000, 1 << 27])
def test_parts_cover_a_matrix_and_fit(rows: int, precision: str, max_bytes: int) -> None:
    layout = matrix_layout(rows, 100, precision, max_bytes=max_bytes)
    assert layout.k == 128
    assert [part.first for part in layout.parts[1:]] == [part.first + part.rows for part in layout.parts[:-1]]
    assert layout.parts[-1].first + layout.parts[-1].rows == rows
    assert all(layout.part_bytes(part) <= max_bytes for part in layout.parts)


def test_vectors_lie_side_by_side_and_aligned() -> None:
    offsets, size = vector_offsets({"a": (3,), "b": (65,), "c": (64,)})
    assert offsets == {"a": 0, "b": 256, "c": 768}
    assert size == 1024


def test_constants_and_directives_come_first() -> None:
    source = kernel("add", "enable_subgroups", WG=64, STRIDE=32, EPSILON=1e-5, ON=True).source()
    assert source.startswith("enable subgroups;")
    for line in ("const WG: u32 = 64u;", "const EPSILON: f32 = 1e-05;", "const ON: bool = true;"):
        assert line in source


def test_kernels_say_what_they_do() -> None:
    for path in [*wgsl_folder().glob("*.wgsl"), *wgsl_folder().glob("lib/*.wgsl")]:
        if path.name != "enable_subgroups.wgsl":
            assert path.read_text().startswith("// "), f"{path.name} has no comment at its start"
