"""Every family's forward pass in NumPy against transformers' own numbers, read with the engine's own loader."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from app.engine.errors import ModelFileError
from app.engine.models import FAMILIES, weight_specs
from app.engine.models.config import Config, config_from_dict
from app.engine.ops.eager import EagerOps, EagerRunner, KVCache, NumpySink
from app.engine.weights.loader import open_checkpoint, stream
from app.engine.weights.spec import WeightSpec, merged
from tests.engine.models.test_config import FAMILIES as CONFIGS
from weights_tool.folder import folder_source

PARITY = Path(__file__).parents[2] / "fixtures" / "parity"
CASES = {
    path.parent.name: json.loads(path.read_text())["model_type"]
    for path in sorted(PARITY.glob("*/config.json"))
    if '"gpt2"' not in path.read_text()
}


async def params_of(folder: Path) -> tuple[Config, dict[str, Any]]:
    source = folder_source(folder)
    checkpoint = await open_checkpoint(source)
    sink = NumpySink(checkpoint.config)
    await stream(checkpoint, weight_specs(checkpoint.config), sink, source=source, piece_bytes=4096)
    return checkpoint.config, sink.params


async def runner_of(folder: Path, **options: Any) -> EagerRunner:
    return EagerRunner(*await params_of(folder), **options)


def test_there_is_a_case_for_every_family() -> None:
    assert {*CASES.values()} == FAMILIES.keys() - {"gpt2"}


@pytest.mark.parametrize("case", CASES)
async def test_logits_and_greedy_continuations(case: str) -> None:
    runner = await runner_of(PARITY / case)
    for prompt in json.loads((PARITY / case / "expected.json").read_text())["prompts"]:
        runner.rewind(0)
        await runner.feed(prompt["ids"])
        np.testing.assert_allclose(await runner.logits(), prompt["logits"], atol=1e-4)
        for token, gap in zip(prompt["greedy"], prompt["gaps"], strict=True):
            if gap < 1e-4:
                break
            assert int((await runner.logits()).argmax()) == token
            await runner.feed([token])


@pytest.mark.parametrize("case", ["llama-one-kv-head", "neo-local-windows", "neox-parallel"])
async def test_a_prompt_in_pieces_gives_the_same_logits(case: str) -> None:
    runner = await runner_of(PARITY / case, context=32)
    ids = list(range(1, 31))
    await runner.feed(ids)
    whole = await runner.logits()
    runner.rewind(5)
    await runner.feed(ids[5:6])
    await runner.feed(ids[6:])
    np.testing.assert_allclose(await runner.logits(), whole, atol=1e-5)
    assert runner.n_ctx == 32


@pytest.mark.parametrize("family", CONFIGS)
def test_stacked_tensors_fill_what_the_model_computes_with(family: str) -> None:
    specs = weight_specs(config_from_dict(CONFIGS[family]))
    whole = {spec.name: spec for spec in merged(specs)}
    assert len({spec.name for spec in specs}) == len(specs)
    for name, spec in whole.items():
        parts = [part for part in specs if part.target == name]
        assert sum(part.shape[0] for part in parts) == spec.shape[0]
    if family in ("llama", "qwen2", "qwen3"):
        assert whole["layers.1.self_attn.qkv_proj.weight"].shape == (
            (4 + 2 * 2) * (16 if family == "qwen3" else 12),
            48,
        )
        assert whole["layers.0.mlp.gate_up_proj.weight"].shape == (160, 48)


async def test_a_head_that_is_missing_is_not_replaced_by_the_embedding(tmp_path: Path) -> None:
    case = PARITY / "neox-sequential"
    shutil.copyfile(case / "config.json", tmp_path / "config.json")
    tensors = load_file(case / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"no tensor 'lm_head.weight'"):
        await params_of(tmp_path)


def test_tensors_that_leave_a_gap_are_a_mistake() -> None:
    first = WeightSpec(name="a", shape=(2, 3), kind="matrix", into="ab")
    with pytest.raises(AssertionError, match="does not follow"):
        merged([first, WeightSpec(name="b", shape=(2, 3), kind="matrix", into="ab", at=3)])


async def test_interleaved_rows_turn_as_halves_do() -> None:
    """GGUF's llama has the rows of queries and keys in another order, in which pairs are neighbours."""
    runner = await runner_of(PARITY / "llama-one-kv-head")
    ids = [3, 1, 4, 1, 5]
    await runner.feed(ids)
    wanted = await runner.logits()

    config = config_from_dict(
        json.loads((PARITY / "llama-one-kv-head" / "config.json").read_text()) | {"rope_interleaved": True}
    )
    source = folder_source(PARITY / "llama-one-kv-head")
    sink = NumpySink(config)
    await stream(await open_checkpoint(source), weight_specs(config), sink, source=source)
    for name, weight in sink.params.items():
        if name.endswith("qkv_proj.weight"):
            turned = weight[: 4 * 20].reshape(4, 2, 10, -1).swapaxes(1, 2).reshape(80, -1)  # as llama.cpp permutes
            weight[:80] = turned
    permuted = EagerRunner(config, sink.params)
    await permuted.feed(ids)
    np.testing.assert_allclose(await permuted.logits(), wanted, atol=1e-5)


def test_attention_through_a_window_sees_nothing_before_it() -> None:
    random = np.random.default_rng(0)
    q = random.normal(size=(6, 2, 4)).astype(np.float32)
    data = random.normal(size=(2, 6, 1, 4)).astype(np.float32)
    narrow = EagerOps(0).attend(q, KVCache(data, 6), scale=0.5, window=1)
    np.testing.assert_allclose(narrow.reshape(6, 2, 4), np.repeat(data[1], 2, axis=1), atol=1e-6)
    changed = data.copy()
    changed[:, :3] = 9.0
    before, after = (EagerOps(0).attend(q, KVCache(kv, 6), scale=0.5, window=3) for kv in (data, changed))
    np.testing.assert_array_equal(before[5], after[5])
    assert not np.allclose(before[4], after[4])
