"""Loading in a real browser from the double of the hub: fetch, CORS, redirects, streams and aborts are real."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Error, Page

from tests.browser.conftest import Launch
from tests.browser.waiting import evaluate
from tests.hub_double import Hub, hub_double
from weights_tool.__main__ import main

pytestmark = pytest.mark.browser

STORY = Path(__file__).parents[2] / "static" / "models" / "story"
CONFIG = {"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 32, "vocab_size": 8192, "n_positions": 32}
BIG, SMALL = "model.safetensors", "config.json"
BYTES = 4 * (8192 * 32 + 32 * 32 + 12 * 32 * 32 + 13 * 32 + 2 * 32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hub with `some/model`, a complete small GPT-2 in F32, and `some/shards`, the same in several files."""
    made = tmp_path_factory.mktemp("hub")
    config = made / "config.json"
    config.write_text(json.dumps(CONFIG))
    arguments = ["random", str(config), "--vocab", str(STORY), "--out"]
    assert main([*arguments, str(made / "some" / "model")]) == 0
    assert main([*arguments, str(made / "some" / "shards"), "--max-shard-mb", "0.02"]) == 0
    return made


@pytest.fixture(scope="module")
def running_hub(folder: Path) -> Iterator[Hub]:
    with hub_double(folder) as running:
        yield running


@pytest.fixture
def hub(running_hub: Hub, folder: Path) -> Hub:
    running_hub.reset(folder)
    return running_hub


@pytest.fixture(scope="module")
def page(launch: Launch, site_url: str) -> Iterator[Page]:
    """The real page, without WebGPU, once Python runs; one for the module, since that takes seconds."""
    context = launch(webgpu=False).new_context(service_workers="block")
    opened = context.new_page()
    opened.goto(site_url)
    evaluate(opened, "() => window.lm.ready", timeout_s=120)
    yield opened
    context.close()


def load(page: Page, hub: Hub, model: str = "some/model") -> dict[str, Any]:
    options = {"model": model, "hub": hub.url, "backend": "numpy", "cache": "off"}
    loaded: dict[str, Any] = evaluate(page, "(options) => window.lm.load(options)", options, timeout_s=120)
    return loaded


def failure(page: Page, hub: Hub, model: str = "some/model") -> tuple[str, str]:
    """Load what cannot be loaded; return the error's name and message."""
    name, message = evaluate(
        page,
        "(options) => window.lm.load(options).then(() => ['none', ''], (error) => [error.name, error.message])",
        {"model": model, "hub": hub.url, "backend": "numpy", "cache": "off"},
        timeout_s=120,
    )
    return name, message


def logits(page: Page) -> Any:
    return np.array(evaluate(page, "async () => [...await window.lm.logits({ids: [1, 2, 3]})]"))


def test_a_model_comes_by_ranges_and_without_preflights(page: Page, hub: Hub) -> None:
    loaded = load(page, hub)
    assert (loaded["model"], loaded["revision"]) == ("some/model", "main")
    assert loaded["downloaded"] >= BYTES
    assert {asked.method for asked in hub.asked} == {"GET"}
    weights = hub.requests(BIG, origin="cdn")
    assert [asked.status for asked in weights] == [206] * len(weights)
    assert not hub.requests("pytorch_model.bin")
    one = logits(page)
    assert 0.5 < one.std() < 2
    load(page, hub, "some/shards")
    assert np.array_equal(logits(page), one)


@pytest.mark.parametrize(
    ("file", "kind", "name", "says"),
    [
        (BIG, "404", "NotFoundError", "neither was"),
        (SMALL, "404", "NotFoundError", "Check the spelling"),
        (SMALL, "401", "GatedError", "private or gated"),
        (SMALL, "html", "WrongContentError", "web page"),
        (BIG, "html", "WrongContentError", "web page"),
        (BIG, "lfs-pointer", "WrongContentError", "Git LFS pointer"),
        (BIG, "wrong-range", "RangeError", "asked for bytes"),
        (BIG, "no-cors", "NetworkError", "CORS"),
        (SMALL, "no-cors", "NetworkError", "CORS"),
        ("merges.txt", "lfs-pointer", "WrongContentError", "merges.txt"),
    ],
)
def test_a_lasting_fault_is_explained(page: Page, hub: Hub, file: str, kind: str, name: str, says: str) -> None:
    if file == "merges.txt":
        hub.fail("tokenizer.json", "404")
    hub.fail(file, kind)
    got, message = failure(page, hub)
    assert (got, file in message) == (name, True), message
    assert says in message
    assert re.search(r"127\.0\.0\.1:\d+", message)
    hub.heal()
    load(page, hub)


