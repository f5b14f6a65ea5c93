"""A double of the model hub: a real server on two origins that behaves as its users report, and misbehaves on request.

`GET /{owner}/{name}/raw/{revision}/{file}` gives a large file's Git LFS pointer.
`GET /{owner}/{name}/resolve/{revision}/{file}` on the hub gives small files straight; what a folder's real hub would
keep in LFS (`*.safetensors`, `*.bin`) is answered with a 302 to a signed address on the second origin, the CDN, which
knows ranges. Both let other origins read (CORS), but only the hub answers a preflight.
"""

import asyncio
import gzip
import hashlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tests.serving import serving

LFS = (".safetensors", ".bin", ".gguf")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SIGNATURE = "signature=made+up/for%3Dtests"
LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 548105171\n"
LOGIN_PAGE = b"<!doctype html>\n<html><head><title>Sign in</title></head><body>Please sign in.</body></html>\n"
PIECE = 1 << 16
_CORS = {
    "access-control-allow-origin": "*",
    "access-control-expose-headers": "X-Repo-Commit,X-Linked-Size,X-Linked-Etag,ETag,Content-Range,Retry-After",
}

FAULTS = {
    "404", "401", "403", "429", "500", "503",  # that status
    "ignore-range",  # 200 with the whole file
    "short",  # a consistent answer with half of the body: Content-Length says so, Content-Range does not
    "cut",  # the connection breaks after half of the body
    "cut-at",  # the same after the part `at` of the body
    "long",  # more bytes than Content-Range says
    "html",  # a login page, 200
    "html-no-type",  # the same, called application/octet-stream
    "lfs-pointer",  # what git-lfs leaves in a plain clone
    "wrong-range",  # bytes from elsewhere, and Content-Range says so
    "no-range-header",  # 206 without Content-Range
    "nonsense-range",  # 206 with a Content-Range that is none
    "no-cors",  # on the file's own origin: after the redirect, if there is one
    "slow",  # 2 kB every 50 ms
    "redirect-loop",
    "changed-size",  # Content-Range tells another length of the file
    "changed-etag",  # the right bytes of what says to be another file
    "gzip",  # compressed for who accepts that: Content-Length is that of the compressed body
    "flip",  # one bit of the body is another
}  # fmt: skip
"""What `Hub.fail` knows."""


WEATHER = ("cut-at", "500", "503", "short")
"""What may strike at random, beside delays."""


@dataclass
class Asked:
    """A request that came."""

    origin: str
    """"hub" or "cdn"."""
    method: str
    file: str
    range: str | None
    headers: dict[str, str]
    status: int = 0


@dataclass
class _Fault:
    file: str
    kind: str
    times: int
    after: int
    retry_after: str | None
    at: float


