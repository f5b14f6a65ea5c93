"""Firefox, driven over its own WebDriver BiDi port: no driver, and only the few commands that the tests need."""

import json
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

NAMES = ("firefox-esr", "firefox")
START_S = 60.0
_LISTENING = re.compile(r"WebDriver BiDi listening on (ws://\S+)")


def find_firefox() -> str | None:
    """Return the path of a Firefox, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """One tab. Values come and go as JSON."""

    def __init__(self, connection: ClientConnection, context: str) -> None:
        self._connection, self._context, self._last = connection, context, 0

    def command(self, method: str, *, timeout_s: float = 60, **params: Any) -> dict[str, Any]:
        """Send a command and return its result. Raises RuntimeError with what Firefox says."""
        self._last += 1
        self._connection.send(json.dumps({"id": self._last, "method": method, "params": params}))
        deadline = time.monotonic() + timeout_s
        while True:
            answer = json.loads(self._connection.recv(timeout=max(0.01, deadline - time.monotonic())))
            if answer.get("id") != self._last:
                continue
            if answer["type"] == "error":
                raise RuntimeError(f"{method}: {answer['error']}: {answer['message']}")
            result: dict[str, Any] = answer["result"]
            return result

    def open(self, url: str) -> None:
        """Go to a page and wait until it is there."""
        self.command("browsingContext.navigate", context=self._context, url=url, wait="complete")

    def evaluate(self, function: str, argument: object = None, *, timeout_s: float = 60) -> Any:
        """Call a JavaScript function in the page and return its result; it may be asynchronous."""
        answer = self.command(
            "script.callFunction",
            functionDeclaration=f"async (text) => JSON.stringify(await ({function})(JSON.parse(text)) ?? null)",
            arguments=[{"type": "string", "value": json.dumps(argument)}],
            awaitPromise=True,
            target={"context": self._context},
            timeout_s=timeout_s,
        )
        if answer["type"] == "exception":
            raise RuntimeError(answer["exceptionDetails"]["text"])
        return json.loads(answer["result"]["value"])


@contextmanager
def firefox(executable: str, profile: Path) -> Iterator[Tab]:
    """Start Firefox without a window, with a profile of its own, and open a tab."""
    command = [executable, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said: list[str] = []
    address: list[str] = []
    ready = threading.Event()

    def listen(lines: Any) -> None:
        for line in lines:
            said.append(line)
            if found := _LISTENING.search(line):
                address.append(found[1])
                ready.set()

    listener = threading.Thread(target=listen, args=(process.stderr,), daemon=True)
    listener.start()
    try:
        assert ready.wait(START_S), f"Firefox does not listen after {START_S:.0f} s. It said: {''.join(said)[-2000:]}"
        with connect(f"{address[0]}/session", max_size=None, open_timeout=START_S) as connection:
            tab = Tab(connection, "")
            tab.command("session.new", capabilities={})
            tab = Tab(connection, tab.command("browsingContext.create", type="tab")["context"])
            yield tab
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        listener.join(20)
        process.stderr.close()
