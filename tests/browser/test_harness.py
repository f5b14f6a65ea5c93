"""The fixtures of this folder: no error of a page may pass, and nobody without a browser is left guessing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Playwright

from tests.browser.conftest import Console, Launch, OpenPage, find_chromium
from tests.browser.waiting import evaluate

pytestmark = pytest.mark.browser


@pytest.fixture
def nothing_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Playwright:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("TABGPT_CHROMIUM", raising=False)
    own = SimpleNamespace(executable_path=str(tmp_path / "not-downloaded"))
    return cast(Playwright, SimpleNamespace(chromium=own))


def test_without_a_browser_it_says_how_to_get_one(nothing_found: Playwright) -> None:
    with pytest.raises(pytest.fail.Exception) as caught:
        find_chromium(nothing_found)
    assert "apt-get install chromium" in str(caught.value)
    assert "python -m playwright install chromium" in str(caught.value)


def test_a_named_browser_is_taken_and_a_wrong_name_is_not(
    nothing_found: Playwright, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.setenv("TABGPT_CHROMIUM", str(mine))
    assert find_chromium(nothing_found) == str(mine)
    monkeypatch.setenv("TABGPT_CHROMIUM", str(tmp_path / "gone"))
    with pytest.raises(pytest.fail.Exception, match="cannot be run"):
        find_chromium(nothing_found)


def test_playwrights_own_browser_is_the_last_resort(nothing_found: Any) -> None:
    Path(nothing_found.chromium.executable_path).write_text("")
    assert find_chromium(nothing_found) == nothing_found.chromium.executable_path


FAULTS = {
    "console": "() => console.error('shown in red')",
    "uncaught": "() => void setTimeout(() => { throw new Error('nobody caught me'); })",
    "rejected": "() => void Promise.reject(new Error('nobody awaited me'))",
    "worker": "() => void new Worker('data:text/javascript,console.error(%22from the worker%22)')",
}


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("console", "shown in red"),
        ("uncaught", "nobody caught me"),
        ("rejected", "nobody awaited me"),
        ("worker", "from the worker"),
    ],
)
def test_no_error_of_a_page_passes(open_page: OpenPage, console: Console, fault: str, said: str) -> None:
    page = open_page()
    evaluate(page, FAULTS[fault])
    for _ in range(100):
        if console.errors:
            break
        page.wait_for_timeout(50)
    assert [said in error for error in console.unexpected()] == [True]
    console.allow(said)
    assert console.unexpected() == []


def test_a_promise_that_never_settles_ends_in_time(open_page: OpenPage) -> None:
    with pytest.raises(PlaywrightError, match="within 0"):
        evaluate(open_page(), "() => new Promise(() => {})", timeout_s=0.2)


def test_webgpu_is_there_or_not_as_asked(open_page: OpenPage, launch: Launch, site_url: str, console: Console) -> None:
    console.allow("favicon.ico")  # this bare file names no icon, so Chromium looks for one
    has_adapter = "async () => navigator.gpu ? (await navigator.gpu.requestAdapter()) !== null : false"
    for webgpu in (True, False):
        page = open_page(launch(webgpu=webgpu))
        page.goto(f"{site_url}models/story/config.json")
        assert evaluate(page, has_adapter) is webgpu
