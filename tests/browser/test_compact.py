"""q8 and q4 folders in the page: copied onto the GPU as they are, they compute what NumPy does with them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Launch
from tests.browser.waiting import evaluate
from tests.hub_double import Hub, hub_double
from tests.models import STORY, write_tiny
from weights_tool.__main__ import main
from weights_tool.measure import logits as native_logits

pytestmark = pytest.mark.browser

IDS = [1153, 1224, 258]


def in_thread(work: Any, *arguments: Any) -> Any:
    """The tools run event loops of their own, and this thread is Playwright's."""
    with ThreadPoolExecutor() as threads:
        return threads.submit(work, *arguments).result()


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with the story model, and a tiny one whose rows need padding and whose files are split, as q8 and q4."""
    folder = tmp_path_factory.mktemp("hub")
    tiny = folder / "plain"
    write_tiny(tiny, n_embd=48, n_head=3, tie_word_embeddings=False)
    for scheme in ("q8", "q4"):
        for name, source, more in (("story", STORY, []), ("tiny", tiny, ["--max-file-mb", "0.1"])):
            out = str(folder / "me" / f"{name}-{scheme}")
            assert in_thread(main, ["quantize", str(source), "--to", scheme, "--out", out, *more]) == 0
    with hub_double(folder) as running:
        yield running


@pytest.fixture(scope="module")
def page(launch: Launch, site_url: str) -> Iterator[Page]:
    context = launch().new_context(service_workers="block")
    opened = context.new_page()
    opened.goto(site_url)
    evaluate(opened, "() => window.lm.ready", timeout_s=120)
    yield opened
    context.close()


def load(page: Page, hub: Hub, **options: object) -> dict[str, Any]:
    asked = {"hub": hub.url, "cache": "off", **options}
    loaded: dict[str, Any] = evaluate(page, "(options) => window.lm.load(options)", asked, timeout_s=120)
    return loaded


@pytest.mark.parametrize("backend", ["webgpu", "numpy"])
@pytest.mark.parametrize("scheme", ["q8", "q4"])
@pytest.mark.parametrize("name", ["story", "tiny"])
def test_logits_are_those_of_numpy(page: Page, hub: Hub, name: str, scheme: str, backend: str) -> None:
    loaded = load(page, hub, model=f"me/{name}-{scheme}", backend=backend)
    assert (loaded["precision"], loaded["backend"]) == (scheme, backend)
    got = evaluate(page, "async (ids) => [...await window.lm.logits({ids})]", IDS)
    folder: Path = hub.folder / "me" / f"{name}-{scheme}"
    assert np.abs(np.array(got) - in_thread(native_logits, folder, IDS)).max() <= 2e-3
    if name == "story":
        # Of F16; of F32 it is 3.5 and 6.2 times as much.
        assert loaded["downloaded"] < {"q8": 0.6, "q4": 0.35}[scheme] * 27_979_776 + 500_000


def test_another_precision_is_refused(page: Page, hub: Hub) -> None:
    message = evaluate(
        page,
        "(options) => window.lm.load(options).then(() => '', (error) => `${error.name}: ${error.message}`)",
        {"model": "me/tiny-q8", "hub": hub.url, "precision": "f16", "cache": "off"},
        timeout_s=120,
    )
    assert message.startswith("UnsupportedModelError: me/tiny-q8 is stored in q8")
