"""A model's files on the hub or on any static host: URLs, requests, retries, and errors that say what to do."""

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from app.engine.errors import (
    ChangedError,
    GatedError,
    HubError,
    ModelFileError,
    NetworkError,
    NotFoundError,
    OfflineError,
    OptionError,
    RangeError,
    RateLimitedError,
    ServerError,
    TruncatedError,
    WrongContentError,
)
from app.engine.json_text import parse_json as parse_text
from app.engine.weights.files import TEXT_FILE
from app.engine.weights.safetensors import check_kind
from app.engine.weights.spec import Blob
from app.engine.weights.transport import OnBytes, Response, Transport

DEFAULT_HUB = "https://huggingface.co"

WELL_KNOWN = {
    "gpt2": "openai-community/gpt2",
    "gpt2-medium": "openai-community/gpt2-medium",
    "gpt2-large": "openai-community/gpt2-large",
    "gpt2-xl": "openai-community/gpt2-xl",
    "distilgpt2": "distilbert/distilgpt2",
}
"""Names without an owner that are still common."""

TRIES = 5
"""Requests for one answer, at most."""
NETWORK_TRIES = 3
"""Requests while there is no answer at all: a refusal by CORS looks the same, and will not pass."""
OFFLINE_WAIT = 600.0
"""Seconds that a download which has begun waits for the network to come back."""
MAX_WAIT = 60.0
"""Seconds spent waiting between the tries for one answer, at most."""
WHOLE_FILE = 64 << 20
"""A server may answer a range with the whole file; up to this many bytes that is accepted, and kept."""

LISTING = ".listing"
"""Not a file of a repository: the hub's list of them, as it gives it."""
ON_SITE: dict[str, str | None] = {"story": None, "smollm2": "model.gguf"}
"""Models that the page's own site may have, below models/, and their GGUF file if that is what they are."""

_NAME = re.compile(
    r"(?P<owner>[A-Za-z0-9_][\w.-]{0,95})/(?P<name>[A-Za-z0-9_][\w.-]{0,95})"
    r"(?:/(?P<file>(?:[A-Za-z0-9_][\w.-]{0,95}/){0,4}[A-Za-z0-9_][\w.-]{0,200}\.gguf)|:(?P<variant>[\w.-]{1,40}))?"
    r"(?:@(?P<revision>[!-~]{1,200}))?",
    re.ASCII,
)
# Where a browser shows a file, and where it gets it.
_FILE_PAGE = re.compile(r"/([^/]+/[^/]+)/(?:resolve|blob)/([^/]+)/(.+\.gguf)")
COMMIT = re.compile(r"[0-9a-f]{40}", re.ASCII)
_POINTER = re.compile(rb"version https://git-lfs[^\n]*\noid sha256:([0-9a-f]{64})\n")
_LINKED = re.compile(r'"?([0-9a-f]{64})"?', re.ASCII)
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]


