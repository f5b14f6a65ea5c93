import hashlib
import importlib.util
import io
import json
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from app.server import runtime
from app.server.errors import SetupError
from app.server.runtime import CDN, FILES, LOCK_FILE, WHEEL_FOLDER, RuntimeFile, cache_folder, ensure_runtime
from tests.serving import serving

CONTENT = {
    "pyodide.mjs": b"export const loadPyodide = 1;\n",
    "pyodide.asm.wasm": bytes(range(256)) * 1000,
    "numpy-2.4.3.whl": b"PK" + b"n" * 70_000,
}
PINNED = tuple(
    RuntimeFile(name=name, size=len(body), sha256=hashlib.sha256(body).hexdigest()) for name, body in CONTENT.items()
)
NOWHERE = "http://127.0.0.1:9/"  # the discard port: refused at once


class Cdn:
    """A CDN that can be told to fail, and that counts."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, list[Response]] = {}

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/full/{name}", self.answer)])

    async def answer(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        self.asked.append(name)
        if self.answers.get(name):
            return self.answers[name].pop(0)
        return Response(CONTENT[name]) if name in CONTENT else PlainTextResponse("no", 404)


class CutOff(Response):
    """Announces the whole body, sends half of it and breaks the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": bytes(self.body)[: len(self.body) // 2], "more_body": False})


@pytest.fixture
def cdn() -> Cdn:
    return Cdn()


