"""The NumPy operations against transformers' own numbers."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from app.engine.models import weight_specs
from app.engine.models.config import parse_config
from app.engine.ops.eager import EagerOps, EagerRunner, NumpySink, erf
from app.engine.weights.blocks import to_float32
from app.engine.weights.transport import BytesBlob

FIXTURES = Path(__file__).parents[2] / "fixtures" / "parity"
STORY = Path(__file__).parents[3] / "static" / "models" / "story"
F32_CASES = ["plain-f32", "inverse-layer-scale", "head-64-masks"]


async def runner_of(folder: Path) -> EagerRunner:
    config = parse_config((folder / "config.json").read_bytes())
    tensors = load_file(folder / "model.safetensors")
    sink = NumpySink(config)
    for spec in weight_specs(config):
        array = tensors.get(spec.name, tensors.get(f"transformer.{spec.name}"))
        assert array is not None
        dtype = {"float32": "F32", "float16": "F16"}[str(array.dtype)]
        rows = array.shape[0] if array.ndim > 1 else 1
        half = rows // 64 * 32  # in two pieces, as a loader may cut them
        if half:
            await sink.write(spec, dtype, 0, half, BytesBlob.of(array[:half].tobytes()))
        await sink.write(spec, dtype, half, rows - half, BytesBlob.of(array[half:].tobytes()))
    return EagerRunner(config, sink.params)


@pytest.mark.parametrize("case", F32_CASES)
async def test_logits_and_greedy_continuations(case: str) -> None:
    runner = await runner_of(FIXTURES / case)
    for prompt in json.loads((FIXTURES / case / "expected.json").read_text())["prompts"]:
        runner.rewind(0)
        await runner.feed(prompt["ids"])
        np.testing.assert_allclose(await runner.logits(), prompt["logits"], atol=1e-4)
        tokens = []
        for _ in prompt["greedy"]:
            tokens.append(int((await runner.logits()).argmax()))
            await runner.feed(tokens[-1:])
        assert tokens == prompt["greedy"]


async def test_the_story_model_reproduces_its_reference() -> None:
    runner = await runner_of(STORY)
    for prompt in json.loads((STORY / "reference.json").read_text())["prompts"]:
        runner.rewind(0)
        await runner.feed(prompt["ids"])
        logits = await runner.logits()
        np.testing.assert_allclose(logits[prompt["top20_ids"]], prompt["top20_logits"], atol=1e-4)
        tokens = []
        for _ in prompt["greedy_ids"]:
            tokens.append(int((await runner.logits()).argmax()))
            await runner.feed(tokens[-1:])
        assert tokens == prompt["greedy_ids"]


async def test_a_prompt_in_pieces_gives_the_same_logits() -> None:
    runner = await runner_of(FIXTURES / "plain-f32")
    ids = list(range(20))
    await runner.feed(ids)
    whole = await runner.logits()
    runner.rewind(7)
    await runner.feed(ids[7:8])
    await runner.feed(ids[8:])
    np.testing.assert_allclose(await runner.logits(), whole, atol=1e-5)
    assert runner.memory()["cache"] > 0
    runner.free()


def test_erf() -> None:
    x = np.linspace(-5, 5, 1001, dtype=np.float32)
    np.testing.assert_allclose(erf(x), [math.erf(value) for value in x], atol=3e-7)


@pytest.mark.parametrize("kind", ["gelu_new", "gelu", "relu", "silu"])
def test_activations_stay_finite(kind: str) -> None:
    x = np.array([[-1e4, -100, 0, 100, 1e4]], np.float32)
    result = EagerOps().activation(x, kind=kind)
    np.testing.assert_allclose(result, np.maximum(x, 0), atol=1e-5)


@pytest.mark.parametrize("dtype", ["F32", "F16"])
def test_decoding_of_dtypes(dtype: str) -> None:
    values = np.array([0.0, -1.5, 65504.0, 1e-7], np.float32 if dtype == "F32" else np.float16)
    data: Any = save({"x": values})[-values.nbytes :]
    np.testing.assert_array_equal(to_float32(data, dtype), values.astype(np.float32))


def test_decoding_of_bf16() -> None:
    np.testing.assert_array_equal(to_float32(b"\x80\x3f\x00\xc0", "BF16"), [1.0, -2.0])
