"""The site with a script in front of its worker's: how a test reaches what only the worker has."""

from collections.abc import Mapping

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.server.asgi import make_app
from app.server.site import Site


def with_worker_prefix(site: Site, script: str, *, edits: Mapping[str, str] | None = None) -> ASGIApp:
    """Return the application that serves `site`, with `script` in front of worker.js and `edits` made in it."""
    application = make_app(site)

    async def prefixed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/worker.js":
            content = site.files()["worker.js"].read_text()
            for old, new in (edits or {}).items():
                assert old in content
                content = content.replace(old, new)
            await Response(script + content, media_type="text/javascript")(scope, receive, send)
        else:
            await application(scope, receive, send)

    return prefixed
