"""Fetching in the page: bodies go into JS arrays, never into wasm memory, and can be aborted at any moment."""

import asyncio
import time
from typing import Any
from urllib.parse import unquote

import js
from pyodide.ffi import JsException, to_js

from app.engine.errors import NetworkError, NotFoundError, OfflineError, TruncatedError
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

    def __init__(self, *, token: str | None = None, hub: str = "") -> None:
        """Send `token`, if given, to the origin of the address `hub` and to no other.

        It makes the browser ask that origin's permission first (a preflight). On a redirect to another origin the
        browser itself takes the header off again, and then asks no permission there either.
        """
        self._token = token
        self._origin = js.URL.new(hub).origin if token is not None else None

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
        headers: dict[str, str] = {}
        origin = js.URL.new(url, js.location.href).origin
        if self._token is not None and origin == self._origin:
            headers["Authorization"] = f"Bearer {self._token}"
        if start is not None and stop is not None:
            # A closed range from a number on needs no preflight, which a hub's redirect target may not answer.
            headers["Range"] = f"bytes={start}-{stop - 1}"
            # Chromium's HTTP cache serves requests for one URL one after the other; the hub's signed URLs could not
            # be found in it again anyway.
            if origin != js.location.origin:
                options["cache"] = "no-store"
        options["headers"] = headers
        try:
            try:
                response = await js.fetch(url, to_js(options, dict_converter=js.Object.fromEntries))
            except JsException as error:
                if js.navigator.onLine is False:
                    raise OfflineError("the browser is offline. Connect to the network and load again.") from error
                raise NetworkError(_why_no_answer(error)) from error
            return await _read(response, start, stop, limit, on_bytes)
        except BaseException:
            controller.abort()
            raise

    async def back_online(self, seconds: float) -> bool:
        """Wait until the browser has a network again, and tell whether it had one within `seconds`."""
        deadline = time.monotonic() + seconds
        # Looked at rather than listened for: not every browser tells its workers.
        while js.navigator.onLine is False and time.monotonic() < deadline:
            await asyncio.sleep(0.25)
        return js.navigator.onLine is not False


class FileTransport:
    """Transport over files that the user picked or dropped: read from the disk in slices, as they are wanted."""

    def __init__(self, files: Any) -> None:
        """Serve `files`, a JS array of File: those in the folder of the first config.json, or a GGUF file.

        Raises NotFoundError if there is neither, or several GGUF files.
        """
        self.gguf: str | None = None
        """The GGUF file's name, if the model is in one."""
        paths = {str(getattr(file, "webkitRelativePath", "") or file.name): file for file in files}
        configs = sorted((path for path in paths if path.split("/")[-1] == "config.json"), key=len)
        if not configs:
            models = [path for path in paths if path.lower().endswith(".gguf")]
            if len(models) != 1:
                raise NotFoundError(
                    f"There are {len(models)} GGUF files among those; choose one."
                    if models
                    else "There is no config.json among the files. Choose the whole folder of a model, with "
                    "config.json, the tokenizer's files and safetensors, or a GGUF file."
                )
            self.gguf = models[0].split("/")[-1]
            self.name = self.gguf
            self._files = {self.gguf: paths[models[0]]}
            return
        folder = configs[0].removesuffix("config.json")
        self.name = folder.rstrip("/").split("/")[-1] or "files"
        """The folder's, to show."""
        self._files = {path.removeprefix(folder): file for path, file in paths.items() if path.startswith(folder)}

    async def get(
        self,
        url: str,
        *,
        start: int | None = None,
        stop: int | None = None,
        limit: int | None = None,
        on_bytes: OnBytes | None = None,
    ) -> Response:
        """See Transport; `url` is a file's quoted name."""
        file = self._files.get(unquote(url))
        if file is None:
            return Response(status=404, body=JsBlob(js.Uint8Array.new(0)))
        size = int(file.size)
        begin = 0 if start is None else start
        if start is not None and begin >= size:
            return Response(status=416, body=JsBlob(js.Uint8Array.new(0)))
        end = size if stop is None else min(stop, size)
        kept = end if limit is None else min(end, begin + limit)
        try:
            array = js.Uint8Array.new(await file.slice(begin, kept).arrayBuffer())
        except JsException as error:
            raise NetworkError(
                f"it cannot be read any more ({error.name}). It may have been changed, moved or deleted; choose the "
                "folder again."
            ) from error
        if on_bytes:
            on_bytes(int(array.byteLength))
        headers = {} if start is None else {"content-range": f"bytes {begin}-{end - 1}/{size}"}
        status = 200 if start is None else 206
        return Response(status=status, headers=headers, body=JsBlob(array), complete=kept == end)


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
    return (
        f"no answer came ({error}). The server may be down or its name wrong, a firewall or a blocker may be in the "
        "way, or the server does not let other sites read its files (CORS). The browser's console may say more."
    )
