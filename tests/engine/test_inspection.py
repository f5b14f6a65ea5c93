"""What is shown of a model must be what it computes: each view is checked against another way to get it."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import ANY

import numpy as np
import pytest

from app.engine.backends import NumpyBackend
from app.engine.engine import Engine
from app.engine.errors import BusyError, CancelledError, OptionError
from app.engine.generate import Result, TokenEvent, generate
from app.engine.inspection import inspect, parse_inspect, pooled, watched
from app.engine.models import weight_specs
from app.engine.ops.eager import EagerOps, EagerRunner
from app.engine.ops.tap import Tap, attention_weights
from app.engine.options import parse_options
from app.engine.profiling import profile
from app.engine.token_source import TokenSource
from app.engine.tokenizer import Tokenizer
from app.engine.weights.loader import load_tokenizer, open_checkpoint, stream
from app.engine.weights.spec import Sink
from tests.engine.weights.http_transport import HttpTransport
from tests.hub_double import hub_double
from tests.models import STORY, write_tiny
from weights_tool.folder import folder_source

PARITY = Path(__file__).parents[1] / "fixtures" / "parity"
IDS = [5, 900, 17, 3, 3, 42, 700, 11, 8, 1, 2, 900, 5]


def one_of_each_family() -> list[str]:
    """The smallest parity case of every family."""
    cases: dict[str, tuple[int, str]] = {}
    for config in sorted(PARITY.glob("*/config.json")):
        size = sum(path.stat().st_size for path in config.parent.glob("*.safetensors"))
        if size and (config.parent / "model.safetensors").exists():
            family = json.loads(config.read_text()).get("model_type", "gpt2")
            cases[family] = min(cases.get(family, (size, config.parent.name)), (size, config.parent.name))
    return [name for _, name in cases.values()]


async def runner_of(folder: Path, **changes: Any) -> EagerRunner:
    source = folder_source(folder)
    checkpoint = await open_checkpoint(source)
    config = replace(checkpoint.config, **changes)
    specs = weight_specs(config)

    async def fill(sink: Sink) -> None:
        await stream(checkpoint, specs, sink, source=source)

    runner = await NumpyBackend().make(config, "f32", fill, lambda: None)
    assert isinstance(runner, EagerRunner)
    return runner


@pytest.fixture(scope="module")
def story() -> tuple[EagerRunner, Tokenizer]:
    async def load() -> tuple[EagerRunner, Tokenizer]:
        source = folder_source(STORY)
        checkpoint = await open_checkpoint(source)
        return await runner_of(STORY), await load_tokenizer(source, checkpoint.config)

    return asyncio.run(load())


async def look(story: tuple[EagerRunner, Tokenizer], **raw: Any) -> dict[str, Any]:
    runner, tokenizer = story
    return await inspect(runner, tokenizer, parse_inspect(raw, runner.config))


@pytest.mark.parametrize("case", one_of_each_family())
async def test_a_layers_output_is_what_a_model_of_so_many_layers_ends_with(case: str) -> None:
    whole = await runner_of(PARITY / case)
    ids = [token % whole.n_vocab for token in IDS]
    taps = Tap(EagerOps())
    whole.take(ids, taps)
    assert len(taps.layers) == whole.config.n_layer
    for layers in range(1, whole.config.n_layer + 1):
        part = Tap(EagerOps())
        (await runner_of(PARITY / case, n_layer=layers)).run(ids, part)
        assert np.array_equal(part.layers[-1].out, taps.layers[layers - 1].out)
    # And a layer's attention is the weights that its output was made with.
    for layer in taps.layers:
        values = layer.kv.data[1, : len(ids)]
        weights = attention_weights(layer.q, layer.kv.data[0, : len(ids)], position=0, **layer.settings)
        np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-5)
        shared = np.repeat(values, weights.shape[0] // values.shape[1], axis=1)
        out = np.einsum("hqk,khd->qhd", weights, shared).reshape(len(ids), -1)
        np.testing.assert_allclose(out, layer.attended, atol=1e-5 * float(np.abs(out).max() + 1))


def test_weights_see_neither_the_future_nor_past_the_window() -> None:
    random = np.random.default_rng(0)
    q, keys = random.normal(size=(3, 4, 8)).astype(np.float32), random.normal(size=(9, 2, 8)).astype(np.float32)
    weights = attention_weights(q, keys, position=5, scale=1, window=4)
    for i in range(3):
        seen = np.arange(9)[(np.arange(9) <= 5 + i) & (np.arange(9) > 1 + i)]
        assert (weights[:, i].nonzero()[1].reshape(4, -1) == seen).all()
    alike = attention_weights(q[:, :1], keys[:, :1], position=5, scale=1, window=4)
    np.testing.assert_allclose(weights[0], alike[0], atol=1e-6)


async def test_views_agree_with_each_other_whatever_the_chunks(
    story: tuple[EagerRunner, Tokenizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    runner, _ = story
    everything = {"attention": True, "overview": 5, "layers": True, "lens": 4}
    report = await look(story, ids=IDS, **everything)
    n, layers, heads = len(IDS), runner.config.n_layer, runner.config.n_head
    maps = report["attention"]["maps"]
    assert maps.shape == (layers, heads, n, n)
    assert report["overview"]["cell"] == 3
    mass = np.add.reduceat(maps, np.arange(0, n, 3), axis=3)
    np.testing.assert_allclose(report["overview"]["maps"], pooled(mass, 3), atol=1e-6)
    assert report["layers"]["norms"].shape == (layers + 1, n)
    np.testing.assert_allclose(report["layers"]["cosines"][-1], 1, atol=1e-6)
    np.testing.assert_allclose(
        np.linalg.norm(report["layers"]["strip"], axis=-1), report["layers"]["norms"][:, -1], rtol=1e-5
    )
    # The lens after the last layer is the model's own answer.
    logits = (await runner.logits()).astype(np.float64)
    probabilities = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    best = report["lens"][-1]
    assert [token["id"] for token in best] == np.argsort(-probabilities)[:4].tolist()
    np.testing.assert_allclose([token["probability"] for token in best], np.sort(probabilities)[::-1][:4], rtol=1e-4)
    assert runner.tokens == IDS

    inspector = runner.inspector()
    inspector.chunk = 4
    monkeypatch.setattr(runner, "inspector", lambda: inspector)
    pieces = await look(story, ids=IDS, **everything)
    np.testing.assert_allclose(pieces["attention"]["maps"], maps, atol=1e-5)
    np.testing.assert_allclose(pieces["overview"]["maps"], report["overview"]["maps"], atol=1e-5)
    np.testing.assert_allclose(pieces["layers"]["norms"], report["layers"]["norms"], rtol=1e-4)


async def test_a_token_in_detail(story: tuple[EagerRunner, Tokenizer]) -> None:
    runner, _ = story
    config = runner.config
    report = await look(story, prompt="Once upon a time there was", detail=2, position=3, layers=True, lens=1)
    whole = await look(story, ids=report["ids"], attention={"layers": [2]}, layers=True, position=3, lens=1)
    detail = report["detail"]
    assert report["tokens"][0]["text"] == "Once"
    assert {name: detail[name].shape for name in ("q", "k", "v")} == dict.fromkeys(
        "qkv", (config.n_head, config.head_dim)
    )
    np.testing.assert_allclose(detail["attention"], whole["attention"]["maps"][0, :, 3, :4], atol=1e-5)
    np.testing.assert_allclose(detail["out"], whole["layers"]["strip"][3], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(report["layers"]["norms"], whole["layers"]["norms"], rtol=1e-4)
    assert detail["hidden"].shape == (config.n_inner,)
    assert report["lens"][-1][0]["id"] == whole["lens"][-1][0]["id"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({}, "either prompt or ids"),
        ({"prompt": ""}, "1 to 512 tokens to look at, not 0"),
        ({"ids": [1] * 600}, "1 to 512 tokens"),
        ({"ids": [9000]}, "0 to 8191"),
        ({"ids": [1], "heads": 3}, "Unknown option 'heads'"),
        ({"ids": [1], "attention": {"heads": [6]}}, r"attention\.heads must be a whole number from 0 to 5"),
        ({"ids": [1], "attention": {"layers": []}}, r"attention\.layers must be a list"),
        ({"ids": [1], "attention": 3}, "attention must be true or"),
        ({"ids": [1], "overview": 65}, "overview must be a whole number from 0 to 64"),
        ({"ids": [1], "lens": 101}, "lens must be"),
        ({"ids": [1], "detail": 6}, "detail must be"),
        ({"ids": [1, 2], "position": 2}, "position must be from 0 to 1"),
        ([], "takes an object"),
    ],
)
async def test_refusals_name_the_option(story: tuple[EagerRunner, Tokenizer], raw: Any, message: str) -> None:
    runner, tokenizer = story
    with pytest.raises(OptionError, match=message):
        await inspect(runner, tokenizer, parse_inspect(raw, runner.config))


async def test_a_generation_that_is_watched_is_the_same(story: tuple[EagerRunner, Tokenizer]) -> None:
    runner, tokenizer = story
    plain = {"prompt": "Once upon a time", "max_new_tokens": 5, "temperature": 1.2, "seed": 3, "logprobs": 2}

    async def run(source: TokenSource | None, **more: Any) -> tuple[list[TokenEvent], Result]:
        events = [
            event
            async for event in generate(
                runner, tokenizer, parse_options(plain | more), eos_id=None, prefill_chunk=3, source=source
            )
        ]
        result = events[-1]
        assert isinstance(result, Result)
        return [token for event in events if isinstance(event, list) for token in event], result

    expected, whole = await run(None)
    tokens, watched_result = await run(watched, inspect={"lens": 3})
    assert watched_result.ids == whole.ids
    assert [token.id for token in tokens] == [token.id for token in expected]
    assert [token.inside for token in expected] == [None] * 5
    text = [*whole.prompt_ids, *whole.ids]
    report = await look(story, ids=text, attention=True, layers=True)
    for step, token in enumerate(tokens):
        inside, position = token.inside, len(whole.prompt_ids) + step - 1
        assert inside is not None
        assert inside["position"] == position
        row = report["attention"]["maps"][:, :, position, : position + 1]
        np.testing.assert_allclose(inside["attention"], row, atol=1e-5)
        np.testing.assert_allclose(inside["norms"], report["layers"]["norms"][:, position], rtol=1e-4)
        np.testing.assert_allclose(inside["cosines"], report["layers"]["cosines"][:, position], atol=1e-4)
        np.testing.assert_allclose(np.linalg.norm(inside["strip"], axis=-1), inside["norms"], rtol=1e-5)
        assert inside["lens"][-1][:2] == [(id_, pytest.approx(logprob, abs=1e-4)) for id_, logprob in token.top]


async def test_profile_says_where_the_time_goes(story: tuple[EagerRunner, Tokenizer]) -> None:
    runner, tokenizer = story
    report = await profile(runner, tokenizer, {"prompt": "Once upon a time"})
    assert report["prefill"]["tokens"] == 4
    assert {"embed", "linear", "attend", "logits"} <= set(report["decode"]["kernels_ms"])
    for phase in (report["prefill"], report["decode"]):
        assert 0 < sum(phase["kernels_ms"].values()) <= phase["ms"]
        assert phase["bound"] == "cpu"
    assert report["decode"]["cache_bytes"] == 2 * 4 * runner.config.n_layer * runner.config.n_embd * runner.length
    assert report["memory"] == runner.memory()
    for raw in ({}, {"ids": [1] * 511}, {"ids": [1], "runs": 3}, {"ids": [1], "new_tokens": 1}, 5):
        with pytest.raises(OptionError):
            await profile(runner, tokenizer, cast(Any, raw))
    with pytest.raises(CancelledError):
        await profile(runner, tokenizer, {"ids": [1]}, cancelled=lambda: True)


async def test_looking_makes_way_for_whatever_else_is_asked_for(tmp_path: Path) -> None:
    write_tiny(tmp_path / "me" / "tiny")
    transport = HttpTransport()
    engine = Engine(emit=lambda *_: None, transport=transport, site=None)
    with hub_double(tmp_path) as hub:
        await engine.load({"model": "me/tiny", "hub": hub.url})
    await transport.client.aclose()
    ids = [7] * 60
    expected = await engine.complete({"ids": [1, 2], "max_new_tokens": 3, "seed": 0})
    for looking in (engine.inspect({"ids": ids, "attention": True}), engine.profile({"ids": ids})):
        task = asyncio.ensure_future(looking)
        await asyncio.sleep(0)
        assert await engine.complete({"ids": [1, 2], "max_new_tokens": 3, "seed": 0}) == expected | {"timings": ANY}
        with pytest.raises(CancelledError):
            await task
    generation = asyncio.ensure_future(engine.complete({"ids": ids, "max_new_tokens": 2}))
    await asyncio.sleep(0)
    with pytest.raises(BusyError):
        await engine.inspect({"ids": [1]})
    await generation
    assert (await engine.inspect({"ids": ids, "overview": 4}))["overview"]["maps"].shape == (2, 2, 4, 4)
    assert await engine.inspect({"release": True}) == {}
    await engine.unload()


async def test_it_can_be_stopped(story: tuple[EagerRunner, Tokenizer]) -> None:
    runner, tokenizer = story
    with pytest.raises(CancelledError):
        await inspect(runner, tokenizer, parse_inspect({"ids": [1]}, runner.config), cancelled=lambda: True)
