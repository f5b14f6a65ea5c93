"""Keeps the ranges that were downloaded, so that none is downloaded twice: not after a reload, not after a break.

What is kept is a flat set of entries in a folder for each commit of a model. An entry is a range of a file, followed by
its SHA-256: it can be checked by itself, needs no table that could be damaged or contradict it, and whoever writes it
(this tab or another one) writes the same. A half-written entry is one whose sum is wrong.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, unquote

from app.engine.errors import ChecksumError, NetworkError, NotFoundError, ServerError
from app.engine.weights.files import TEXT_FILE
from app.engine.weights.hub import COMMIT, Source, parse_json
from app.engine.weights.spec import Blob
from app.engine.weights.transport import BytesBlob, OnBytes

SUM_BYTES = 32
FRESH_S = 24 * 3600.0
"""How long the hub isn't asked again which commit a branch stands for."""

HASH_BYTES = 1 << 20
"""Hashed in one go: some milliseconds in wasm."""

_REFS, _ABOUT, _DONE = "refs", "about", "complete"
_ABSENT, _CHECKED = "absent", "checked"
WEIGHTS = (".safetensors", ".gguf")
"""How the names of files end of which the hub gives sums."""


T = TypeVar("T")


class StoreError(Exception):
    """Something could not be kept; the message says why."""


class StoreFullError(StoreError):
    """There is no room."""


class StoreBusyError(StoreError):
    """Another tab is writing the same."""


class Store(Protocol):
    """Folders of named entries, outside of Python's memory. `opfs.OpfsStore` is the page's."""

    async def folders(self) -> list[str]:
        """Return the names of all folders."""

    async def names(self, folder: str) -> list[str]:
        """Return the names of a folder's entries; none if there is no such folder."""

    async def read(self, folder: str, name: str) -> Blob | None:
        """Return an entry, or None if there is none."""

    async def write(self, folder: str, name: str, parts: Sequence[Blob]) -> None:
        """Write an entry, replacing an older one. Raises StoreError; then the entry may be half there."""

    async def remove(self, folder: str, name: str | None = None) -> None:
        """Remove an entry or a whole folder, if it is there. Raises StoreBusyError."""

    async def sha256(self, data: Blob) -> bytes:
        """Return the digest of `data`."""

    async def estimate(self) -> dict[str, Any]:
        """Return {usage, quota, persisted}: bytes used and usable by the page, and whether the browser promised to keep
        them; None for what is not known.
        """


@dataclass(frozen=True, kw_only=True)
class Range:
    """An entry's name: which bytes of which file it holds."""

    file: str
    start: int
    stop: int
    size: int | None
    """Of the whole file, if known."""

    @property
    def name(self) -> str:
        """The entry's name."""
        return f"{quote(self.file, safe='')}!{self.start}-{self.stop}-{'' if self.size is None else self.size}"


def parse_range(name: str) -> Range | None:
    """Read an entry's name; None if it is no range."""
    file, mark, numbers = name.partition("!")
    parts = numbers.split("-")
    if not mark or len(parts) != 3 or not all(part.isascii() and part.isdecimal() for part in parts[:2]):
        return None
    size = int(parts[2]) if parts[2].isascii() and parts[2].isdecimal() else None
    return Range(file=unquote(file), start=int(parts[0]), stop=int(parts[1]), size=size)


