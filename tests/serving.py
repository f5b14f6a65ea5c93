"""Serves an ASGI application over real HTTP for as long as a test needs it."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

START_S = 15.0


@contextmanager
def serving(application: ASGIApp, *, port: int = 0) -> Iterator[str]:
    """Serve from a thread on a port of 127.0.0.1 (0: a free one); yield the address, with a slash at the end."""
    with socket.create_server(("127.0.0.1", port)) as listener:
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