class Source:
    """Reads the files of one model, over a transport. Made by `open_source`."""

    def __init__(
        self,
        model: str,
        revision: str | None,
        base: str,
        transport: Transport,
        *,
        repository: str | None = None,
        listing: str | None = None,
        gguf: str | None = None,
        variant: str | None = None,
        host: str | None = None,
        sleep: Sleep = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Read from the folder at `base`, a URL that ends with "/".

        `repository` is the URL of the hub's repository, if it is one, without a "/" at the end, and `listing` the URL
        of the list of its files. `gguf` names the GGUF file that the model is in, `variant` a part of its name. `host`
        is how messages name the place, the URL's host by default. `chance` in [0, 1) is the back-off's jitter.
        """
        self.model = model
        self.revision = revision
        self.commit: str | None = revision if revision and COMMIT.fullmatch(revision) else None
        """What `revision` stands for now, once the hub has told. From then on only its files are asked for."""
        self.base = base
        self.repository = repository
        self.gguf = gguf
        self.variant = variant
        self._listing = listing
        self.on_wait: Callable[[str], None] = lambda _: None
        """Told, in words, what is waited for."""
        self.downloaded = 0
        """Bytes that came over the network, also in tries that failed."""
        self._host = urlsplit(base).netloc if host is None else host
        self._transport = transport
        self._sleep = sleep
        self._chance = chance
        self._whole: dict[str, Blob] = {}
        self._sizes: dict[str, int] = {}
        self._etags: dict[str, str] = {}
        self._linked: dict[str, str] = {}

    @property
    def identity(self) -> str:
        """What tells this model from others on the same hub, but for the revision."""
        part = self.gguf or self.variant
        return f"{self.repository}#{part}" if part else str(self.repository)

    def start_over(self) -> None:
        """Forget what is known of the files, since one has changed."""
        self._whole.clear()
        self._sizes.clear()
        self._etags.clear()

    def label(self, file: str) -> str:
        """Name a file in a message: with its model and the server's host."""
        return f"{'The list of files' if file == LISTING else file} of {self.model} ({self._host})"

    async def read(self, file: str, max_bytes: int = TEXT_FILE) -> bytes:
        """Return a whole file, or the LISTING.

        Raises ModelFileError if it is longer than `max_bytes`, or a HubError.
        """
        if file == LISTING and self._listing is None:
            raise NotFoundError(f"{self.label(file)} cannot be had: no hub is asked.")

        def accept(answer: Response) -> bytes:
            data = answer.body.to_bytes()
            check_kind(data, file=self.label(file))
            if not answer.complete:
                raise ModelFileError(
                    f"{self.label(file)} is longer than {max_bytes} bytes, too long for what it should be."
                )
            if file == LISTING and self.commit is None:
                listed = parse_json(data, label=self.label(file))
                commit = str(listed.get("sha")) if isinstance(listed, dict) else ""
                self.commit = commit if COMMIT.fullmatch(commit) else None
            return data

        return await self._ask(file, accept, limit=max_bytes)

    async def json(self, file: str) -> Any:
        """Return the contents of a JSON file. Raises WrongContentError if it is none, or as `read` does."""
        return parse_json(await self.read(file), label=self.label(file))

    async def exists(self, file: str) -> bool:
        """Tell whether there is such a file, at the price of a few bytes."""

        def accept(answer: Response) -> bool:
            check_kind(answer.body.to_bytes(), file=self.label(file))
            return True

        try:
            return await self._ask(file, accept, start=0, stop=256, limit=256)
        except (NotFoundError, WrongContentError):  # some static hosts answer any address with a page
            return False

    async def sha256(self, file: str) -> str | None:
        """Return the SHA-256 (hex) that the hub gives for a large file; "" if none, None if it does not answer.

        The hub names it in the redirect to the file (X-Linked-Etag), which a page never gets to see; the file's
        pointer in the repository, under raw/, says the same. (The ETag of what the redirect leads to is another sum.)
        """
        if self.repository is None or self.commit is None:
            return None
        if file not in self._linked:
            url = f"{self.repository}/raw/{self.commit}/{quote(file)}"
            try:
                answer = await self._transport.get(url, limit=1024)
            except HubError:
                return None
            if answer.status == 429 or answer.status >= 500:
                return None
            found = _POINTER.match(answer.body.to_bytes()) if answer.status == HTTPStatus.OK else None
            self._linked[file] = found[1].decode() if found else ""
        return self._linked[file]

    async def head(self, file: str, nbytes: int) -> tuple[Blob, int | None]:
        """Return a file's first `nbytes` bytes (fewer if it is shorter), and its whole length if the server tells."""
        return await self._read_range(file, 0, nbytes, None)

    async def read_range(self, file: str, start: int, stop: int, on_bytes: OnBytes | None = None) -> Blob:
        """Return the bytes [start, stop) of a file, exactly. `on_bytes` starts again from 0 when a try has failed.

        Raises RangeError if the server sends another range or ignores it for a big file, or any other HubError.
        """
        blob, size = await self._read_range(file, start, stop, on_bytes)
        if blob.nbytes != stop - start:
            raise RangeError(
                f"{self.label(file)} ends at byte {start + blob.nbytes if size is None else size}, but {stop} were "
                "expected: it is cut off, or has changed. Try again, or tell the repository's owner."
            )
        return blob

    async def _read_range(self, file: str, start: int, stop: int, on_bytes: OnBytes | None) -> tuple[Blob, int | None]:
        whole = self._whole.get(file)
        if whole is not None:
            blob = whole.slice(min(start, whole.nbytes), min(stop, whole.nbytes))
            if on_bytes:
                on_bytes(blob.nbytes)
            return blob, whole.nbytes

        def accept(answer: Response) -> tuple[Blob, int | None]:
            return self._accept_range(file, answer, start, stop)

        limit = max(stop - start, WHOLE_FILE)
        return await self._ask(file, accept, start=start, stop=stop, limit=limit, on_bytes=on_bytes)

    def _accept_range(self, file: str, answer: Response, start: int, stop: int) -> tuple[Blob, int | None]:
        """Return the bytes [start, stop) of an answer to that range, fewer at the file's end, and the file's length."""
        body, label = answer.body, self.label(file)
        if start == 0 or answer.status == HTTPStatus.OK:
            check_kind(body.slice(0, min(512, body.nbytes)).to_bytes(), file=label)
        if answer.status == HTTPStatus.OK:
            if not answer.complete:
                raise RangeError(
                    f"{label}: the server ignored the range and sent the whole file, which is too big for that. Serve "
                    "the model from a host that supports range requests."
                )
            self._whole[file] = body
            return body.slice(min(start, body.nbytes), min(stop, body.nbytes)), body.nbytes
        # Where the server does not expose Content-Range to other origins there is only the length to go by.
        sent, size = (start, start + body.nbytes), None
        if (text := answer.headers.get("content-range")) is not None:
            match = _CONTENT_RANGE.fullmatch(text.strip())
            if not match:
                raise RangeError(f"{label}: the server's Content-Range makes no sense: {text[:80]!r}.")
            sent = int(match[1]), int(match[2]) + 1
            size = None if match[3] == "*" else int(match[3])
        if sent[0] != start or sent[1] > stop or (sent[1] < stop and size not in (None, sent[1])):
            raise RangeError(
                f"{label}: asked for bytes {start} to {stop - 1}, but the server sent {sent[0]} to {sent[1] - 1}. A "
                "proxy in between may be broken; try again, or use another hub."
            )
        if body.nbytes != sent[1] - sent[0] or not answer.complete:
            raise TruncatedError(f"{body.nbytes} bytes came, {sent[1] - sent[0]} were announced")
        if size is not None and self._sizes.setdefault(file, size) != size:
            raise ChangedError(f"{label} changed its length while it was being read. Load the model again.")
        return body, size

    async def _ask(
        self,
        file: str,
        accept: Callable[[Response], T],
        *,
        start: int | None = None,
        stop: int | None = None,
        limit: int | None = None,
        on_bytes: OnBytes | None = None,
    ) -> T:
        """GET a file or a range of it and return what `accept` makes of the answer; retry what may pass."""
        waited, tries = 0.0, 0
        while True:
            tries += 1
            asked_to_wait = None
            received = _Received(self, on_bytes)
            try:
                answer = await self._transport.get(
                    self._url(file), start=start, stop=stop, limit=limit, on_bytes=received
                )
                self._learn_commit(answer)
                if answer.status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                    if linked := _LINKED.fullmatch(answer.headers.get("x-linked-etag", "")):
                        self._linked[file] = linked[1]
                    self._check_etag(file, answer)
                    return accept(answer)
                asked_to_wait = _retry_after(answer.headers.get("retry-after", ""))
                raise self._refusal(file, answer.status)
            except (RateLimitedError, ServerError) as error:
                failure: HubError = error
            except TruncatedError as error:
                failure = TruncatedError(
                    f"{self.label(file)} arrived incomplete in {tries} tries: {error}. The connection may be bad; try "
                    "again, and what has been loaded stays untouched."
                )
            except OfflineError as error:
                failure = NetworkError(f"{self.label(file)} could not be fetched: {error}")
                if not await self._back_online():
                    raise failure from error
                tries = 0
                continue
            except NetworkError as error:
                failure = NetworkError(f"{self.label(file)} could not be fetched: {error}")
            # Full seconds that a server asks for, else 0.5, 1, 2, 4 s, each between half and whole at random, so that
            # several ranges that failed together do not come back together.
            pause = 2.0 ** (tries - 2) * (0.5 + self._chance() / 2) if asked_to_wait is None else asked_to_wait
            if tries >= (NETWORK_TRIES if isinstance(failure, NetworkError) else TRIES) or waited + pause > MAX_WAIT:
                raise failure
            waited += pause
            if pause >= 2:
                self.on_wait(f"The server is busy; trying again in {pause:.0f} s")
            await self._sleep(pause)

    async def _back_online(self) -> bool:
        """Wait for the network, if a download has begun and the transport can tell."""
        wait = getattr(self._transport, "back_online", None)
        if wait is None or not self.downloaded:
            return False
        self.on_wait("Offline; the download goes on when the network is back")
        return bool(await wait(OFFLINE_WAIT))

    def _learn_commit(self, answer: Response) -> None:
        if self.repository is not None and self.commit is None:
            commit = answer.headers.get("x-repo-commit", "")
            self.commit = commit if COMMIT.fullmatch(commit) else None

    def _check_etag(self, file: str, answer: Response) -> None:
        etag = answer.headers.get("etag", "")
        # A weak one may change with the server that answers.
        if etag.startswith('"') and self._etags.setdefault(file, etag) != etag:
            raise ChangedError(f"{self.label(file)} was replaced while it was being read. Load the model again.")

    def _refusal(self, file: str, status: int) -> HubError:
        """Turn a status that is no success into an error."""
        label = self.label(file)
        said = f"the server answered {status}"
        if status in (404, 410):
            revision = "" if self.revision in (None, "main") else f" and of its revision {self.revision!r}"
            return NotFoundError(
                f"{label} was not found ({said}). Check the spelling of the model's name{revision}, and that it has "
                "this file."
            )
        if status in (401, 403):
            return GatedError(
                f"{label} is not open to everyone ({said}): the repository is private or gated, or does not exist. "
                "Check its name, give an access token that may read it, or choose a public model."
            )
        if status == 429:
            return RateLimitedError(
                f"{label}: {said}, too many requests, also after waiting. Try again in some minutes."
            )
        if status == 416:
            return RangeError(f"{label} is shorter than it should be ({said}). It may be cut off or have changed.")
        if status >= 500:
            return ServerError(f"{label}: {said} in {TRIES} tries. The server has a problem; try again later.")
        return HubError(f"{label} could not be fetched: {said}. Open {self._url(file)} in a browser tab to see why.")

    def _url(self, file: str) -> str:
        if file == LISTING and self._listing is not None:
            return self._listing
        base = self.base
        if self.repository is not None and self.commit is not None:
            base = f"{self.repository}/resolve/{self.commit}/"
        return base + quote(file)


class _Received:
    """Counts the bytes of one try."""

    def __init__(self, source: Source, on_bytes: OnBytes | None) -> None:
        self._source, self._on_bytes, self._counted = source, on_bytes, 0

    def __call__(self, nbytes: int) -> None:
        if self._source.base:  # else the files are on this device
            self._source.downloaded += nbytes - self._counted
        self._counted = nbytes
        if self._on_bytes:
            self._on_bytes(nbytes)


def parse_json(data: bytes, *, label: str) -> Any:
    """Return the contents of a JSON file. Raises WrongContentError if it is none."""
    try:
        return parse_text(data)
    except ValueError as error:
        raise WrongContentError(
            f"{label} is not valid JSON ({str(error)[:100]}). The file may be damaged, or the server sent something "
            "else: open its address in a browser tab to see."
        ) from error


def open_source(
    model: str,
    *,
    transport: Transport,
    hub: str | None = None,
    site: str | None = None,
    sleep: Sleep = asyncio.sleep,
    chance: Callable[[], float] = random.random,
) -> Source:
    """Say where a model's files are; nothing is requested yet.

    `model` is one of

    - "story" or "smollm2", under `site`, the page's own base URL
    - "owner/name" on `hub` (a base URL, https://huggingface.co if None)
    - "owner/name:Q4_K_M": the GGUF file of that repository with this in its name
    - "owner/name/file.gguf": this file
    - the URL of a folder that holds the files, or of a GGUF file

    Names on the hub may end in "@revision". Raises OptionError for anything else.
    """
    if not isinstance(model, str) or not model.strip():
        raise OptionError("model must be a name like 'story' or 'openai-community/gpt2', or the URL of a folder.")
    model = model.strip()
    if model in ON_SITE:
        if site is None:
            raise OptionError(f"The model {model!r} is part of tabgpt's page, but no site address was given.")
        base = f"{site.rstrip('/')}/models/{model}/"
        return Source(model, None, base, transport, gguf=ON_SITE[model], sleep=sleep, chance=chance)
    if "://" in model:
        hub_name = _on_the_hub(model)
        if hub_name is None:
            url, _, file = _without_query(model).rpartition("/")
            if not file.lower().endswith(".gguf"):
                url, file = model, ""
            base = _base_url("model", url)
            return Source(model, None, base, transport, gguf=unquote(file) or None, sleep=sleep, chance=chance)
        model, hub = hub_name, None
    bare, at, revision = model.partition("@")
    name = WELL_KNOWN.get(bare, bare) + at + revision
    if "/" not in bare and bare not in WELL_KNOWN:
        raise OptionError(
            f"model {model[:100]!r} has no owner: names on the hub are owner/name, like 'openai-community/gpt2'. "
            f"Names that need none: story, {', '.join(WELL_KNOWN)}."
        )
    match = _NAME.fullmatch(name)
    if not match or ".." in name or (match["revision"] or "x").startswith("/"):
        raise OptionError(
            f"model {model[:100]!r} is no name on the hub: owner/name or owner/name@revision, of letters, digits, "
            "'.', '_' and '-'; for GGUF also owner/name:Q4_K_M or owner/name/file.gguf."
        )
    owner, repo, revision = match["owner"], match["name"], match["revision"] or "main"
    root = _base_url("hub", hub or DEFAULT_HUB)
    repository = f"{root}{owner}/{repo}"
    return Source(
        (name.partition("@")[0]),
        revision,
        f"{repository}/resolve/{quote(revision, safe='')}/",
        transport,
        repository=repository,
        listing=f"{root}api/models/{owner}/{repo}/revision/{quote(revision, safe='')}",
        gguf=match["file"],
        variant=match["variant"],
        sleep=sleep,
        chance=chance,
    )


def local_source(transport: Transport, name: str) -> Source:
    """Read a model's files, by their names, from a transport that needs no address.

    Its attribute `gguf`, if it has one, names the GGUF file that the model is in.
    """
    return Source(name, None, "", transport, gguf=getattr(transport, "gguf", None), host="this device")


def _without_query(url: str) -> str:
    """Return an address without the `?download=true` that the hub's own links have."""
    return url.strip().removesuffix("?download=true")


def _on_the_hub(url: str) -> str | None:
    """Return the name of a GGUF file on the usual hub, of which `url` is an address there; else None."""
    url = _without_query(url)
    match = _FILE_PAGE.fullmatch(url.removeprefix(DEFAULT_HUB)) if url.startswith(f"{DEFAULT_HUB}/") else None
    return f"{match[1]}/{unquote(match[3])}@{unquote(match[2])}" if match else None


def _base_url(option: str, url: str) -> str:
    """Validate the address of a folder; return it with a "/" at its end."""
    try:
        parts = urlsplit(url.strip())
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        fine = fine and not parts.query and not parts.fragment and (parts.port is None or parts.port > 0)
    except ValueError:
        fine = False
    if not fine or re.search(r"[\s\\]", url.strip()):
        # A message may end up in a bug report: what may be a secret is not repeated.
        shown = re.sub(r"[?#].*", "?…", re.sub(r"//.*@", "//…@", url, flags=re.DOTALL), flags=re.DOTALL)
        raise OptionError(
            f"{option} must be an http or https address of a folder, without a query or password, not {shown[:100]!r}."
        )
    return url.strip().rstrip("/") + "/"


def _retry_after(text: str) -> float | None:
    """Read a Retry-After header, seconds or a date, as seconds from now."""
    if re.fullmatch(r"\d{1,9}", text.strip(), re.ASCII):
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
