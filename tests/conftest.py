"""Fixtures for the whole suite: the real application on a port of its own, for as long as the tests run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.server.asgi import make_app
from app.server.chat_model import ensure_chat_model
from app.server.runtime import ensure_runtime
from app.server.site import Site
from tests.serving import serving


@pytest.fixture(scope="session")
def runtime_folder() -> Path:
    """The Pyodide runtime, fetched into the usual cache by whoever needs it first."""
    return ensure_runtime()


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The model of --offline-chat, fetched into the usual cache by whoever needs it first."""
    return ensure_chat_model()


@pytest.fixture(scope="session")
def site(runtime_folder: Path) -> Iterator[Site]:
    """The tree that a browser sees, from this checkout."""
    made = Site(runtime_folder)
    yield made
    made.close()


@pytest.fixture(scope="session")
def site_url(site: Site) -> Iterator[str]:
    """The address of the real application, with a slash at the end."""
    with serving(make_app(site)) as address:
        yield address
