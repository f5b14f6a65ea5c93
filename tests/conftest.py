"""Fixtures for the whole suite: the real application on a port of its own, for as long as the tests run."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn
from starlette.types import ASGIApp

from app.server.asgi import make_app
from app.server.runtime import ensure_runtime
from app.server.site import Site

START_S = 15.0


@contextmanager
def serving(application: ASGIApp) -> Iterator[str]:
    """Serve an ASGI application from a thread; yield its address, with a slash at the end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(
            uvicorn.Config(application, log_level="error", lifespan="off", ws="none", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        deadline = time.monotonic() + START_S
        while not server.started:
            assert thread.is_alive(), "the server's thread died"
            assert time.monotonic() < deadline, f"the server did not start within {START_S:.0f} s"
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(START_S)
            assert not thread.is_alive(), "the server did not stop"


@pytest.fixture(scope="session")
def runtime_folder() -> Path:
    """The Pyodide runtime, fetched into the usual cache by whoever needs it first."""
    return ensure_runtime()


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
