"""The cache's Store in a folder on disk, for tests outside a browser; what it cannot do is chosen."""

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from app.engine.weights.cache import StoreBusyError, StoreFullError
from app.engine.weights.spec import Blob
from app.engine.weights.transport import BytesBlob


class FolderStore:
    """Entries as files. `room` bytes may be written; names in `busy` are another's at the moment."""

    def __init__(self, folder: Path, room: int = 1 << 40) -> None:
        self.folder, self.room = folder, room
        self.busy: set[str] = set()

    async def folders(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir())

    async def names(self, folder: str) -> list[str]:
        path = self.folder / folder
        return sorted(unquote(entry.name) for entry in path.iterdir()) if path.is_dir() else []

    async def read(self, folder: str, name: str) -> Blob | None:
        path = self._path(folder, name)
        return BytesBlob.of(path.read_bytes()) if path.is_file() else None

    async def write(self, folder: str, name: str, parts: Sequence[Blob]) -> None:
        if name in self.busy:
            raise StoreBusyError(f"{name} is being written")
        path = self._path(folder, name)
        path.parent.mkdir(exist_ok=True)
        with path.open("wb") as file:
            for part in parts:
                if part.nbytes > self.room:
                    file.write(part.slice(0, self.room).to_bytes())
                    raise StoreFullError("the storage is full")
                self.room -= part.nbytes
                file.write(part.to_bytes())

    async def remove(self, folder: str, name: str | None = None) -> None:
        if name is None:
            shutil.rmtree(self.folder / folder, ignore_errors=True)
        else:
            self._path(folder, name).unlink(missing_ok=True)

    async def sha256(self, data: Blob) -> bytes:
        return hashlib.sha256(data.to_bytes()).digest()

    async def estimate(self) -> dict[str, Any]:
        return {"usage": None, "quota": None, "persisted": None}

    def entries(self) -> list[Path]:
        """Return the files of all ranges."""
        return sorted(path for path in self.folder.rglob("*") if path.is_file() and "safetensors" in path.name)

    def _path(self, folder: str, name: str) -> Path:
        return self.folder / folder / quote(name, safe="")
