"""Headless Chromium for the tests of this folder.

They are plain functions over Playwright's synchronous API. Its event loop stands in the main thread while it is open,
so it is opened and closed once a module, and asynchronous tests belong in other folders.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Playwright, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LAUNCH_MS = 60_000
WAIT_MS = 60_000
SHARED_WAIT_MS = 30_000

FLAGS = ["--disable-component-update", "--disable-domain-reliability", "--disable-sync", "--no-default-browser-check"]
# SwiftShader is a software adapter: right everywhere, fast nowhere. Without these flags requestAdapter() gives null.
WEBGPU_FLAGS = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]

NO_BROWSER = """No Chromium was found, and the tests of the page need one. Get one with
    apt-get install chromium                  (Debian, Ubuntu; as root)
    python -m playwright install chromium     (anywhere else)
or name an executable: TABGPT_CHROMIUM=/path/to/chrome python -m pytest"""

NO_DRIVER = """What its own Node.js said is in the captured stderr. If that is about libatomic.so.1:
    apt-get install libatomic1                (Debian, Ubuntu; as root)"""


def find_chromium(playwright: Playwright) -> str:
    """Return the path of a Chromium; fail the test where there is none."""
    if named := os.environ.get("TABGPT_CHROMIUM"):
        if shutil.which(named) is None:
            pytest.fail(f"TABGPT_CHROMIUM is {named!r}, which cannot be run. {NO_BROWSER}", pytrace=False)
        return named
    for name in NAMES:
        if found := shutil.which(name):
            return found
    if Path(playwright.chromium.executable_path).exists():
        return playwright.chromium.executable_path
    pytest.fail(NO_BROWSER, pytrace=False)


class Console:
    """What pages and their workers complained about in one test."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self._allowed: list[re.Pattern[str]] = []

    def allow(self, pattern: str) -> None:
        """Expect errors that match `pattern`, a regular expression searched for in the message."""
        self._allowed.append(re.compile(pattern))

    def watch(self, page: Page) -> None:
        """Listen to a page and its workers."""
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.errors.append(f"uncaught: {error.stack or error.message}"))
        page.on("crash", lambda _: self.errors.append("the page crashed"))

    def unexpected(self) -> list[str]:
        """Return the errors that no `allow` covers."""
        return [error for error in self.errors if not any(pattern.search(error) for pattern in self._allowed)]

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(f"{message.text} ({message.location.get('url', '?')})")


class Launch(Protocol):
    """Starts Chromium, or gives the one of this module that was started with the same options."""

    def __call__(self, *, webgpu: bool = True, flags: tuple[str, ...] = ()) -> Browser: ...


class OpenPage(Protocol):
    """Opens a page in a context of its own, watched for errors."""

    def __call__(self, browser: Browser | None = None, **context_options: object) -> Page: ...


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    try:
        started = sync_playwright().start()
    except Exception as error:
        pytest.fail(f"Playwright did not start: {error}. {NO_DRIVER}", pytrace=False)
    yield started
    started.stop()


@pytest.fixture(scope="module")
def browser_executable(playwright: Playwright) -> str:
    return find_chromium(playwright)


@pytest.fixture(scope="module")
def launch(playwright: Playwright, browser_executable: str) -> Iterator[Launch]:
    browsers: dict[tuple[str, ...], Browser] = {}

    def start(*, webgpu: bool = True, flags: tuple[str, ...] = ()) -> Browser:
        arguments = (*FLAGS, *(WEBGPU_FLAGS if webgpu else ()), *flags)
        if arguments not in browsers or not browsers[arguments].is_connected():
            browsers[arguments] = playwright.chromium.launch(
                executable_path=browser_executable,
                args=list(arguments),
                # It refuses to run as root, who runs CI, and without user namespaces; the pages are our own.
                chromium_sandbox=False,
                timeout=LAUNCH_MS,
            )
        return browsers[arguments]

    yield start
    for browser in browsers.values():
        browser.close()


@pytest.fixture(scope="module")
def browser(launch: Launch) -> Browser:
    """Chromium with WebGPU on the software adapter."""
    return launch()


@pytest.fixture
def console() -> Iterator[Console]:
    """Errors of this test's pages; an unexpected one fails the test at its end."""
    made = Console()
    yield made
    unexpected = made.unexpected()
    if unexpected:
        pytest.fail("the page reported errors:\n" + "\n".join(unexpected), pytrace=False)


@pytest.fixture
def open_page(launch: Launch, console: Console) -> Iterator[OpenPage]:
    contexts: list[BrowserContext] = []

    def open_one(browser: Browser | None = None, **context_options: object) -> Page:
        make: Callable[..., BrowserContext] = (launch() if browser is None else browser).new_context
        # What it keeps for offline use is the matter of one module; it would cost every other page 60 MB.
        context = make(**{"service_workers": "block", **context_options})
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        context.set_default_navigation_timeout(WAIT_MS)
        context.on("page", console.watch)
        return context.new_page()

    yield open_one
    for context in contexts:
        # A context whose browser was killed is closed already.
        if context.browser is not None and context.browser.is_connected():
            context.close()


@contextmanager
def shared_page(browser: Browser, **context_options: Any) -> Iterator[tuple[Page, Console]]:
    """Open a page that a module's tests use one after the other; an unexpected error fails at the end."""
    watched = Console()
    context = browser.new_context(**{"service_workers": "block", **context_options})
    context.set_default_timeout(SHARED_WAIT_MS)
    context.on("page", watched.watch)
    yield context.new_page(), watched
    context.close()
    assert watched.unexpected() == []


@pytest.fixture
def page(open_page: OpenPage) -> Page:
    """A fresh page with WebGPU, blank. Its errors fail the test."""
    return open_page()
