"""Files from strangers and prompts that nobody would write: each is answered, quickly, and the engine goes on."""

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page
from safetensors.numpy import load_file, save_file

from tests.browser.conftest import Console, Launch
from tests.browser.waiting import evaluate
from tests.hub_double import Hub, hub_double
from tests.models import TINY, write_tiny

pytestmark = pytest.mark.browser

DEEP = 100_000
BAD_TENSOR = "transformer.h.1.mlp.c_fc.weight"
CONTEXT = 64
MARKUP = "<img src=x onerror=window.hacked=1>"


def config(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)


def tokenizer(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_text(text)


def header(folder: Path, length: int, text: bytes = b"{}") -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", length) + text)


def tensors(folder: Path, **entries: object) -> None:
    text = json.dumps(entries).encode()
    header(folder, len(text), text)


# What is wrong with a model, and what is said about it.
HOSTILE: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "config-deep-array": (lambda f: config(f, "[" * DEEP), "ModelFileError", "JSON"),
    "config-deep-object": (lambda f: config(f, '{"a":' * DEEP), "ModelFileError", "JSON"),
    "config-long-number": (lambda f: config(f, '{"n_layer":' + "9" * 100_000 + "}"), "ModelFileError", "JSON"),
    "config-many-layers": (lambda f: config(f, json.dumps(TINY | {"n_layer": 10**6})), "ModelFileError", "n_layer"),
    "config-vocabulary": (
        lambda f: config(f, json.dumps(TINY | {"vocab_size": 10**9})),
        "ModelFileError",
        "vocab_size",
    ),
    "config-wide": (lambda f: config(f, json.dumps(TINY | {"n_embd": 2**40})), "ModelFileError", "n_embd"),
    "config-markup": (
        lambda f: config(f, json.dumps(TINY | {"model_type": MARKUP})),
        "UnsupportedModelError",
        "architecture",
    ),
    "header-endless": (lambda f: header(f, 2**63), "SafetensorsError", "header"),
    "header-deep": (lambda f: header(f, DEEP, b"[" * DEEP), "SafetensorsError", "header"),
    "tensor-of-all-memory": (
        lambda f: tensors(f, wte={"dtype": "F32", "shape": [2**31, 2**31], "data_offsets": [0, 2**63]}),
        "SafetensorsError",
        "wte",
    ),
    "tokenizer-deep": (lambda f: tokenizer(f, "[" * DEEP), "TokenizerError", "JSON"),
    "tokenizer-nothing": (lambda f: tokenizer(f, "{}"), "TokenizerError", ""),
}
# Prompts, written in the page, since a lone surrogate does not survive the way there.
PROMPTS = {
    "one character a million times": "'a'.repeat(1e6)",
    "spaces": "' '.repeat(1e6)",
    "lone surrogates": "'\\ud800 \\udc00 and \\ud83d'",
    "NULs": "'\\0'.repeat(1000)",
    "right to left": "'\\u202e\\u2066\\u200f'.repeat(1000)",
    "ten megabytes": "'hello world, '.repeat(8e5)",
    "special tokens": "'<|endoftext|>'.repeat(100)",
    "markup": f"'{MARKUP}'",
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    write_tiny(folder / "me" / "tiny")
    for name, (spoil, _, _) in HOSTILE.items():
        shutil.copytree(folder / "me" / "tiny", folder / "bad" / name)
        spoil(folder / "bad" / name)
    write_tiny(folder / "bad" / "numbers")
    weights = folder / "bad" / "numbers" / "model.safetensors"
    save_file(load_file(weights) | {BAD_TENSOR: np.full((32, 128), np.nan, np.float32)}, weights)
    with hub_double(folder) as running:
        yield running


@pytest.fixture(scope="module")
def page(launch: Launch, site_url: str, hub: Hub) -> Iterator[Page]:
    console = Console()
    context = launch().new_context(service_workers="block")
    made = context.new_page()
    console.watch(made)
    made.goto(f"{site_url}?model=me/tiny&hub={hub.url}")
    evaluate(made, "() => lm.ready", timeout_s=120)
    yield made
    context.close()
    assert console.unexpected() == []


def load(page: Page, hub: Hub, model: str, backend: str = "numpy") -> dict[str, Any]:
    outcome: dict[str, Any] = evaluate(
        page,
        "(options) => lm.load(options).catch(({name, message}) => ({name, message}))",
        {"model": model, "hub": hub.url, "backend": backend, "cache": "off"},
        timeout_s=30,
    )
    return outcome


def test_hostile_files_are_refused_by_name(page: Page, hub: Hub) -> None:
    for name, (_, error, says) in HOSTILE.items():
        outcome = load(page, hub, f"bad/{name}")
        assert outcome.get("name") == error, (name, outcome)
        assert says in outcome["message"], (name, outcome)
        assert len(outcome["message"]) < 1000, name
    assert evaluate(page, "() => window.hacked") is None
    assert load(page, hub, "me/tiny")["model"] == "me/tiny"


def test_hostile_prompts_are_answered(page: Page, hub: Hub) -> None:
    load(page, hub, "me/tiny")
    for name, script in PROMPTS.items():
        outcome = evaluate(
            page,
            f"""async () => {{
                const started = performance.now();
                const {{ids, prompt_ids, truncated}} = await lm.complete({{prompt: {script}, max_new_tokens: 2}});
                return {{ids, prompt_ids, truncated, ms: performance.now() - started}};
            }}""",
            timeout_s=30,
        )
        assert len(outcome["ids"]) == 2, name
        assert 0 < len(outcome["prompt_ids"]) < CONTEXT, name
        # What a prompt spells is text, never a command.
        assert TINY["eos_token_id"] not in outcome["prompt_ids"], name
    assert evaluate(page, "() => window.hacked") is None


@pytest.mark.parametrize("backend", ["numpy", "webgpu"])
def test_numbers_that_went_bad_are_traced_to_their_layer(page: Page, hub: Hub, backend: str) -> None:
    loaded = load(page, hub, "bad/numbers", backend)
    assert loaded.get("backend") == backend, loaded
    for options in ({"temperature": 0}, {"temperature": 1, "top_k": 5}, {"sampler": "python"}):
        outcome = evaluate(
            page,
            "(options) => lm.complete(options).catch(({name, message}) => ({name, message}))",
            {"ids": [1, 2, 3], "max_new_tokens": 4, **options},
        )
        assert outcome["name"] == "NonFiniteLogitsError", outcome
        assert "first went bad in layer 2 of 2, at token 1" in outcome["message"], outcome
        assert "precision f32" in outcome["message"]
    assert len(evaluate(page, "() => lm.encode('it still answers')")) > 0
