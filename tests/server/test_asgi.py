import contextlib
import os
import re
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from starlette.types import Message

from app.server.asgi import make_app, media_type, policy
from app.server.runtime import FILES
from app.server.site import Site
from tests.serving import serving

BODY = bytes(range(256)) * 1000
CSP = "content-security-policy"
FILE = "/models/story/model.safetensors"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Site]:
    for path in ("app/__init__.py", "app/engine/__init__.py", "wgsl/x.wgsl", "static/lm.js", "secret.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"// {path}")
    (tmp_path / "static" / "index.html").write_text("<!doctype html><title>page</title>")
    (tmp_path / "static" / "models" / "story").mkdir(parents=True)
    (tmp_path / "static" / "models" / "story" / "model.safetensors").write_bytes(BODY)
    (tmp_path / "runtime").mkdir()
    for file in FILES:
        (tmp_path / "runtime" / file.name).write_bytes(file.name.encode())
    made = Site(tmp_path / "runtime", package=tmp_path / "app", bytecode=None)
    yield made
    made.close()


@pytest.fixture
async def client(small: Site) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(make_app(small))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as made:
        yield made


async def test_the_root_is_the_page(client: httpx.AsyncClient) -> None:
    answer = await client.get("/")
    assert answer.status_code == 200
    assert answer.text == "<!doctype html><title>page</title>"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("lm.js", "text/javascript"),
        ("pyodide/pyodide.mjs", "text/javascript"),
        ("pyodide/pyodide.asm.wasm", "application/wasm"),
        ("pyodide/python_stdlib.zip", "application/zip"),
        ("pyodide/pyodide-lock.json", "application/json"),
        ("wgsl/x.wgsl", "text/wgsl"),
        ("models/story/model.safetensors", "application/octet-stream"),
    ],
)
async def test_media_types_are_the_same_on_every_machine(client: httpx.AsyncClient, path: str, kind: str) -> None:
    answer = await client.get(f"/{path}")
    assert answer.status_code == 200
    assert answer.headers["content-type"].split(";")[0] == kind == media_type(path)


async def test_every_file_of_the_site_is_served_byte_for_byte(client: httpx.AsyncClient, small: Site) -> None:
    for path, file in small.files().items():
        answer = await client.get(f"/{path}")
        assert (answer.status_code, answer.content) == (200, file.read_bytes()), path
        assert int(answer.headers["content-length"]) == len(answer.content)


@pytest.mark.parametrize(
    ("asked", "start", "stop"),
    [("bytes=0-0", 0, 1), ("bytes=100-299", 100, 300), ("bytes=255999-", 255_999, 256_000), ("bytes=-10", -10, None)],
)
async def test_a_range(client: httpx.AsyncClient, asked: str, start: int, stop: int | None) -> None:
    answer = await client.get(FILE, headers={"Range": asked})
    assert answer.status_code == 206
    assert answer.content == BODY[start:stop]
    first = start % len(BODY)
    last = first + len(answer.content) - 1
    assert answer.headers["content-range"] == f"bytes {first}-{last}/{len(BODY)}"
    assert answer.headers["accept-ranges"] == "bytes"


async def test_a_range_past_the_end_is_416(client: httpx.AsyncClient) -> None:
    answer = await client.get(FILE, headers={"Range": "bytes=256000-256001"})
    assert answer.status_code == 416
    assert answer.headers["content-range"] == "bytes */256000"


async def test_if_range_gives_the_whole_file_once_it_has_changed(client: httpx.AsyncClient, tmp_path: Path) -> None:
    etag = (await client.head(FILE)).headers["etag"]
    headers = {"Range": "bytes=0-9", "If-Range": etag}
    assert (await client.get(FILE, headers=headers)).status_code == 206
    (tmp_path / "static" / FILE[1:]).write_bytes(BODY[:-1])
    changed = await client.get(FILE, headers=headers)
    assert (changed.status_code, changed.content) == (200, BODY[:-1])


async def test_an_unchanged_file_is_304_and_a_changed_one_is_sent(client: httpx.AsyncClient, tmp_path: Path) -> None:
    etag = (await client.get("/lm.js")).headers["etag"]
    same = await client.get("/lm.js", headers={"If-None-Match": f'"other", {etag}'})
    assert (same.status_code, same.content) == (304, b"")
    assert same.headers["cache-control"] == "no-cache"
    os.utime(tmp_path / "static" / "lm.js", (1e9, 1e9))
    assert (await client.get("/lm.js", headers={"If-None-Match": etag})).status_code == 200


async def test_head_has_the_headers_and_no_body(client: httpx.AsyncClient) -> None:
    answer = await client.head(FILE)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == "256000"
    assert answer.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_only_reading_is_allowed(client: httpx.AsyncClient, method: str) -> None:
    answer = await client.request(method, "/lm.js")
    assert answer.status_code == 405
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD"}


