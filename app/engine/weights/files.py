"""A model's files, wherever they are: what a loader reads."""

from typing import Any, Protocol

from app.engine.weights.spec import Blob
from app.engine.weights.transport import OnBytes

TEXT_FILE = 32 << 20
"""Bytes that a JSON or text file may have."""


class ModelFiles(Protocol):
    """Reads the files of one model. `hub.Source` does it over the network, `cache.CachedFiles` only where it must."""

    model: str
    revision: str | None

    @property
    def gguf(self) -> str | None:
        """The name of the GGUF file that the model is in, if one was named."""

    @property
    def variant(self) -> str | None:
        """A part of that name, if only this was named."""

    def label(self, file: str) -> str:
        """Name a file in a message."""

    async def read(self, file: str, max_bytes: int = TEXT_FILE) -> bytes:
        """Return a whole file. Raises NotFoundError, ModelFileError if it is longer than `max_bytes`, or a HubError."""

    async def json(self, file: str) -> Any:
        """Return the contents of a JSON file. Raises WrongContentError if it is none, or as `read` does."""

    async def exists(self, file: str) -> bool:
        """Tell whether there is such a file."""

    async def head(self, file: str, nbytes: int) -> tuple[Blob, int | None]:
        """Return a file's first `nbytes` bytes (fewer if it is shorter), and its whole length if that is known."""

    async def read_range(self, file: str, start: int, stop: int, on_bytes: OnBytes | None = None) -> Blob:
        """Return the bytes [start, stop) of a file, exactly. `on_bytes` starts again from 0 when a try has failed."""
