"""The real model: SmolLM2-135M-Instruct from its GGUF file, against transformers (`fixtures/write_smollm2.py`)."""

import asyncio
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.engine.chat import Chat
from app.engine.engine import Engine
from app.engine.loading import Model
from app.engine.ops.eager import EagerOps, EagerRunner
from tests.engine.weights.test_gguf_model import OneFile

FIXTURES = Path(__file__).parents[1] / "fixtures"
CASES: list[dict[str, Any]] = json.loads((FIXTURES / "smollm2.json").read_text())
CLOSE = 0.01
"""Of two logits: which of them is the greater is chance."""


class AllLogits(EagerOps):
    """Gives the logits after every token."""

    def last(self, x: Any) -> Any:
        return x


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as running:
        yield running


@pytest.fixture(scope="module")
def engine(smollm2_path: Path, loop: asyncio.Runner) -> Iterator[Engine]:
    files = OneFile(smollm2_path)
    made = Engine(emit=lambda event, data: None, transport=files, site=None)
    loop.run(made.load({"files": files}))
    yield made
    loop.run(made.unload())


def model_of(engine: Engine) -> Model:
    assert engine._model is not None
    return engine._model


def test_greedy_answers_are_those_of_transformers(engine: Engine) -> None:
    model = model_of(engine)
    runner, chat, tokenizer = model.runner, model.chat, model.tokenizer
    assert isinstance(runner, EagerRunner)
    assert isinstance(chat, Chat)
    assert len(CASES) == 10
    certain = 0
    for case in CASES:
        ids = chat.encode(case["messages"])[0] if "messages" in case else tokenizer.encode(case["prompt"])
        assert ids == case["ids"]
        # The reference's own tokens are fed at once: what would have been chosen shows at each of them.
        fed = [*ids, *case["greedy"][:-1]]
        runner.rewind(0)
        logits = runner.run(fed, AllLogits(0))
        chosen = logits[len(ids) - 1 :].argmax(axis=1).tolist()
        for ours, theirs, gap in zip(chosen, case["greedy"], case["gaps"], strict=True):
            assert ours == theirs or gap < CLOSE
            certain += gap >= CLOSE
    assert certain >= 310


def test_ids_of_its_real_vocabulary_are_those_of_the_reference(engine: Engine) -> None:
    folder = FIXTURES / "tokenizer" / "families"
    texts = json.loads(gzip.decompress((folder / "texts.json.gz").read_bytes()))
    expected = json.loads(gzip.decompress((folder / "smollm2.ids.json.gz").read_bytes()))
    tokenizer = model_of(engine).tokenizer
    wrong = [
        (text, allow)
        for text, ids in zip(texts, expected["ids"], strict=True)
        for allow, wanted in ((False, ids[0]), (True, ids[-1]))
        if tokenizer.encode(text, allow_special=allow) != wanted
    ]
    assert not wrong
    assert list(tokenizer.prefix) == expected["prefix"] == []


def test_it_answers_and_the_next_turn_reads_only_what_is_new(engine: Engine, loop: asyncio.Runner) -> None:
    report = model_of(engine).report
    assert (report["family"], report["chat"], report["precision"]) == ("llama", True, "q4")
    assert report["precisions"] == {"q4": 106_168_320, "q8": 28_311_552}
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    options = {"temperature": 0, "max_new_tokens": 12}
    first = loop.run(engine.complete({"messages": talk, **options}))
    assert (first["text"], first["finish"]) == ("The capital of France is Paris.", "eos")
    talk += [{"role": "assistant", "content": first["text"]}, {"role": "user", "content": "And of Italy?"}]
    second = loop.run(engine.complete({"messages": talk, **options}))
    assert "Rome" in second["text"]
    # All that was read and written in the first turn is in the cache.
    read = len(first["prompt_ids"]) + len(first["ids"])
    assert second["prompt_ids"][:read] == first["prompt_ids"] + first["ids"]
    assert second["timings"]["reused"] >= read - 1
