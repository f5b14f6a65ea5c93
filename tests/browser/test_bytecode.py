"""The bytecode that comes along is used, and is what the sources beside it give."""

import pytest

from app.server.site import Site
from tests.browser.conftest import Launch
from tests.browser.make_bytecode import in_page

pytestmark = pytest.mark.browser


def test_what_the_page_imports_comes_compiled_and_as_its_sources_say(launch: Launch, site: Site) -> None:
    found = in_page(launch(), site, "compared")
    assert isinstance(found["count"], int)
    assert found["count"] > 150
    remedy = "python -m tests.browser.make_bytecode makes app/server/bytecode.zip anew"
    assert found["different"] == [], remedy
    assert found["missing"] == [], remedy
