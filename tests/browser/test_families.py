"""A model of another family than GPT-2, from a hub into the page and onto the GPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.conftest import Launch
from tests.browser.test_compact import in_thread
from tests.browser.waiting import evaluate
from tests.hub_double import Hub, hub_double
from tests.models import write_family
from weights_tool.__main__ import main

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder: Path = tmp_path_factory.mktemp("hub")
    write_family(folder / "me" / "qwen3", "qwen3")
    made = ["quantize", str(folder / "me" / "qwen3"), "--to", "q8", "--out", str(folder / "me" / "q8")]
    assert in_thread(main, made) == 0
    with hub_double(folder) as running:
        yield running


def test_a_qwen3_writes_on_the_gpu_what_it_writes_in_numpy(launch: Launch, hub: Hub, site_url: str) -> None:
    context = launch().new_context()
    page = context.new_page()
    page.goto(site_url)
    load = {"model": "me/qwen3", "hub": hub.url, "precision": "f32", "context": 40}
    options = {"prompt": "Once upon a time", "max_new_tokens": 8, "temperature": 0}
    written = {}
    for backend in ("numpy", "webgpu"):
        report = evaluate(page, "(options) => lm.load(options)", load | {"backend": backend}, timeout_s=120)
        assert (report["family"], report["backend"], report["context"]) == ("qwen3", backend, 40)
        written[backend] = evaluate(page, "(options) => lm.complete(options)", options, timeout_s=120)
    assert written["webgpu"]["ids"] == written["numpy"]["ids"]
    measured = evaluate(
        page, "(options) => lm.bench(options)", {"prompt_tokens": 4, "new_tokens": 4, "runs": 1}, timeout_s=120
    )
    # The embedding, six launches in each of two layers, lm_head, and two to choose the best token.
    assert measured["gpu"]["dispatches_per_token"] == 1 + 2 * 6 + 1 + 2
    assert {"embed", "heads", "attend_split", "matvec mlp.gate_up_proj"} <= measured["gpu"]["kernels_ms"].keys()

    # Codes and scales as they are on the disk: queries, keys and values become one matrix.
    load = {"model": "me/q8", "hub": hub.url, "context": 40, "cache": "off"}
    logits = {}
    for backend in ("numpy", "webgpu"):
        report = evaluate(page, "(options) => lm.load(options)", load | {"backend": backend}, timeout_s=120)
        assert report["precision"] == "q8"
        logits[backend] = evaluate(page, "async (ids) => [...(await lm.logits({ids}))]", [1, 2, 3], timeout_s=120)
    assert max(abs(a - b) for a, b in zip(*logits.values(), strict=True)) < 1e-3
    context.close()
