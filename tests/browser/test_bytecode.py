"""The bytecode that comes along is used, and is what the sources beside it give."""

from typing import Any

import pytest

from app.server.site import Site
from tests.browser.conftest import Console, Launch, OpenPage
from tests.browser.make_bytecode import in_page
from tests.browser.writing import Sheet

pytestmark = pytest.mark.browser


def test_what_the_page_imports_comes_compiled_and_as_its_sources_say(launch: Launch, site: Site) -> None:
    found = in_page(launch(), site, "compared")
    assert isinstance(found["count"], int)
    assert found["count"] > 150
    remedy = "python -m tests.browser.make_bytecode makes app/server/bytecode.zip anew"
    assert found["different"] == [], remedy
    assert found["missing"] == [], remedy


@pytest.mark.parametrize("answer", [{"status": 404, "body": "no"}, {"status": 200, "body": "<html>"}], ids=str)
def test_without_it_python_starts_all_the_same(
    site_url: str, launch: Launch, open_page: OpenPage, console: Console, answer: dict[str, Any]
) -> None:
    console.allow("404")
    page = open_page(launch(webgpu=False))
    page.route("**/pyodide/bytecode.zip", lambda route: route.fulfill(**answer))
    sheet = Sheet(page).open(f"{site_url}?backend=numpy&max_new_tokens=2").ready()
    assert sheet.run()
