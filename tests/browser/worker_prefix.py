"""The site with a script in front of its worker's: how a test reaches what only the worker has."""

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from app.server.asgi import make_app
from app.server.site import Site


def with_worker_prefix(site: Site, script: str) -> ASGIApp:
    """Return the application that serves `site`, with `script` at the beginning of worker.js."""
    application = make_app(site)

    async def prefixed(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/worker.js":
            content = script.encode() + site.files()["worker.js"].read_bytes()
            await Response(content, media_type="text/javascript")(scope, receive, send)
        else:
            await application(scope, receive, send)

    return prefixed