@pytest.fixture
def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pip that has no index to ask."""
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


@pytest.fixture
def pip_with(tmp_path: Path, no_pip: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, bytes]], None]:
    """The real pip, whose configured source holds a wheel of the right name with the given files of the runtime."""

    def make(content: dict[str, bytes]) -> None:
        links = tmp_path / "links"
        links.mkdir()
        info = "open_webui-0.12.4.dist-info"
        metadata = "Metadata-Version: 2.1\nName: open-webui\nVersion: 0.12.4\nRequires-Python: >=3.11,<3.13\n"
        with zipfile.ZipFile(links / "open_webui-0.12.4-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
            wheel.writestr(f"{info}/METADATA", metadata)
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
            wheel.writestr("open_webui/main.py", "raise SystemExit('nobody should run this')")
            for name, body in content.items():
                wheel.writestr(WHEEL_FOLDER + name, body)
        monkeypatch.setenv("PIP_FIND_LINKS", str(links))

    return make


def get(folder: Path, cdn: str, files: tuple[RuntimeFile, ...] = PINNED) -> str:
    """Run ensure_runtime and return what it printed."""
    stream = io.StringIO()
    assert ensure_runtime(folder, files=files, cdn=cdn, stream=stream) == folder
    return stream.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*")}


def test_comes_from_the_cdn_and_nothing_else_is_left(tmp_path: Path, cdn: Cdn, no_pip: None) -> None:
    with serving(cdn.app()) as url:
        said = get(tmp_path / "cache", f"{url}full/")
    assert contents(tmp_path / "cache") == CONTENT
    assert sorted(cdn.asked) == sorted(CONTENT)
    assert "of 0.3 MB (100%)" in said
    assert "PyPI" not in said


def test_a_second_start_opens_no_connection(tmp_path: Path, cdn: Cdn, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(cdn.app()) as url:
        get(tmp_path, f"{url}full/")

    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket, "socket", forbidden)
    monkeypatch.setattr(socket, "getaddrinfo", forbidden)
    monkeypatch.setattr(subprocess, "Popen", forbidden)
    assert get(tmp_path, CDN) == ""


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-1]), id="cut off"),
        pytest.param(lambda path: path.write_bytes(b"\xff" + path.read_bytes()[1:]), id="one byte changed"),
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.unlink(), id="gone"),
    ],
)
def test_a_damaged_file_is_fetched_again_and_only_that(
    tmp_path: Path, cdn: Cdn, damage: Callable[[Path], object]
) -> None:
    with serving(cdn.app()) as url:
        get(tmp_path, f"{url}full/")
        cdn.asked.clear()
        damage(tmp_path / "pyodide.asm.wasm")
        get(tmp_path, f"{url}full/")
    assert cdn.asked == ["pyodide.asm.wasm"]
    assert contents(tmp_path) == CONTENT


def test_a_download_that_broke_off_is_tried_again(tmp_path: Path, cdn: Cdn, no_pip: None) -> None:
    name = "pyodide.asm.wasm"
    cdn.answers[name] = [CutOff(CONTENT[name]), CutOff(CONTENT[name])]
    with serving(cdn.app()) as url:
        said = get(tmp_path, f"{url}full/")
    assert cdn.asked.count(name) == 3
    assert contents(tmp_path) == CONTENT
    assert "(100%)" in said


def test_wrong_bytes_from_the_cdn_come_from_the_wheel_instead(
    tmp_path: Path, cdn: Cdn, pip_with: Callable[[dict[str, bytes]], None]
) -> None:
    name = "pyodide.mjs"
    pip_with({name: CONTENT[name]})
    cdn.answers[name] = [Response(b"<html>Please log in to this network</html>"[: len(CONTENT[name])])]
    with serving(cdn.app()) as url:
        said = get(tmp_path / "cache", f"{url}full/")
    assert contents(tmp_path / "cache") == CONTENT
    assert cdn.asked.count(name) == 1
    assert f"{name} has another sha256 than the pinned one" in said


def test_an_endless_answer_is_not_read_to_its_end(
    tmp_path: Path, cdn: Cdn, pip_with: Callable[[dict[str, bytes]], None]
) -> None:
    pip_with(CONTENT)
    cdn.answers["pyodide.mjs"] = [Response(b"x" * 5_000_000)]
    with serving(cdn.app()) as url:
        said = get(tmp_path / "cache", f"{url}full/")
    assert "pyodide.mjs is longer than the 30 bytes it should have" in said
    assert contents(tmp_path / "cache") == CONTENT


def test_a_cdn_without_the_file_is_not_the_end(
    tmp_path: Path, cdn: Cdn, pip_with: Callable[[dict[str, bytes]], None]
) -> None:
    pip_with(CONTENT)
    cdn.answers["numpy-2.4.3.whl"] = [PlainTextResponse("gone", 404)]
    with serving(cdn.app()) as url:
        said = get(tmp_path / "cache", f"{url}full/")
    assert "numpy-2.4.3.whl was answered with HTTP 404" in said
    assert contents(tmp_path / "cache") == CONTENT


def test_an_unreachable_cdn_is_asked_once_and_the_wheel_gives_all(
    tmp_path: Path, pip_with: Callable[[dict[str, bytes]], None]
) -> None:
    pip_with({**CONTENT, "scipy.whl": b"not needed"})
    said = get(tmp_path / "cache", NOWHERE)
    assert contents(tmp_path / "cache") == CONTENT
    assert said.count("could not be reached") == 1
    assert "open-webui==0.12.4 with pip: 106.4 MB of 106.4 MB (100%)" in said


def test_a_silent_cdn_is_given_up(
    tmp_path: Path, pip_with: Callable[[dict[str, bytes]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pip_with(CONTENT)
    monkeypatch.setattr(runtime, "CDN_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = get(tmp_path / "cache", f"http://127.0.0.1:{silent.getsockname()[1]}/")
    assert "could not be reached: timed out" in said
    assert contents(tmp_path / "cache") == CONTENT


def test_without_any_source_it_says_what_was_tried_and_what_to_do(tmp_path: Path, no_pip: None) -> None:
    with pytest.raises(SetupError) as caught:
        get(tmp_path / "cache", NOWHERE)
    message = str(caught.value)
    assert f"{NOWHERE} could not be reached" in message
    assert "pip could not download open-webui==0.12.4" in message
    assert "No matching distribution" in message
    assert "configure an index or a proxy for pip" in message
    assert contents(tmp_path / "cache") == {}


def test_a_wheel_with_other_bytes_is_refused(tmp_path: Path, pip_with: Callable[[dict[str, bytes]], None]) -> None:
    pip_with({**CONTENT, "pyodide.asm.wasm": bytes(256_000)})
    with pytest.raises(SetupError, match=r"does not hold it as expected: pyodide\.asm\.wasm has another sha256"):
        get(tmp_path / "cache", NOWHERE)
    assert "pyodide.asm.wasm" not in contents(tmp_path / "cache")


def test_a_wheel_without_the_file_is_refused(tmp_path: Path, pip_with: Callable[[dict[str, bytes]], None]) -> None:
    pip_with({"pyodide.mjs": CONTENT["pyodide.mjs"]})
    with pytest.raises(SetupError, match=r"does not hold it as expected.*pyodide\.asm\.wasm"):
        get(tmp_path / "cache", NOWHERE)


def test_a_python_without_pip_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SetupError, match=r"this Python has no pip.*-m ensurepip.*uv pip install pip"):
        get(tmp_path, NOWHERE)


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path, cdn: Cdn) -> None:
    (tmp_path / "file").write_bytes(b"")
    with serving(cdn.app()) as url, pytest.raises(SetupError, match="set TABGPT_CACHE to another folder"):
        get(tmp_path / "file" / "cache", f"{url}full/")


def test_what_a_killed_download_left_is_removed(tmp_path: Path, cdn: Cdn, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "part-old").mkdir()
    (tmp_path / "part-old" / "pyodide.mjs").write_bytes(b"half")
    monkeypatch.setattr(runtime, "STALE_S", -1.0)
    with serving(cdn.app()) as url:
        get(tmp_path, f"{url}full/")
    assert contents(tmp_path) == CONTENT


FETCH = """
import sys
from pathlib import Path
from app.server.runtime import RuntimeFile, ensure_runtime
files = [RuntimeFile(name=n, size=int(s), sha256=h) for n, s, h in (a.split(",") for a in sys.argv[3:])]
ensure_runtime(Path(sys.argv[1]), files=files, cdn=sys.argv[2])
"""


def test_several_processes_at_once_leave_one_good_cache(tmp_path: Path, cdn: Cdn) -> None:
    arguments = [f"{file.name},{file.size},{file.sha256}" for file in PINNED]
    with serving(cdn.app()) as url:
        command = [sys.executable, "-c", FETCH, str(tmp_path / "cache"), f"{url}full/", *arguments]
        running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(3)]
        outcomes = [(process.communicate(timeout=60)[1], process.returncode) for process in running]
    assert [code for _, code in outcomes] == [0, 0, 0], outcomes
    assert contents(tmp_path / "cache") == CONTENT


def test_the_lock_is_closed_and_every_file_is_pinned() -> None:
    packages = json.loads(LOCK_FILE.read_bytes())["packages"]
    assert {"numpy", "tiktoken", "micropip"} <= packages.keys()
    assert all(needed in packages for entry in packages.values() for needed in entry["depends"])
    pinned = {file.name: file for file in FILES}
    assert {name for name in pinned if name.endswith(".whl")} == {entry["file_name"] for entry in packages.values()}
    assert all(len(file.sha256) == 64 and file.size > 0 for file in FILES)


def test_the_cache_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TABGPT_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path / f"pyodide-{runtime.VERSION}"
    monkeypatch.setenv("TABGPT_CACHE", "")
    assert "tabgpt" in cache_folder().parts
