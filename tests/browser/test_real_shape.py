"""GPT-2 small at its real size: 548 MB from the double of the hub, through the real page, onto the GPU."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import Launch
from tests.browser.waiting import evaluate
from tests.hub_double import Hub, hub_double
from weights_tool.__main__ import main

pytestmark = [pytest.mark.browser, pytest.mark.slow]

VOCABULARY = Path(__file__).parents[1] / "fixtures" / "gpt2-vocab"
PARAMETERS = 124_439_808
MAX_HEAP_GROWTH = 200_000_000


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with `some/gpt2`: the real shape, dtype and vocabulary, but random weights."""
    folder = tmp_path_factory.mktemp("hub")
    vocabulary = folder / "vocabulary"
    vocabulary.mkdir()
    for packed in VOCABULARY.glob("*.gz"):
        (vocabulary / packed.stem).write_bytes(gzip.decompress(packed.read_bytes()))
    model = folder / "some" / "gpt2"
    assert main(["random", "gpt2", "--vocab", str(vocabulary), "--out", str(model)]) == 0
    with hub_double(folder) as running:
        yield running
    (model / "model.safetensors").unlink()  # half a gigabyte that pytest would keep for its next three runs


MAX_HELD = 4 * 64_000_000


def test_gpt2_small_loads_and_writes_without_passing_through_python(
    launch: Launch, hub: Hub, site_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    context = launch().new_context(service_workers="block")
    page = context.new_page()
    page.goto(site_url)
    # The page loads its own model at first, so Python's memory has its usual size when the big one comes.
    evaluate(page, "() => window.lm.load()", timeout_s=120)
    loaded = evaluate(
        page, "(options) => window.lm.load(options)", {"model": "some/gpt2", "hub": hub.url}, timeout_s=240
    )
    assert (loaded["parameters"], loaded["vocab"], loaded["context"]) == (PARAMETERS, 50257, 1024)
    assert (loaded["backend"], loaded["precision"]) == ("webgpu", "f16")
    assert loaded["downloaded"] >= 4 * PARAMETERS
    options = {"prompt": "Hello world", "max_new_tokens": 3, "temperature": 0}
    written = evaluate(page, "(options) => window.lm.complete(options)", options, timeout_s=120)
    assert written["prompt_ids"] == [15496, 995]
    assert len(written["ids"]) == 3
    hub.asked.clear()
    again = evaluate(
        page, "(options) => window.lm.load(options)", {"model": "some/gpt2", "hub": hub.url}, timeout_s=240
    )
    assert hub.asked == []
    context.close()
    heap, peaks = loaded["heap"], loaded["peaks"]
    with capsys.disabled():
        print(
            f"\nGPT-2 small: {loaded['seconds']:.1f} s to load, {again['seconds']:.1f} s from storage; "
            f"wasm heap {heap['before'] / 1e6:.0f} MB before, {heap['after'] / 1e6:.0f} MB at peak and after; "
            f"{peaks['files'] / 1e6:.0f} MB of files held at most; "
            f"{sum(loaded['memory'].values()) / 1e6:.0f} MB on the GPU, {peaks['gpu'] / 1e6:.0f} MB at most; "
            f"{written['timings']['decode_ms'] / 1e3:.1f} s for two tokens"
        )
    assert loaded["storage"] == {"kept": True, "reason": None}
    assert heap["after"] - heap["before"] <= MAX_HEAP_GROWTH
    assert again["heap"]["after"] - heap["before"] <= MAX_HEAP_GROWTH
    # A few chunks, however large the model is.
    assert peaks["files"] <= MAX_HELD
    assert peaks["gpu"] <= sum(loaded["memory"].values()) + MAX_HELD