class _File:
    """A file of which parts are read, since some are far larger than what a request wants."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size

    def __getitem__(self, span: slice) -> bytes:
        start, stop, _ = span.indices(self.size)
        with self.path.open("rb") as file:
            file.seek(start)
            return file.read(max(0, stop - start))


@cache
def _sha256(path: Path, _mtime: int, _size: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass
class Hub:
    """The double's handle: its addresses, what was asked, and what shall go wrong."""

    folder: Path
    """Holds `owner/name/` folders with the models' files."""
    url: str = ""
    cdn_url: str = ""
    asked: list[Asked] = field(default_factory=list)
    latency_s: float = 0.0
    """Waited before each answer."""
    bytes_per_s: float = 0.0
    """Of each connection to the CDN; 0: as fast as it goes."""
    commit: str | None = COMMIT
    """What the branch `main` stands for; None: the hub does not tell."""
    token: str | None = None
    """Without it in `Authorization` the hub, and never the CDN, answers 401."""
    tells_checksums: bool = True
    """Whether raw/ gives pointers, and the redirect X-Linked-Etag."""
    lists: bool = True
    """Whether it tells which files a repository has."""
    finished: int = 0
    """Answers that were sent to their end."""
    weather: random.Random | None = None
    """Delays every answer, and lets every third be cut, refused, or of the wrong bytes, as its numbers have it."""
    struck: Counter[str] = field(default_factory=Counter)
    """What the weather did."""
    _faults: list[_Fault] = field(default_factory=list)

    def fail(
        self,
        file: str,
        kind: str,
        *,
        times: int = 1_000_000,
        after: int = 0,
        retry_after: str | None = None,
        at: float = 0.5,
    ) -> None:
        """Answer the next `times` requests for `file`, once `after` of them have passed, with a fault of FAULTS.

        Several faults for one file come one after the other. A fault strikes where the file's bytes come from.
        """
        assert kind in FAULTS, kind
        self._faults.append(_Fault(file, kind, times, after, retry_after, at))

    def heal(self) -> None:
        """Forget all faults."""
        self._faults.clear()

    def reset(self, folder: Path) -> None:
        """Serve another folder, and forget all that was."""
        self.folder, self.latency_s, self.bytes_per_s, self.finished = folder, 0.0, 0.0, 0
        self.commit, self.token, self.tells_checksums, self.lists = COMMIT, None, True, True
        self.weather = None
        self.struck.clear()
        self.asked.clear()
        self.heal()

    def requests(self, file: str | None = None, *, origin: str | None = None) -> list[Asked]:
        """Return the GETs so far, of a file or an origin if given."""
        return [
            asked
            for asked in self.asked
            if asked.method == "GET" and file in (None, asked.file) and origin in (None, asked.origin)
        ]

    def _next_fault(self, file: str) -> _Fault | None:
        for fault in self._faults:
            if fault.file == file:
                if fault.after > 0:
                    fault.after -= 1
                    return None
                fault.times -= 1
                if not fault.times:
                    self._faults.remove(fault)
                return fault
        return self._weather(file)

    def _weather(self, file: str) -> _Fault | None:
        if self.weather is None or self.weather.random() > 1 / 3:
            return None
        # Only the large files have a sum by which a wrong bit shows.
        kind = self.weather.choice([*WEATHER, *(("flip",) if file.endswith(LFS) else ())])
        self.struck[kind] += 1
        return _Fault(file, kind, 1, 0, None, self.weather.random())

    async def _hub(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        parts = [unquote(part) for part in scope["raw_path"].decode().split("?")[0].split("/")[1:]]
        fits = len(parts) >= 5 and parts[2] in ("resolve", "raw") and ".." not in parts
        file = "/".join(parts[4:]) if fits else scope["path"]
        asked = self._note("hub", request, f"raw/{file}" if fits and parts[2] == "raw" else file)
        if parts[:2] == ["api", "models"] and self.lists and request.method == "GET":
            await self._answer(asked, self._listing(file, request, parts), scope, receive, send)
            return
        if request.method == "OPTIONS":
            headers = _CORS | {"access-control-allow-headers": "authorization, range, x-anything"}
            await self._answer(asked, Response(status_code=204, headers=headers), scope, receive, send)
            return
        if self.token is not None and request.headers.get("authorization") != f"Bearer {self.token}":
            await self._answer(asked, Response("Access denied", 401, _CORS), scope, receive, send)
            return
        path = self.folder.joinpath(*parts[:2], file) if fits else None
        lfs = file.endswith(LFS)
        if path is None or not path.is_file() or parts[3] not in ("main", self.commit, "refs/pr/1"):
            fault = self._next_fault(file)
            response = self._missing() if fault is None else self._faulty(fault, None, request)
        elif lfs:
            stat = path.stat()
            digest = await asyncio.to_thread(_sha256, path, stat.st_mtime_ns, stat.st_size)
            pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {stat.st_size}\n"
            loops = any(fault.file == file and fault.kind == "redirect-loop" for fault in self._faults)
            where = str(request.url) if loops else f"{self.cdn_url}{quote('/'.join([*parts[:2], file]))}?{SIGNATURE}"
            headers = _CORS | {
                "location": where,
                "x-linked-size": str(stat.st_size),
                **({"x-linked-etag": f'"{digest}"'} if self.tells_checksums else {}),
                **self._named(),
            }
            response = Response("Found. Redirecting", status_code=302, headers=headers)
            if parts[2] == "raw":
                response = Response(pointer, headers=_CORS) if self.tells_checksums else self._missing()
        else:
            etag = hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
            response = self._serve(file, _File(path), request, self._named() | {"etag": f'"{etag}"'})
        await self._answer(asked, response, scope, receive, send)

    async def _cdn(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        parts = scope["path"].split("/")[1:]
        file = "/".join(parts[2:])
        asked = self._note("cdn", request, file)
        path = self.folder.joinpath(*parts)
        if request.method == "OPTIONS":
            response = Response("no preflight here", status_code=403)
        elif request.url.query != SIGNATURE or ".." in parts or not path.is_file():
            response = Response("the signature does not match", status_code=403, headers=_CORS)
        else:
            # A sum of another kind than the hub's, as on the real one.
            stat = path.stat()
            etag = hashlib.sha256(f"{path} {stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()
            response = self._serve(file, _File(path), request, {"etag": f'"{etag}"'})
        await self._answer(asked, response, scope, receive, send)

    def _listing(self, file: str, request: Request, parts: list[str]) -> Response:
        """api/models/OWNER/NAME/revision/REVISION: the commit, and the files."""
        fault = self._next_fault(file)
        if fault is not None:
            return self._faulty(fault, None, request)
        fits = len(parts) == 6 and parts[4] == "revision" and parts[5] in ("main", self.commit) and ".." not in parts
        folder = self.folder.joinpath(*parts[2:4])
        if not fits or not folder.is_dir():
            return self._missing()
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        listed = {"id": "/".join(parts[2:4]), "siblings": [{"rfilename": name} for name in names]}
        return JSONResponse(listed | ({} if self.commit is None else {"sha": self.commit}), headers=_CORS)

    def _note(self, origin: str, request: Request, file: str) -> Asked:
        headers = dict(request.headers)
        self.asked.append(Asked(origin, request.method, file, headers.get("range"), headers))
        return self.asked[-1]

    async def _answer(self, asked: Asked, response: Response, scope: Scope, receive: Receive, send: Send) -> None:
        late = self.weather.random() if self.weather is not None else 0.0
        if self.latency_s or late:
            await asyncio.sleep(self.latency_s + 0.3 * late)
        asked.status = response.status_code
        await response(scope, receive, send)
        self.finished += 1

    def _named(self) -> dict[str, str]:
        return {} if self.commit is None else {"x-repo-commit": self.commit}

    def _missing(self) -> Response:
        return Response("Entry not found", status_code=404, headers=_CORS | {"x-error-code": "EntryNotFound"})

    def _serve(self, file: str, data: _File, request: Request, headers: dict[str, str]) -> Response:
        fault = self._next_fault(file)
        if fault:
            return self._faulty(fault, data, request)
        return self._ranged(data, request, headers)

    def _ranged(self, data: _File, request: Request, headers: dict[str, str], *, slow: bool = False) -> Response:
        span = _span(request, data.size)
        headers = _CORS | {"accept-ranges": "bytes", "content-type": "application/octet-stream"} | headers
        if span is None:
            return self._body(data[:], 200, headers, slow=slow)
        if span[0] >= data.size:
            return Response(status_code=416, headers=headers | {"content-range": f"bytes */{data.size}"})
        headers["content-range"] = f"bytes {span[0]}-{span[1] - 1}/{data.size}"
        return self._body(data[span[0] : span[1]], 206, headers, slow=slow)

    def _body(
        self, data: bytes, status: int, headers: dict[str, str], *, announce: int | None = None, slow: bool = False
    ) -> Response:
        async def pieces() -> AsyncIterator[bytes]:
            size = 2048 if slow else PIECE
            for start in range(0, len(data), size):
                piece = data[start : start + size]
                if slow:
                    await asyncio.sleep(0.05)
                elif self.bytes_per_s:
                    await asyncio.sleep(len(piece) / self.bytes_per_s)
                yield piece

        headers = headers | {"content-length": str(len(data) if announce is None else announce)}
        if announce is not None and announce > len(data):
            return _Broken(data, status, headers)
        return StreamingResponse(pieces(), status, headers)

    def _faulty(self, fault: _Fault, data: _File | None, request: Request) -> Response:
        kind = fault.kind
        if kind.isdecimal():
            headers = _CORS | ({} if fault.retry_after is None else {"retry-after": fault.retry_after})
            return Response(f"fault {kind}", status_code=int(kind), headers=headers)
        if kind.startswith("html"):
            kind_of = "text/html" if kind == "html" else "application/octet-stream"
            return Response(LOGIN_PAGE, headers=_CORS, media_type=kind_of)
        if kind == "lfs-pointer":
            span = _span(request, len(LFS_POINTER)) or (0, len(LFS_POINTER))
            headers = _CORS | {"content-range": f"bytes {span[0]}-{span[1] - 1}/{len(LFS_POINTER)}"}
            return Response(LFS_POINTER[slice(*span)], 206 if "range" in request.headers else 200, headers)
        if data is None:
            return self._missing()
        start, stop = _span(request, data.size) or (0, data.size)
        part, plain = data[start:stop], _CORS | {"content-type": "application/octet-stream"}
        ranged = plain | {"content-range": f"bytes {start}-{stop - 1}/{data.size}"}
        status = 206 if "range" in request.headers else 200
        if kind == "ignore-range":
            return self._body(data[:], 200, plain)
        if kind == "short":
            return self._body(part[: len(part) // 2], status, ranged)
        if kind in ("cut", "cut-at"):
            return self._body(part[: int(len(part) * fault.at)], status, ranged, announce=len(part))
        if kind == "long":
            return self._body(part + b"more", status, ranged)
        if kind == "wrong-range":
            moved = {"content-range": f"bytes {start + 1}-{stop}/{data.size}"}
            return self._body(data[start + 1 : stop + 1], status, plain | moved)
        if kind == "no-range-header":
            return self._body(part, status, plain)
        if kind == "nonsense-range":
            return self._body(part, status, plain | {"content-range": "bytes some"})
        if kind == "changed-size":
            return self._body(part, status, plain | {"content-range": f"bytes {start}-{stop - 1}/{data.size + 1}"})
        if kind == "gzip" and "gzip" in request.headers.get("accept-encoding", ""):
            return self._body(gzip.compress(part), status, ranged | {"content-encoding": "gzip"})
        if kind == "changed-etag":
            return self._body(part, status, ranged | {"etag": '"another"'})
        if kind == "flip":
            flipped = bytearray(part)
            flipped[len(part) // 2] ^= 1
            return self._body(bytes(flipped), status, ranged)
        if kind == "no-cors":
            response = self._ranged(data, request, {})
            del response.headers["access-control-allow-origin"]
            return response
        assert kind in ("slow", "gzip"), kind
        return self._ranged(data, request, {}, slow=kind == "slow")


class _Broken(Response):
    """Announces more than it sends; the server closes the connection then."""

    def __init__(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        super().__init__(body, status, headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        # More is promised and does not come: that breaks the connection.
        await send({"type": "http.response.body", "body": self.body, "more_body": True})


def _span(request: Request, size: int) -> tuple[int, int] | None:
    """Read a `Range: bytes=a-b`, the only kind that is asked for here."""
    text = request.headers.get("range")
    if text is None:
        return None
    start, _, last = text.removeprefix("bytes=").partition("-")
    return int(start), min(int(last) + 1, size)


@contextmanager
def hub_double(folder: Path) -> Iterator[Hub]:
    """Serve the models in `folder` (`owner/name/files`) on two free ports of 127.0.0.1."""
    hub = Hub(folder)

    async def first(scope: Scope, receive: Receive, send: Send) -> None:
        await hub._hub(scope, receive, send)

    async def second(scope: Scope, receive: Receive, send: Send) -> None:
        await hub._cdn(scope, receive, send)

    with serving(first) as hub.url, serving(second) as hub.cdn_url:
        yield hub