@pytest.mark.parametrize("kind", ["429", "500", "cut", "short", "long"])
def test_a_passing_fault_is_only_a_delay(page: Page, hub: Hub, kind: str) -> None:
    load(page, hub)
    untroubled = logits(page)
    hub.fail(BIG, kind, times=2, after=1, retry_after="1")
    load(page, hub)
    assert np.array_equal(logits(page), untroubled)


def test_compressed_answers_are_read(page: Page, hub: Hub) -> None:
    load(page, hub)
    untroubled = logits(page)
    for file in (BIG, SMALL, "tokenizer.json"):
        hub.fail(file, "gzip")
    load(page, hub)
    assert np.array_equal(logits(page), untroubled)


def test_a_cut_that_stays_is_explained(page: Page, hub: Hub) -> None:
    hub.fail(BIG, "cut", after=1)
    name, message = failure(page, hub)
    assert (name, "incomplete" in message) == ("TruncatedError", True), message


def test_a_server_that_ignores_ranges_serves_small_files_only(page: Page, hub: Hub, folder: Path) -> None:
    hub.fail(BIG, "ignore-range")
    load(page, hub)
    assert len(hub.requests(BIG, origin="cdn")) == 1
    big = folder / "some" / "big"
    big.mkdir(exist_ok=True)
    (big / SMALL).write_text(json.dumps(CONFIG))
    with (big / BIG).open("wb") as file:
        file.truncate(65 << 20)
    name, message = failure(page, hub, "some/big")
    assert (name, "ignored the range" in message) == ("RangeError", True), message


def test_stop_ends_a_download_at_once(page: Page, hub: Hub) -> None:
    hub.fail(BIG, "slow", after=1)
    name, milliseconds = evaluate(
        page,
        """async (options) => {
            const loading = window.lm.load(options).then(() => "none", (error) => error.name);
            await new Promise((resolve) => { const off = window.lm.on("progress", () => { off(); resolve(); }); });
            const started = performance.now();
            await window.lm.stop();
            return [await loading, performance.now() - started];
        }""",
        {"model": "some/model", "hub": hub.url, "backend": "numpy", "cache": "off"},
    )
    assert name == "CancelledError"
    # The whole would take half a minute more.
    assert milliseconds < 3000
    hub.heal()
    load(page, hub)


def test_offline_is_told(page: Page, hub: Hub) -> None:
    page.context.set_offline(True)
    try:
        name, message = failure(page, hub)
    finally:
        page.context.set_offline(False)
    assert (name, "offline" in message) == ("NetworkError", True), message
    load(page, hub)


def test_a_download_goes_on_when_the_network_is_back(page: Page, hub: Hub) -> None:
    load(page, hub)
    untroubled = logits(page)
    hub.asked.clear()
    # Breaks, and would be tried again two seconds long; by then the network is gone.
    hub.fail(BIG, "cut", times=3, after=1)
    evaluate(
        page,
        """async (options) => {
            window.said = [];
            const off = window.lm.on("status", ({text}) => window.said.push(text));
            window.loading = window.lm.load(options).finally(off);
            window.loading.catch(() => {});
        }""",
        {"model": "some/model", "hub": hub.url, "backend": "numpy", "cache": "off"},
    )
    deadline = time.monotonic() + 30
    while len(hub.requests(BIG, origin="cdn")) < 2:
        assert time.monotonic() < deadline, "the weights were not asked for"
        time.sleep(0.01)
    page.context.set_offline(True)
    try:
        evaluate(
            page,
            """async () => {
                while (!window.said.some((text) => text.startsWith("Offline")))
                    await new Promise((resolve) => setTimeout(resolve, 50));
            }""",
        )
    finally:
        page.context.set_offline(False)
    hub.heal()
    evaluate(page, "() => window.loading", timeout_s=60)
    assert np.array_equal(logits(page), untroubled)


def test_nobody_there(page: Page, hub: Hub) -> None:
    options = {"model": "a/b", "hub": "http://127.0.0.1:9", "backend": "numpy", "cache": "off"}
    with pytest.raises(Error, match=r"NetworkError.*CORS"):
        evaluate(page, "(options) => window.lm.load(options)", options)
