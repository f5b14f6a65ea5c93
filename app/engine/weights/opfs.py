"""The cache's Store in the page's origin-private file system. Runs in a worker; data never enters wasm memory."""

from collections.abc import Sequence
from typing import Any

import js
from pyodide.ffi import JsException, to_js

from app.engine.weights.browser import JsBlob
from app.engine.weights.cache import StoreBusyError, StoreError, StoreFullError
from app.engine.weights.spec import Blob

ROOT = "tabgpt-models"
FULL = "the browser gives this page no more room, or the disk is full"


async def open_opfs() -> "OpfsStore":
    """Open the page's storage. Raises StoreError if there is none (an insecure page, some private windows)."""
    storage = getattr(js.navigator, "storage", None)
    if not js.isSecureContext or storage is None or not hasattr(storage, "getDirectory"):
        raise StoreError("this page has no storage of its own: it is not served over https, or the browser is too old")
    try:
        root = await (await storage.getDirectory()).getDirectoryHandle(ROOT, _options(create=True))
    except JsException as error:
        raise StoreError(f"the browser gives this page no storage ({error.name}), as in a private window") from error
    return OpfsStore(root)


class OpfsStore:
    """Implements Store. Made by `open_opfs`."""

    def __init__(self, root: Any) -> None:
        """Keep everything below the directory handle `root`."""
        self._root = root

    async def folders(self) -> list[str]:
        """See Store."""
        return await self._list(self._root, "directory")

    async def names(self, folder: str) -> list[str]:
        """See Store."""
        try:
            return await self._list(await self._root.getDirectoryHandle(folder), "file")
        except JsException as error:
            if error.name == "NotFoundError":
                return []
            raise _translated(error) from error

    async def read(self, folder: str, name: str) -> Blob | None:
        """See Store. Needs no lock, so two tabs can read one entry at once."""
        try:
            handle = await (await self._root.getDirectoryHandle(folder)).getFileHandle(name)
            return JsBlob(js.Uint8Array.new(await (await handle.getFile()).arrayBuffer()))
        except JsException as error:
            if error.name == "NotFoundError":
                return None
            raise _translated(error) from error

    async def write(self, folder: str, name: str, parts: Sequence[Blob]) -> None:
        """See Store."""
        try:
            directory = await self._root.getDirectoryHandle(folder, _options(create=True))
            handle = await directory.getFileHandle(name, _options(create=True))
            access = await handle.createSyncAccessHandle()  # exclusive
        except JsException as error:
            raise _translated(error) from error
        try:
            at = 0
            for part in parts:
                if access.write(_array(part), _options(at=at)) != part.nbytes:
                    raise StoreFullError(FULL)
                at += part.nbytes
            access.truncate(at)
        except JsException as error:
            raise _translated(error) from error
        finally:
            access.close()

    async def remove(self, folder: str, name: str | None = None) -> None:
        """See Store."""
        try:
            if name is None:
                await self._root.removeEntry(folder, _options(recursive=True))
            else:
                await (await self._root.getDirectoryHandle(folder)).removeEntry(name)
        except JsException as error:
            if error.name != "NotFoundError":
                raise _translated(error) from error

    async def sha256(self, data: Blob) -> bytes:
        """See Store."""
        digest: bytes = js.Uint8Array.new(await js.crypto.subtle.digest("SHA-256", _array(data))).to_bytes()
        return digest

    async def estimate(self) -> dict[str, Any]:
        """See Store."""
        storage = js.navigator.storage
        estimate = await storage.estimate()
        return {"usage": estimate.usage, "quota": estimate.quota, "persisted": bool(await storage.persisted())}

    async def _list(self, directory: Any, kind: str) -> list[str]:
        return [str(handle.name) async for handle in directory.values() if handle.kind == kind]


def _array(data: Blob) -> Any:
    return data.js if isinstance(data, JsBlob) else to_js(data.to_bytes())


def _options(**options: Any) -> Any:
    return to_js(options, dict_converter=js.Object.fromEntries)


def _translated(error: JsException) -> StoreError:
    if error.name == "QuotaExceededError":
        return StoreFullError(FULL)
    if error.name == "NoModificationAllowedError":
        return StoreBusyError("another tab is using it")
    return StoreError(f"the browser's storage failed ({error.name}: {error.message})")
