"""The engine in a page without the page: one lab for a module's tests."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from app.server.asgi import make_app
from app.server.site import Site
from tests.browser.lab_page import Lab, with_lab
from tests.serving import serving


@pytest.fixture(scope="session")
def lab_url(site: Site) -> Iterator[str]:
    with serving(with_lab(make_app(site))) as address:
        yield address


@pytest.fixture(scope="module")
def lab(browser: Browser, lab_url: str) -> Iterator[Lab]:
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(240_000)
    page.goto(f"{lab_url}lab/index.html")
    yield Lab(page)
    context.close()