class Cache:
    """All that is kept of models, in a Store. What cannot be kept is an inconvenience, never an error of a load."""

    def __init__(
        self, store: Store, *, log: Callable[[str], None] = lambda _: None, clock: Callable[[], float] = time.time
    ) -> None:
        """Keep in `store`; tell `log` what was damaged. `clock` gives seconds since 1970."""
        self._store = store
        self.log = log
        self._clock = clock
        self.trouble: str | None = None
        """Why nothing more is kept, if so."""

    async def open(self, source: Source) -> "CachedFiles":
        """Read `source`, a repository on a hub, through the cache."""
        assert source.repository is not None
        kept = await self._reference(source)
        if kept is not None and source.commit is None and self._clock() - kept["asked"] < FRESH_S:
            source.commit = kept["commit"]
        files = CachedFiles(self, source, fallback=None if kept is None else kept["commit"])
        if source.commit is not None:
            await files.look()
        return files

    async def models(self) -> list[dict[str, Any]]:
        """Return {model, revision, bytes, complete} of each commit that is kept; the largest first."""
        found = []
        for folder in await self._store.folders():
            if folder == _REFS:
                continue
            names = await self._store.names(folder)
            about = await self.get_json(folder, _ABOUT) or {}
            found.append(
                {
                    "model": str(about.get("model", "unknown")),
                    "revision": about.get("commit"),
                    "bytes": sum(kept.stop - kept.start for kept in map(parse_range, names) if kept),
                    "complete": _DONE in names,
                }
            )
        return sorted(found, key=lambda model: -model["bytes"])

    async def estimate(self) -> dict[str, Any]:
        """See Store.estimate."""
        return await self._store.estimate()

    async def forget(self, model: str | None = None) -> None:
        """Delete all that is kept of a model, or of all models. Raises StoreBusyError while another tab writes it."""
        for folder in await self._store.folders():
            if folder == _REFS and model is not None:
                for name in await self._store.names(_REFS):
                    if (await self.get_json(_REFS, name) or {}).get("model") == model:
                        await self._store.remove(_REFS, name)
                continue
            about = {} if model is None else await self.get_json(folder, _ABOUT) or {}
            if model is None or about.get("model", "unknown") == model:
                await self._store.remove(folder)
        self.trouble = None

    async def put(self, folder: str, name: str, data: Blob) -> bool:
        """Keep an entry, if that is possible; tell whether it was."""
        if self.trouble is not None:
            return False
        try:
            total = await self._store.sha256(data)
            await self._store.write(folder, name, [data, BytesBlob.of(total)])
        except StoreBusyError:
            return False
        except StoreError as error:
            self.trouble = self.trouble or str(error)
            self.log(f"Nothing more is kept: {error}")
            await self.drop(folder, name)
            return False
        return True

    async def get(self, folder: str, name: str) -> Blob | None:
        """Return an entry that is whole, or None. A damaged one is removed."""
        try:
            entry = await self._store.read(folder, name)
            if entry is None:
                return None
            if entry.nbytes >= SUM_BYTES:
                data = entry.slice(0, entry.nbytes - SUM_BYTES)
                expected = entry.slice(entry.nbytes - SUM_BYTES, entry.nbytes).to_bytes()
                if await self._store.sha256(data) == expected:
                    return data
        except StoreError as error:
            self.log(f"{name} cannot be read: {error}")
            return None
        self.log(f"{name} was damaged where it is kept, or never finished, and is fetched again")
        await self.drop(folder, name)
        return None

    async def drop(self, folder: str, name: str | None = None) -> None:
        """Remove an entry or a folder, unless another tab is at it."""
        try:
            await self._store.remove(folder, name)
        except StoreError as error:
            self.log(f"{folder} {name or ''} stays for now: {error}")

    async def names(self, folder: str) -> list[str]:
        """Return the names of a folder's entries."""
        try:
            return await self._store.names(folder)
        except StoreError as error:
            self.trouble = self.trouble or str(error)
            return []

    async def get_json(self, folder: str, name: str) -> dict[str, Any] | None:
        """Return an entry that is a JSON object, or None."""
        data = await self.get(folder, name)
        made = None if data is None else json.loads(data.to_bytes())
        return made if isinstance(made, dict) else None

    async def put_json(self, folder: str, name: str, value: dict[str, Any]) -> None:
        """Keep a JSON object."""
        await self.put(folder, name, BytesBlob.of(json.dumps(value).encode()))

    async def settle(self, source: Source, old: str | None) -> None:
        """Remember which commit a revision stands for, now that the hub has told, and drop the one before."""
        assert source.commit is not None
        value = {"model": source.model, "commit": source.commit, "asked": self._clock()}
        await self.put_json(_REFS, _reference_name(source), value)
        if old is not None and old != source.commit:
            await self.drop(folder_name(source, old))

    async def _reference(self, source: Source) -> dict[str, Any] | None:
        try:
            kept = await self.get_json(_REFS, _reference_name(source))
        except StoreError:
            return None
        fine = kept is not None and COMMIT.fullmatch(str(kept.get("commit"))) and isinstance(kept.get("asked"), float)
        return kept if fine else None