@pytest.mark.parametrize(
    "path",
    [
        "/secret.txt",
        "/../secret.txt",
        "/%2e%2e/secret.txt",
        "/..%2fsecret.txt",
        "/models/../../secret.txt",
        "/models/..%2f..%2fsecret.txt",
        "/..%5csecret.txt",
        "//etc/passwd",
        "/%2fetc%2fpasswd",
        "/lm.js%00",
        "/lm.js/",
        "/models",
        "/models/",
        "/models/story/",
        "/app/__init__.py",
        "/index",
    ],
)
async def test_no_path_leads_out_of_the_tree(small: Site, path: str) -> None:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    # Straight to the application: a client would tidy the path up.
    raw = path.encode()
    decoded = httpx.URL(f"http://x{path}").path if "%" in path else path
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": decoded,
        "raw_path": raw,
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost:8000")],
        "server": ("localhost", 8000),
        "client": ("127.0.0.1", 1),
    }
    await make_app(small)(scope, receive, send)
    assert sent[0]["status"] == 404
    assert b"secret" not in b"".join(message.get("body", b"") for message in sent)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:8000", 200),
        ("evil.example", 400),
        ("127.0.0.1.evil.example:8000", 400),
        ("192.168.1.5:8000", 400),
        ("", 400),
    ],
)
async def test_another_name_that_points_here_is_refused(client: httpx.AsyncClient, host: str, status: int) -> None:
    assert (await client.get("/", headers={"Host": host})).status_code == status


async def test_any_host_can_be_allowed(small: Site) -> None:
    transport = httpx.ASGITransport(make_app(small, allowed_hosts=["*"]))
    async with httpx.AsyncClient(transport=transport, base_url="http://192.168.1.5:8000") as client:
        assert (await client.get("/")).status_code == 200


async def test_every_answer_has_the_security_headers(client: httpx.AsyncClient) -> None:
    answers = [
        await client.get("/"),
        await client.get("/nothing"),
        await client.post("/"),
        await client.get("/", headers={"Host": "evil.example"}),
        await client.get(FILE, headers={"Range": "bytes=999999-"}),
        await client.get("/", headers={"If-None-Match": "*"}),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 405, 400, 416, 304]
    for answer in answers:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert "camera=()" in answer.headers["permissions-policy"]
        given = answer.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'"} <= set(given)


async def test_only_the_worker_may_fetch_from_elsewhere(client: httpx.AsyncClient) -> None:
    allowed = {}
    for path in ("worker.js", "lm.js", "bench.html", ""):
        given = dict(part.split(" ", 1) for part in (await client.get(f"/{path}")).headers[CSP].split("; "))
        allowed[path] = given["connect-src"]
        # Nothing may run that the site does not serve, wherever data comes from.
        assert given["script-src"] == "'self' 'wasm-unsafe-eval'"
    assert allowed == {"worker.js": "'self' https: http:", "lm.js": "'self'", "bench.html": "'self'", "": "'self'"}


def test_the_pages_carry_the_same_policy_for_hosts_that_send_no_headers() -> None:
    pages = list((Path(__file__).parents[2] / "static").glob("*.html"))
    assert len(pages) >= 2
    for page in pages:
        found = re.search(r'http-equiv="Content-Security-Policy"\s+content="([^"]*)"', page.read_text())
        assert found, page.name
        assert found[1] == policy(), page.name


@pytest.mark.parametrize("asked", ["bytes=" + ",".join(f"{n}-{n}" for n in range(9)), "bytes=0-" + "9" * 300])
async def test_a_range_of_too_many_parts_gets_the_whole_file(client: httpx.AsyncClient, asked: str) -> None:
    answer = await client.get(FILE, headers={"Range": asked})
    assert (answer.status_code, answer.content) == (200, BODY)


@pytest.mark.parametrize("asked", ["bytes=5-2", "bytes=a-b", "lines=1-2", "bytes=", "bytes=--5"])
async def test_an_absurd_range_is_refused(client: httpx.AsyncClient, asked: str) -> None:
    assert (await client.get(FILE, headers={"Range": asked})).status_code in (400, 416)


async def test_a_few_ranges_at_once(client: httpx.AsyncClient) -> None:
    answer = await client.get(FILE, headers={"Range": "bytes=0-1,10-11"})
    assert answer.status_code == 206
    assert answer.headers["content-type"].startswith("multipart/byteranges")
    assert BODY[10:12] in answer.content


async def test_a_link_out_of_the_tree_is_not_served(client: httpx.AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "static" / "link.txt").symlink_to(tmp_path / "secret.txt")
    (tmp_path / "static" / "alias.js").symlink_to(tmp_path / "static" / "lm.js")
    assert (await client.get("/link.txt")).status_code == 404
    assert (await client.get("/alias.js")).status_code == 200


async def test_only_pinned_wheels_are_kept_without_asking(client: httpx.AsyncClient) -> None:
    kept = {
        path
        for path in [*(f"pyodide/{file.name}" for file in FILES), "lm.js", "site.json", "pyodide/pyodide-lock.json"]
        if "immutable" in (await client.get(f"/{path}")).headers["cache-control"]
    }
    assert kept == {f"pyodide/{file.name}" for file in FILES if file.name.endswith(".whl")}


async def test_a_file_that_vanishes_is_404(client: httpx.AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "runtime" / "pyodide.mjs").unlink()
    assert (await client.get("/pyodide/pyodide.mjs")).status_code == 404


def test_slow_clients_keep_nobody_waiting(small: Site, tmp_path: Path) -> None:
    large = tmp_path / "static" / "models" / "story" / "large.safetensors"
    with large.open("wb") as file:
        file.truncate(64_000_000)  # more than fits in the buffers between server and client
    with serving(make_app(small)) as address, contextlib.ExitStack() as stack:
        port = httpx.URL(address).port
        started = b"GET /models/story/large.safetensors HTTP/1.1\r\nHost: localhost\r\n"
        # Half of them never finish their request, the others never read their answer.
        for end in (b"", b"\r\n") * 50:
            slow = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            slow.sendall(started + end)
        whole = httpx.get(f"{address}models/story/large.safetensors", timeout=30)
        assert (whole.status_code, len(whole.content)) == (200, 64_000_000)
