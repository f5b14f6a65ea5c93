"""What is downloaded stays: in the browser's own storage, over reloads, breaks, damage, and with two tabs at it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Error, Page

from app.server.site import Site
from tests.browser.conftest import Launch
from tests.browser.waiting import evaluate
from tests.browser.worker_prefix import with_worker_prefix
from tests.hub_double import COMMIT, Hub, hub_double
from tests.serving import serving
from weights_tool.__main__ import main

pytestmark = pytest.mark.browser

STORY = Path(__file__).parents[2] / "static" / "models" / "story"
CONFIG = {"model_type": "gpt2", "n_layer": 4, "n_head": 8, "n_embd": 512, "vocab_size": 8192, "n_positions": 32}
BIG, MODEL = "model.safetensors", "some/model"
# Three ranges of 8 MiB and more.
BYTES = 4 * (8192 * 512 + 32 * 512 + 4 * (12 * 512 * 512 + 13 * 512) + 2 * 512)

ENTRIES = """async function* entries() {
    const root = await (await navigator.storage.getDirectory()).getDirectoryHandle("tabgpt-models");
    for await (const folder of root.values())
        for await (const file of folder.values()) if (file.name.includes("safetensors")) yield file;
}"""


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG))
    assert main(["random", str(config), "--vocab", str(STORY), "--out", str(folder / MODEL)]) == 0
    with hub_double(folder) as running:
        yield running


@pytest.fixture
def hub(running_hub: Hub) -> Hub:
    running_hub.reset(running_hub.folder)
    return running_hub


@pytest.fixture(scope="module")
def context(launch: Launch) -> Iterator[BrowserContext]:
    """One profile for all tests here; each leaves its storage empty."""
    made = launch(webgpu=False).new_context(service_workers="block")
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(context: BrowserContext, site_url: str) -> Page:
    return open_page(context, site_url)


@pytest.fixture(autouse=True)
def _empty(page: Page) -> None:
    # The page loads its own model when it opens, and nothing is deleted during a load.
    evaluate(page, "async () => { await window.lm.unload(); await window.lm.forget(); }")


def open_page(context: BrowserContext, url: str) -> Page:
    page = context.new_page()
    page.goto(url)
    evaluate(page, "() => window.lm.ready", timeout_s=120)
    return page


def load(page: Page, hub: Hub, **options: object) -> dict[str, Any]:
    asked = {"model": MODEL, "hub": hub.url, "backend": "numpy", **options}
    loaded: dict[str, Any] = evaluate(page, "(options) => window.lm.load(options)", asked, timeout_s=120)
    return loaded


def logits(page: Page) -> list[float]:
    values: list[float] = evaluate(page, "async () => [...await window.lm.logits({ids: [1, 2, 3]})]")
    return values


def test_a_reload_downloads_nothing(page: Page, hub: Hub) -> None:
    loaded = load(page, hub)
    assert loaded["commit"] == COMMIT
    assert loaded["storage"] == {"kept": True, "reason": None}
    assert loaded["cached"] == 0
    assert loaded["downloaded"] > BYTES
    before = logits(page)
    hub.asked.clear()
    page.reload()
    evaluate(page, "() => window.lm.ready", timeout_s=120)
    progress = evaluate(
        page,
        """async (options) => {
            const seen = [];
            const off = window.lm.on("progress", (data) => { if (data.model === options.model) seen.push(data); });
            await window.lm.load(options);
            off();
            return seen.at(-1);
        }""",
        {"model": MODEL, "hub": hub.url, "backend": "numpy"},
        timeout_s=120,
    )
    assert hub.asked == []
    assert logits(page) == before
    assert progress["loaded"] == progress["total"] == BYTES
    assert progress["downloaded"] == 0
    assert progress["cached"] > BYTES
    loaded = load(page, hub)
    assert hub.asked == []
    assert loaded["downloaded"] == 0
    assert loaded["cached"] > BYTES


def test_storage_lists_and_forgets(page: Page, hub: Hub) -> None:
    assert evaluate(page, "() => window.lm.storage()")["models"] == []
    load(page, hub)
    storage = evaluate(page, "() => window.lm.storage()")
    (model,) = storage["models"]
    assert (model["model"], model["revision"], model["complete"]) == (MODEL, COMMIT, True)
    assert BYTES < model["bytes"] < 1.1 * BYTES + 1_000_000
    assert storage["usage"] > BYTES
    assert storage["quota"] > 1e9
    assert storage["reason"] is None
    assert storage["persisted"] in (True, False)
    evaluate(page, "(model) => window.lm.forget(model)", "no/such")
    assert len(evaluate(page, "() => window.lm.storage()")["models"]) == 1
    evaluate(page, "(model) => window.lm.forget(model)", MODEL)
    assert evaluate(page, "() => window.lm.storage()")["models"] == []
    hub.asked.clear()
    load(page, hub)
    assert hub.requests(BIG)


def test_a_cancelled_download_goes_on_after_a_reload(page: Page, hub: Hub) -> None:
    hub.bytes_per_s = 4e6
    name = evaluate(
        page,
        """async (options) => {
            const loading = window.lm.load(options).then(() => "none", (error) => error.name);
            await new Promise((resolve) => {
                const off = window.lm.on("progress", (data) => {
                    if (data.model !== options.model || data.loaded < 0.6 * data.total) return;
                    off();
                    resolve();
                });
            });
            await window.lm.stop();
            return await loading;
        }""",
        {"model": MODEL, "hub": hub.url, "backend": "numpy"},
    )
    assert name == "CancelledError"
    (model,) = evaluate(page, "() => window.lm.storage()")["models"]
    assert not model["complete"]
    assert model["bytes"] > 1_000_000
    page.reload()
    evaluate(page, "() => window.lm.ready", timeout_s=120)
    hub.reset(hub.folder)
    loaded = load(page, hub)
    assert loaded["downloaded"] < BYTES - model["bytes"] + 1_500_000
    assert loaded["cached"] >= 0.9 * model["bytes"] - 1_500_000


def test_a_reload_in_the_middle_loses_nothing_that_was_there(page: Page, hub: Hub) -> None:
    hub.bytes_per_s = 8e6
    evaluate(
        page,
        """async (options) => {
            window.lm.load(options).catch(() => {});
            await new Promise((resolve) => {
                const off = window.lm.on("progress", (data) => {
                    if (data.model !== options.model || data.loaded < 0.6 * data.total) return;
                    off();
                    resolve();
                });
            });
        }""",
        {"model": MODEL, "hub": hub.url, "backend": "numpy"},
    )
    page.reload()
    evaluate(page, "() => window.lm.ready", timeout_s=120)
    hub.reset(hub.folder)
    loaded = load(page, hub)
    assert loaded["cached"] > 0.2 * BYTES
    assert loaded["downloaded"] < 0.8 * BYTES
    hub.asked.clear()
    assert load(page, hub)["downloaded"] == 0
    assert hub.asked == []


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_damaged_range_is_fetched_again(page: Page, hub: Hub, damage: str) -> None:
    load(page, hub)
    before = logits(page)
    evaluate(
        page,
        ENTRIES.join(
            [
                "async (damage) => {",
                """
            for await (const file of entries()) {
                const data = new Uint8Array(await (await file.getFile()).arrayBuffer());
                if (data.length < 1e6) continue;
                data[data.length >> 1] ^= 4;
                const writable = await file.createWritable();
                await writable.write(damage === "cut" ? data.subarray(0, data.length >> 1) : data);
                await writable.close();
                return;
            }
            throw new Error("nothing to damage");
        }""",
            ]
        ),
        damage,
    )
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    hub.asked.clear()
    load(page, hub)
    assert len(hub.requests(BIG, origin="cdn")) == 1
    assert logits(page) == before
    assert any("damaged" in text for text in said), said
    hub.asked.clear()
    load(page, hub)
    assert hub.asked == []


def test_two_tabs_at_once(page: Page, hub: Hub, context: BrowserContext, site_url: str) -> None:
    other = open_page(context, site_url)
    hub.bytes_per_s = 20e6
    begin = "(options) => { window.loading = window.lm.load(options); window.loading.catch(() => {}); }"
    options = {"model": MODEL, "hub": hub.url, "backend": "numpy"}
    evaluate(page, begin, options)
    evaluate(other, begin, options)
    for tab in (page, other):
        loaded = evaluate(tab, "() => window.loading", timeout_s=120)
        assert loaded["storage"] == {"kept": True, "reason": None}
    assert logits(page) == logits(other)
    hub.asked.clear()
    for tab in (other, page):
        assert load(tab, hub)["downloaded"] == 0
    assert hub.asked == []
    other.close()


def test_a_full_storage_does_not_stop_a_load(launch: Launch, hub: Hub, site_url: str) -> None:
    context = launch(webgpu=False).new_context(service_workers="block")
    page = context.new_page()
    session = context.new_cdp_session(page)
    page.goto(site_url)
    session.send("Storage.overrideQuotaForOrigin", {"origin": site_url.rstrip("/"), "quotaSize": 12_000_000})
    evaluate(page, "() => window.lm.ready", timeout_s=120)
    loaded = load(page, hub)
    assert loaded["storage"]["kept"] is False
    assert "no more room" in loaded["storage"]["reason"]
    assert len(logits(page)) == 8192
    storage = evaluate(page, "() => window.lm.storage()")
    assert "no more room" in storage["reason"]
    assert storage["usage"] < BYTES
    context.close()


def test_without_storage_it_works_in_memory(launch: Launch, hub: Hub, site: Site) -> None:
    # As in a private window of some browsers: the interface is there, and refuses.
    refusal = "StorageManager.prototype.getDirectory = async () => { throw new DOMException('no', 'SecurityError'); };"
    with serving(with_worker_prefix(site, refusal)) as url:
        check_without_storage(launch, hub, url)


def check_without_storage(launch: Launch, hub: Hub, url: str) -> None:
    context = launch(webgpu=False).new_context(service_workers="block")
    page = open_page(context, url)
    for _ in range(2):
        loaded = load(page, hub)
        assert loaded["storage"]["kept"] is False
        assert "private window" in loaded["storage"]["reason"]
        assert loaded["downloaded"] > BYTES
    storage = evaluate(page, "() => window.lm.storage()")
    assert (storage["models"], "private window" in storage["reason"]) == ([], True)
    context.close()


def test_forgetting_waits_for_a_load(page: Page, hub: Hub) -> None:
    hub.bytes_per_s = 2e6
    with pytest.raises(Error, match="BusyError"):
        evaluate(
            page,
            """async (options) => {
                const loading = window.lm.load(options).catch(() => {});
                await new Promise((resolve) => { const off = window.lm.on("progress", () => { off(); resolve(); }); });
                try {
                    await window.lm.forget();
                } finally {
                    await window.lm.stop();
                    await loading;
                }
            }""",
            {"model": MODEL, "hub": hub.url, "backend": "numpy"},
        )