class CachedFiles:
    """A model's files, from the cache where they are kept, else over the network, and kept then."""

    def __init__(self, cache: Cache, source: Source, *, fallback: str | None) -> None:
        """Read `source`. `fallback` is the commit to use if the hub cannot be asked for the current one."""
        self.model = source.model
        self.revision = source.revision
        self.gguf = source.gguf
        self.variant = source.variant
        self.cached = 0
        """Bytes that came from the cache."""
        self._cache = cache
        self._source = source
        self._fallback = fallback
        self._folder: str | None = None
        self._kept: dict[str, list[Range]] = {}
        self._absent: set[str] = set()
        self._missed: set[str] = set()
        """Files that were not there, asked for before the commit was known."""
        self._checked: set[str] = set()
        self.complete = False
        """Whether all of the model that is wanted was kept once."""
        self._asking = asyncio.Lock()

    async def look(self) -> None:
        """See what is kept of the commit, which is known by now."""
        assert self._source.commit is not None
        folder = folder_name(self._source, self._source.commit)
        names = await self._cache.names(folder)
        for name in names:
            kept = parse_range(name)
            if kept is not None:
                self._kept.setdefault(kept.file, []).append(kept)
                continue
            file, _, flag = name.partition("!")
            if flag == _ABSENT:
                self._absent.add(unquote(file))
            elif flag == _CHECKED:
                self._checked.add(unquote(file))
        self.complete = _DONE in names
        if _ABOUT not in names:
            about = {"model": self.model, "commit": self._source.commit, "repository": self._source.repository}
            await self._cache.put_json(folder, _ABOUT, about)
        self._folder = folder
        for file in self._missed - self._absent:
            await self._note_absence(file)

    async def check(self, on_check: Callable[[str], None] = lambda _: None) -> None:
        """Compare each file of weights of which every byte is kept with the SHA-256 that the hub gives, once.

        `on_check` is told the file's name before. Raises ChecksumError, and discards all that is kept of the commit.
        """
        for file, kept in self._kept.items():
            parts = _chain(kept)
            if parts is None or file in self._checked or self._folder is None or not file.endswith(WEIGHTS):
                continue
            expected = await self._source.sha256(file)
            if expected is None:
                continue
            if expected:
                on_check(file)
                digest = await self._digest(self._folder, parts)
                if digest is None:
                    continue  # not whole any more: it is checked when the rest has been fetched again
            if expected and digest != expected:
                await self.discard()
                raise ChecksumError(
                    f"{self.label(file)} arrived complete, but its SHA-256 is not the one that the hub gives. "
                    "Something on the way may have altered it. What was kept of it is deleted; load the model again."
                )
            self._checked.add(file)
            await self._cache.put(self._folder, _flag(file, _CHECKED), BytesBlob.of(b""))

    async def _digest(self, folder: str, parts: Sequence[Range]) -> str | None:
        digest, position = hashlib.sha256(), 0
        for part in parts:
            blob = await self._cache.get(folder, part.name)
            if blob is None:
                return None
            for start in range(position - part.start, blob.nbytes, HASH_BYTES):
                digest.update(blob.slice(start, min(start + HASH_BYTES, blob.nbytes)).to_bytes())
                await asyncio.sleep(0)
            position = part.stop
        return digest.hexdigest()

    async def finish(self) -> None:
        """Note that all of the model that was wanted is kept, as far as that is so."""
        if self._folder is not None and self._cache.trouble is None:
            self.complete = await self._cache.put(self._folder, _DONE, BytesBlob.of(b"")) or self.complete

    async def discard(self) -> None:
        """Forget what is kept of this commit, which turned out to be a mixture."""
        if self._folder is not None:
            await self._cache.drop(self._folder)

    def label(self, file: str) -> str:
        """See ModelFiles."""
        return self._source.label(file)

    async def read(self, file: str, max_bytes: int = TEXT_FILE) -> bytes:
        """See ModelFiles."""
        if self._source.commit is None:
            async with self._asking:
                if self._source.commit is None:
                    return await self._first(file, max_bytes)
        self._check_absent(file)
        if (blob := await self._whole(file)) is not None:
            return blob.to_bytes()
        data = await self._noting_absence(file, self._source.read(file, max_bytes))
        await self._put(Range(file=file, start=0, stop=len(data), size=len(data)), BytesBlob.of(data))
        return data

    async def json(self, file: str) -> Any:
        """See ModelFiles."""
        return parse_json(await self.read(file), label=self.label(file))

    async def exists(self, file: str) -> bool:
        """See ModelFiles."""
        return file in self._kept or (file not in self._absent and await self._source.exists(file))

    async def head(self, file: str, nbytes: int) -> tuple[Blob, int | None]:
        """See ModelFiles."""
        self._check_absent(file)
        for kept in self._kept.get(file, []):
            if kept.start == 0 and kept.stop >= (nbytes if kept.size is None else min(nbytes, kept.size)):
                found = await self._get(kept)
                if found is not None:
                    return found.slice(0, min(nbytes, found.nbytes)), kept.size
        blob, size = await self._noting_absence(file, self._source.head(file, nbytes))
        await self._put(Range(file=file, start=0, stop=blob.nbytes, size=size), blob)
        return blob, size

    async def read_range(self, file: str, start: int, stop: int, on_bytes: OnBytes | None = None) -> Blob:
        """See ModelFiles."""
        for kept in self._kept.get(file, []):
            if kept.start <= start and stop <= kept.stop:
                blob = await self._get(kept)
                if blob is not None:
                    if on_bytes:
                        on_bytes(stop - start)
                    return blob.slice(start - kept.start, stop - kept.start)
        blob = await self._source.read_range(file, start, stop, on_bytes)
        size = next((kept.size for kept in self._kept.get(file, []) if kept.size is not None), None)
        await self._put(Range(file=file, start=start, stop=stop, size=size), blob)
        return blob

    async def _first(self, file: str, max_bytes: int) -> bytes:
        """Ask the hub for a file, and so for the commit; without an answer take the commit it was last time."""
        try:
            data = await self._source.read(file, max_bytes)
        except (NetworkError, ServerError) as error:
            if self._fallback is None:
                raise
            self._cache.log(f"{error} What is kept of {self.model} is used as it is.")
            self._source.commit = self._fallback
            await self.look()
            if (blob := await self._whole(file)) is None:
                self._check_absent(file)
                raise
            return blob.to_bytes()
        except NotFoundError:
            self._missed.add(file)
            if self._source.commit is not None:
                await self._cache.settle(self._source, self._fallback)
                await self.look()
            raise
        if self._source.commit is not None:
            await self._cache.settle(self._source, self._fallback)
            await self.look()
            await self._put(Range(file=file, start=0, stop=len(data), size=len(data)), BytesBlob.of(data))
        return data

    async def _whole(self, file: str) -> Blob | None:
        for kept in self._kept.get(file, []):
            if (kept.start, kept.stop) == (0, kept.size):
                return await self._get(kept)
        return None

    async def _get(self, kept: Range) -> Blob | None:
        assert self._folder is not None
        blob = await self._cache.get(self._folder, kept.name)
        if blob is not None and blob.nbytes == kept.stop - kept.start:
            self.cached += blob.nbytes
            return blob
        # Another reader may have found the same while this one waited.
        self._kept[kept.file] = [other for other in self._kept[kept.file] if other != kept]
        return None

    async def _put(self, kept: Range, blob: Blob) -> None:
        if self._folder is not None and await self._cache.put(self._folder, kept.name, blob):
            self._kept.setdefault(kept.file, []).append(kept)

    def _check_absent(self, file: str) -> None:
        if file in self._absent:
            raise NotFoundError(f"{self.label(file)} was not found when the hub was asked before.")

    async def _noting_absence(self, file: str, asking: Awaitable[T]) -> T:
        try:
            return await asking
        except NotFoundError:  # a commit does not change: it will not be there later either
            await self._note_absence(file)
            raise

    async def _note_absence(self, file: str) -> None:
        if self._folder is not None:
            self._absent.add(file)
            await self._cache.put(self._folder, _flag(file, _ABSENT), BytesBlob.of(b""))


def _flag(file: str, flag: str) -> str:
    return f"{quote(file, safe='')}!{flag}"


def _chain(kept: Sequence[Range]) -> list[Range] | None:
    """Return ranges that cover a whole file, in its order; None if a byte is missing."""
    chain: list[Range] = []
    position, size = 0, next((part.size for part in kept if part.size is not None), None)
    for part in sorted(kept, key=lambda part: (part.start, -part.stop)):
        if part.start > position:
            return None
        if part.stop > position:
            chain.append(part)
            position = part.stop
    return chain if position == size else None


def folder_name(source: Source, commit: str) -> str:
    """Return the name of the folder for a commit of a repository."""
    return hashlib.sha256(f"{source.identity}@{commit}".encode()).hexdigest()[:40]


def _reference_name(source: Source) -> str:
    return hashlib.sha256(f"{source.identity}@{source.revision}".encode()).hexdigest()[:40]
