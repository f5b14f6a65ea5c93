"""Models from elsewhere than an open hub: with a token, from a mirror, from a folder on the user's disk."""

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
from tests.models import write_tiny
from weights_tool.__main__ import main
from weights_tool.measure import logits as native_logits

pytestmark = pytest.mark.browser

TOKEN = "hf_secretSecret"


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    write_tiny(folder / "me" / "tiny")
    with hub_double(folder) as running:
        yield running


@pytest.fixture
def hub(running_hub: Hub) -> Hub:
    running_hub.reset(running_hub.folder)
    return running_hub


@pytest.fixture(scope="module")
def page(launch: Launch, site_url: str) -> Iterator[Page]:
    context = launch(webgpu=False).new_context(service_workers="block")
    opened = context.new_page()
    opened.goto(site_url)
    evaluate(opened, "() => window.lm.ready", timeout_s=120)
    yield opened
    context.close()


def load(page: Page, **options: object) -> dict[str, Any]:
    asked = {"backend": "numpy", "cache": "off", **options}
    loaded: dict[str, Any] = evaluate(page, "(options) => window.lm.load(options)", asked, timeout_s=120)
    return loaded


def failure(page: Page, **options: object) -> tuple[str, str]:
    name, message = evaluate(
        page,
        "(options) => window.lm.load(options).then(() => ['none', ''], (error) => [error.name, error.message])",
        {"backend": "numpy", "cache": "off", **options},
        timeout_s=120,
    )
    return name, message


def logits(page: Page) -> list[float]:
    values: list[float] = evaluate(page, "async () => [...await window.lm.logits({ids: [1, 2, 3]})]")
    return values


def test_a_token_goes_to_the_hub_s_own_origin_only(page: Page, hub: Hub) -> None:
    hub.token = TOKEN
    name, message = failure(page, model="me/tiny", hub=hub.url)
    assert (name, "access token" in message) == ("GatedError", True)
    name, message = failure(page, model="me/tiny", hub=hub.url, token="hf_wrong")
    assert (name, "hf_wrong" in message) == ("GatedError", False)
    hub.asked.clear()
    load(page, model="me/tiny", hub=hub.url, token=TOKEN)
    gets = hub.requests()
    assert {asked.headers.get("authorization") for asked in gets if asked.origin == "hub"} == {f"Bearer {TOKEN}"}
    assert {asked.headers.get("authorization") for asked in gets if asked.origin == "cdn"} == {None}
    # The hub is asked for permission to send the header; the CDN, which would refuse, is not.
    assert {asked.origin for asked in hub.asked if asked.method == "OPTIONS"} == {"hub"}


def test_the_first_mirror_that_answers(page: Page, hub: Hub) -> None:
    assert load(page, model="me/tiny", hub=f"http://127.0.0.1:9,{hub.url}")["model"] == "me/tiny"


def test_a_folder_on_disk(page: Page, hub: Hub) -> None:
    load(page, model="me/tiny", hub=hub.url)
    before = logits(page)
    hub.asked.clear()
    evaluate(
        page,
        """() => {
            const input = document.createElement("input");
            Object.assign(input, { type: "file", id: "picked-folder", webkitdirectory: true });
            document.body.append(input);
        }""",
    )
    page.set_input_files("#picked-folder", hub.folder / "me" / "tiny")
    options = '({files: [...document.getElementById("picked-folder").files], backend: "numpy"})'
    loaded = evaluate(page, f"() => window.lm.load({options})", timeout_s=120)
    assert (loaded["model"], loaded["downloaded"], loaded["revision"]) == ("tiny", 0, None)
    assert logits(page) == before
    assert hub.asked == []


def test_files_without_a_config(page: Page, hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    evaluate(
        page,
        """() => {
            const input = document.createElement("input");
            Object.assign(input, { type: "file", id: "picked-files", multiple: true });
            document.body.append(input);
        }""",
    )
    page.set_input_files("#picked-files", tmp_path / "notes.txt")
    name, message = evaluate(
        page,
        """() => window.lm.load({files: [...document.getElementById("picked-files").files]})
            .then(() => ["none", ""], (error) => [error.name, error.message])""",
    )
    assert name == "NotFoundError"
    assert "no config.json among the files" in message


def test_what_the_tools_wrote_computes_the_same_in_the_page(page: Page, hub: Hub, tmp_path: Path) -> None:
    tiny, half = hub.folder / "me" / "tiny", hub.folder / "me" / "half"

    def write() -> Any:
        assert main(["convert", str(tiny), "--out", str(tmp_path / "converted")]) == 0
        assert main(["quantize", str(tmp_path / "converted"), "--to", "f16", "--out", str(tmp_path / "half")]) == 0
        assert main(["publish", str(tmp_path / "half"), "--out", str(half), "--max-file-mb", "0.2"]) == 0
        return native_logits(half, [1, 2, 3])

    # The tools run event loops of their own, and this thread is Playwright's.
    with ThreadPoolExecutor() as threads:
        expected = threads.submit(write).result()
    load(page, model="me/half", hub=hub.url)
    assert len({asked.file for asked in hub.requests(origin="cdn")}) > 1
    assert np.abs(np.array(logits(page)) - expected).max() < 1e-4
