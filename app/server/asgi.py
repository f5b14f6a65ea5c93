"""The Starlette application: hands out the site's files with the right headers, and does nothing else."""

import os
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import FileResponse, Response
from starlette.routing import Route
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.server.site import Site

MAX_RANGES = 8
MAX_RANGE_HEADER = 256
"""Parts and bytes of a Range header that is honoured. The page asks for one part at a time."""

TABLE_S = 0.2
"""How old the site's table may be: a page asks for eighty files at once, and to look for all of them takes 8 ms."""

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

# Python's own table depends on the machine (Windows reads the registry), and browsers refuse a module of a wrong type.
MEDIA_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".ico": "image/x-icon",
    ".js": "text/javascript",
    ".json": "application/json",
    ".md": "text/markdown",
    ".mjs": "text/javascript",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".py": "text/x-python",
    ".txt": "text/plain",
    ".wasm": "application/wasm",
    ".webmanifest": "application/manifest+json",
    ".wgsl": "text/wgsl",
    ".whl": "application/zip",
    ".woff2": "font/woff2",
    ".zip": "application/zip",
}

WORKER = "worker.js"
# What may connect where: the page only to its own origin. Only the engine's worker fetches models. It takes them from
# the hub that the user chose in the page (Hugging Face, a mirror, a server on their own network), and from wherever
# that hub redirects to, so no list of hosts would do.
_CONNECT = {"page": "'self'", WORKER: "'self' https: http:"}
_DIRECTIVES = [
    "default-src 'none'",
    "script-src 'self' 'wasm-unsafe-eval'",
    "worker-src 'self'",
    "style-src 'self'",
    "img-src 'self' data: blob:",
    "font-src 'self'",
    "manifest-src 'self'",
    "base-uri 'none'",
    "form-action 'none'",
]


def policy(path: str = "") -> str:
    """Return the Content-Security-Policy of a file of the site; without a path, that of the page."""
    connect = _CONNECT.get(path, _CONNECT["page"])
    return "; ".join([*_DIRECTIVES, f"connect-src {connect}"])


# No Cross-Origin-Embedder-Policy: it would forbid answers of hubs that do not opt in, and nothing needs shared memory.
HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), midi=(), payment=(), usb=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def make_app(site: Site, *, allowed_hosts: Sequence[str] = LOOPBACK) -> Starlette:
    """Return the application. `allowed_hosts` are the Host headers it answers to; "*" is any."""
    return Starlette(
        routes=[Route("/{path:path}", SiteFiles(site), methods=["GET"])],
        middleware=[
            Middleware(SecurityHeaders),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts), www_redirect=False),
        ],
    )


def media_type(path: str) -> str:
    """Return the media type that a file is served with, by its name."""
    return MEDIA_TYPES.get(PurePosixPath(path).suffix, "application/octet-stream")


def cache_control(path: str) -> str:
    """Return how long a browser may keep a file without asking again."""
    # A Pyodide wheel's name holds its version and its content is pinned; everything else may change under its name.
    if path.startswith("pyodide/") and path.endswith(".whl"):
        return "public, max-age=31536000, immutable"
    return "no-cache"


class SiteFiles(StaticFiles):
    """Starlette's static files (conditional requests, ranges, HEAD), looked up in the site's table instead of a folder.

    Only what is in the table can be had, so no path leads anywhere else.
    """

    def __init__(self, site: Site) -> None:
        """Serve `site`."""
        super().__init__(directory=None)
        self._site = site
        self._table: dict[str, Path] = {}
        self._until = 0.0

    def get_path(self, scope: Scope) -> str:
        """Return the path as the table spells it: nothing is normalised."""
        path: str = scope["path_params"]["path"]
        return path or "index.html"

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Return the file for a URL path and its stat, or ("", None)."""
        try:
            # Without a lock: threads that come at once look twice, and find the same.
            if time.monotonic() >= self._until:
                self._table = self._site.files()
                self._until = time.monotonic() + TABLE_S
            file = self._table.get(path)
            return ("", None) if file is None else (str(file), file.stat())
        except FileNotFoundError:
            return "", None

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Answer with the file's own media type and caching rule. A range of too many parts gets the whole file."""
        scope["headers"] = [
            (name, value)
            for name, value in scope["headers"]
            if name != b"range" or (len(value) <= MAX_RANGE_HEADER and value.count(b",") < MAX_RANGES)
        ]
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = cache_control(path)
        if isinstance(response, FileResponse) and not isinstance(response, NotModifiedResponse):
            kind = media_type(path)
            response.media_type = kind
            response.headers["Content-Type"] = f"{kind}; charset=utf-8" if kind.startswith("text/") else kind
        return response


class SecurityHeaders:
    """Adds the same headers to every response, refusals included. The worker's script needs its own policy, too."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        own = policy(scope.get("path", "").lstrip("/"))

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                # A header can say one thing more than the page's own <meta>: who may frame it.
                headers["Content-Security-Policy"] = f"{own}; frame-ancestors 'none'"
            await send(message)

        await self._app(scope, receive, send_with_headers)
