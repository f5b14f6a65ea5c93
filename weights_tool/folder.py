"""A model in a local folder, read by the engine's own loader."""

from pathlib import Path
from urllib.parse import unquote

from app.engine.weights.hub import Source
from app.engine.weights.transport import BytesBlob, OnBytes, Response

TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json")


class FolderTransport:
    """Answers as a static host with this folder would."""

    def __init__(self, folder: Path) -> None:
        """Serve the files in `folder`."""
        self._folder = folder

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
        path = self._folder / unquote(url)
        if not path.is_file():
            return Response(status=404, body=BytesBlob.of(b""))
        size = path.stat().st_size
        begin = 0 if start is None else start
        if start is not None and begin >= size:
            return Response(status=416, body=BytesBlob.of(b""))
        wanted = size if start is None or stop is None else min(stop, size) - begin
        kept = wanted if limit is None else min(wanted, limit)
        with path.open("rb") as file:
            file.seek(begin)
            data = file.read(kept)
        if on_bytes:
            on_bytes(len(data))
        headers = {} if start is None else {"content-range": f"bytes {begin}-{begin + wanted - 1}/{size}"}
        status = 200 if start is None else 206
        return Response(status=status, body=BytesBlob.of(data), headers=headers, complete=kept == wanted)


def folder_source(folder: Path) -> Source:
    """Open a folder as the loader wants it."""
    return Source(folder.name or str(folder), None, "", FolderTransport(folder), host=str(folder))
