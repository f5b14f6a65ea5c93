"""The one thing that fetching needs from its surroundings: a GET, possibly of a range.

`browser.FetchTransport` does it with the page's fetch. Anything else with the same `get` will do.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from app.engine.weights.spec import Blob

OnBytes = Callable[[int], None]
"""Told the bytes of this body that have come so far. An exception that it raises ends the request."""


@dataclass(frozen=True)
class BytesBlob:
    """A Blob in Python's own memory."""

    view: memoryview

    @classmethod
    def of(cls, data: bytes | bytearray | memoryview) -> "BytesBlob":
        """Wrap `data` without copying."""
        return cls(memoryview(data).cast("B"))

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.view.nbytes

    def slice(self, start: int, stop: int) -> "BytesBlob":
        """Return a view of [start, stop) without copying."""
        return BytesBlob(self.view[start:stop])

    def to_bytes(self) -> bytes:
        """Copy into new bytes."""
        return bytes(self.view)


@dataclass(frozen=True, kw_only=True)
class Response:
    """What a server answered, whatever its status."""

    status: int
    body: Blob
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case. Across origins a browser shows only those that the server exposes."""
    url: str = ""
    """Where the answer came from in the end, after redirects ("" if not known)."""
    complete: bool = True
    """False if the body goes on beyond what was asked to be kept (`limit`)."""


class Transport(Protocol):
    """Makes requests. Redirects are followed; an error status is an answer like any other."""

    async def get(
        self,
        url: str,
        *,
        start: int | None = None,
        stop: int | None = None,
        limit: int | None = None,
        on_bytes: OnBytes | None = None,
    ) -> Response:
        """GET `url`, or only its bytes [start, stop) with a `Range` header, and no other header of our own.

        Of the body no more than `limit` bytes are kept; if it is longer, the connection is closed early.

        Raises NetworkError if there was no answer at all, TruncatedError if the connection broke within the body or
        the body is shorter than announced. Cancelling the task aborts the request.
        """
