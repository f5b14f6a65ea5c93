"""Fetching in the page: bodies go into JS arrays, never into wasm memory, and can be aborted at any moment."""

from typing import Any

import js
from pyodide.ffi import JsException, to_js

from app.engine.errors import NetworkError, TruncatedError
from app.engine.weights.transport import OnBytes, Response


class JsBlob:
    """A Blob in a JS Uint8Array."""

    def __init__(self, array: Any) -> None:
        """Wrap `array`, a proxy of a Uint8Array."""
        self.js = array
        self.nbytes = int(array.byteLength)

    def slice(self, start: int, stop: int) -> "JsBlob":
        """Return a view of [start, stop) without copying."""
        return JsBlob(self.js.subarray(start, stop))

    def to_bytes(self) -> bytes:
        """Copy into wasm memory."""
        data: bytes = self.js.to_bytes()
        return data


class FetchTransport:
    """Transport over the page's own fetch."""

    async def get(
        self,
        url: str,
        *,
        start: int | None = None,
        stop: int | None = None,
        limit: int | None = None,
        on_bytes: OnBytes | None = None,
    ) -> Response:
        """See Transport."""
        controller = js.AbortController.new()
        options: dict[str, Any] = {"signal": controller.signal}
        if start is not None and stop is not None:
            # A closed range from a number on needs no preflight, which a hub's redirect target may not answer.
            options["headers"] = {"Range": f"bytes={start}-{stop - 1}"}
            # Chromium's HTTP cache serves requests for one URL one after the other; the hub's signed URLs could not
            # be found in it again anyway.
            if js.URL.new(url, js.location.href).origin != js.location.origin:
                options["cache"] = "no-store"
        try:
            try:
                response = await js.fetch(url, to_js(options, dict_converter=js.Object.fromEntries))
            except JsException as error:
                raise NetworkError(_why_no_answer(error)) from error
            return await _read(response, start, stop, limit, on_bytes)
        except BaseException:
            controller.abort()
            raise


async def _read(
    response: Any, start: int | None, stop: int | None, limit: int | None, on_bytes: OnBytes | None
) -> Response:
    status = int(response.status)
    headers: dict[str, str] = js.Object.fromEntries(response.headers).to_py()
    announced = headers.get("content-length", "")
    # The length of an encoded body says little about the decoded one: it is only a first guess at the room needed.
    expected = int(announced) if announced.isascii() and announced.isdecimal() else 1 << 16
    if status == 206 and start is not None and stop is not None:
        expected = stop - start
    if limit is not None and expected > limit:
        if status == 200:  # nobody wants a part of it
            await response.body.cancel()
            return Response(status=status, headers=headers, body=JsBlob(js.Uint8Array.new(0)), complete=False)
        expected = limit
    room, received, complete = js.Uint8Array.new(max(1, min(expected, 1 << 30))), 0, True
    reader = response.body.getReader() if response.body else None
    while reader is not None:
        try:
            result = await reader.read()
        except JsException as error:
            raise TruncatedError(f"the connection broke after {received} bytes") from error
        if result.done:
            break
        chunk = result.value
        nbytes = int(chunk.byteLength)
        if limit is not None and received + nbytes > limit:
            complete = False
            nbytes = limit - received
            chunk = chunk.subarray(0, nbytes)
        if received + nbytes > room.byteLength:
            larger = js.Uint8Array.new(max(2 * room.byteLength, received + nbytes))
            larger.set(room.subarray(0, received))
            room = larger
        room.set(chunk, received)
        received += nbytes
        if on_bytes:
            on_bytes(received)
        if not complete:
            await reader.cancel()
            break
    body = JsBlob(room.subarray(0, received))
    return Response(status=status, headers=headers, body=body, url=str(response.url), complete=complete)


def _why_no_answer(error: JsException) -> str:
    if js.navigator.onLine is False:
        return "the browser is offline. Connect to the network and load again."
    return (
        f"no answer came ({error}). The server may be down or its name wrong, a firewall or a blocker may be in the "
        "way, or the server does not let other sites read its files (CORS). The browser's console may say more."
    )
