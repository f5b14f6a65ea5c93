"""Nothing grows: the short version of `long_run`, whose docstring says how to make it long."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from app.server.site import Site
from tests.browser.conftest import Launch
from tests.browser.long_run import COLLECTABLE, COUNTERS, EDITS, measured, write_models
from tests.browser.waiting import evaluate
from tests.browser.worker_prefix import with_worker_prefix
from tests.hub_double import Hub, hub_double
from tests.serving import serving

pytestmark = pytest.mark.browser

MARGIN = 2_000_000
"""Bytes by which a heap may differ from itself: a garbage collector leaves what it likes."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    write_models(folder)
    with hub_double(folder) as running:
        yield running


@pytest.fixture
def page(launch: Launch, site: Site) -> Iterator[Page]:
    context = launch(flags=COLLECTABLE).new_context(service_workers="block")
    made = context.new_page()
    with serving(with_worker_prefix(site, COUNTERS, edits=EDITS)) as url:
        made.goto(url)
        evaluate(made, "() => lm.ready", timeout_s=120)
        yield made
        context.close()


def test_nothing_grows(page: Page, hub: Hub) -> None:
    found = measured(page, hub, tokens=200, cycles=6, cancels=15)
    assert len(found) == 3
    for phase, (before, after) in found.items():
        for name in ("buffers", "gpu_bytes", "files", "proxies", "nodes"):
            assert after[name] == before[name], (phase, name, before, after)
        assert after["files"] == 0, phase
        for name in ("wasm_bytes", "page_js_bytes", "worker_js_bytes"):
            was, is_now = before[name], after[name]
            assert was is None or is_now is None or is_now - was <= MARGIN, (phase, name, before, after)
