import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

import app
from app.__main__ import COMMANDS, allowed_hosts, is_loopback, listen, main, parse, url
from app.server.errors import SetupError

MODULE = [sys.executable, "-m", "app"]


@contextmanager
def started(*arguments: str, env: dict[str, str] | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the command; yield the process and the address that it prints."""
    process = subprocess.Popen(
        [*MODULE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(env or {})},
    )
    late = threading.Timer(120, process.kill)
    late.start()
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, f"no address in {line!r}: {process.stderr.read() if process.poll() is not None else ''}"
        yield process, found[0]
    finally:
        process.terminate()
        process.communicate()
        late.cancel()


@pytest.mark.usefixtures("runtime_folder")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_stopping_in_the_middle_of_a_transfer_is_clean(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    with started("--port", "0", env={"TMPDIR": str(tmp_path)}) as (process, address):
        port = int(address.rsplit(":", 1)[1].strip("/"))
        assert len(list(tmp_path.iterdir())) == 1
        with socket.create_connection(("127.0.0.1", port)) as slow:
            slow.sendall(b"GET /models/story/model.safetensors HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert slow.recv(12) == b"HTTP/1.1 200"
            process.send_signal(sent)
            out, err = process.communicate(timeout=15)
    assert (out, err, process.returncode) == ("", "", code)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("runtime_folder")
def test_it_prints_the_address_serves_the_page_and_ctrl_c_is_clean() -> None:
    with started("--port", "0") as (process, address):
        assert address.startswith("http://127.0.0.1:")
        page = httpx.get(address, timeout=10)
        assert page.status_code == 200
        assert "<title>" in page.text
        assert httpx.get(f"{address}site.json", timeout=10).json()["version"] == app.__version__
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=15)
    assert process.returncode == 0, err
    assert "Traceback" not in out + err


@pytest.fixture
def heard_ctrl_c() -> Iterator[None]:
    """Children hear SIGINT: a shell that runs the tests in the background has it ignored, and that is inherited."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard_ctrl_c")
def test_ctrl_c_while_the_runtime_is_fetched_is_clean(tmp_path: Path) -> None:
    # pip waits here for an index that accepts the connection and says nothing.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        environment = {
            **os.environ,
            "TABGPT_CACHE": str(tmp_path),
            "https_proxy": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_INDEX_URL": index,
            "PIP_FIND_LINKS": "",
        }
        with subprocess.Popen(
            [*MODULE, "runtime"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as process:
            assert process.stderr is not None
            assert "Fetching Pyodide" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            try:
                out, err = process.communicate(timeout=30)
            finally:
                process.kill()
    assert process.returncode == 130
    assert "Traceback" not in out + err
    assert "Stopped." in err
    assert list(tmp_path.rglob("part-*")) == []


def test_a_taken_port_names_the_next_step(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        started_at = time.monotonic()
        assert main(["--port", str(port)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"Port {port} of 127.0.0.1 is taken" in err
    assert f"python -m app --port {port + 1 if port < 65535 else 8000}" in err
    assert err.count("\n") == 1
    assert time.monotonic() - started_at < 5


def test_an_address_of_another_machine_is_a_clear_error() -> None:
    with pytest.raises(SetupError, match=r"'192\.0\.2\.1' is not an address of this machine"):
        listen("192.0.2.1", 0)
    with pytest.raises(SetupError, match=r"Leave out --host"):
        listen("no such host", 0)


@pytest.mark.usefixtures("runtime_folder")
def test_build_writes_the_site_and_refuses_a_folder_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", str(tmp_path / "dist")]) == 0
    assert (tmp_path / "dist" / "index.html").is_file()
    assert f"The site is in {tmp_path / 'dist'}" in capsys.readouterr().out
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    assert main(["build", str(tmp_path / "mine")]) == 1
    assert "is not empty and not an earlier build" in capsys.readouterr().err


def test_runtime_says_where_it_is(runtime_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runtime"]) == 0
    assert str(runtime_folder) in capsys.readouterr().out


@pytest.mark.usefixtures("runtime_folder")
def test_open_opens_the_address_that_is_served(tmp_path: Path) -> None:
    # A browser of our own making: it notes what it was asked to open.
    note = tmp_path / "opened"
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$1" > "{note}"\n')
    browser.chmod(0o755)
    with started("--port", "0", "--open", env={"BROWSER": str(browser)}) as (_, address):
        deadline = time.monotonic() + 15
        while not note.exists() or not note.read_text():
            assert time.monotonic() < deadline, "no browser was opened"
            time.sleep(0.02)
        assert note.read_text() == address
        assert httpx.get(address, timeout=10).status_code == 200


def test_serve_is_the_default_command() -> None:
    assert COMMANDS[0] == "serve"
    assert vars(parse([])) == vars(parse(["serve"]))
    options = {"command": "serve", "host": "127.0.0.1", "port": 1, "open": True, "offline_chat": False}
    assert vars(parse(["--port", "1", "--open"])) == options
    assert parse(["--offline-chat"]).offline_chat
    assert parse(["build", "x"]).folder == Path("x")
    assert parse(["build", "x", "--offline-chat"]).offline_chat


@pytest.mark.parametrize("arguments", [["--port", "65536"], ["--port", "-1"], ["--port", "x"], ["build"], ["nonsense"]])
def test_a_wrong_command_line_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments)
    assert caught.value.code == 2
    assert "usage: python -m app" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"tabgpt {app.__version__}\n"


@pytest.mark.parametrize(
    ("host", "address", "hosts"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000/", ["localhost", "127.0.0.1", "[::1]", "127.0.0.1"]),
        ("localhost", "http://localhost:8000/", ["localhost", "127.0.0.1", "[::1]", "localhost"]),
        ("127.0.0.2", "http://127.0.0.2:8000/", ["localhost", "127.0.0.1", "[::1]", "127.0.0.2"]),
        ("::1", "http://[::1]:8000/", ["localhost", "127.0.0.1", "[::1]", "[::1]"]),
        ("0.0.0.0", "http://127.0.0.1:8000/", ["*"]),
        ("::", "http://[::1]:8000/", ["*"]),
        ("192.168.1.5", "http://192.168.1.5:8000/", ["*"]),
    ],
)
def test_what_a_host_means(host: str, address: str, hosts: list[str]) -> None:
    assert url(host, 8000) == address
    assert allowed_hosts(host) == hosts
    assert is_loopback(host) == (hosts != ["*"])


@pytest.mark.usefixtures("runtime_folder")
def test_a_host_on_the_network_is_warned_about() -> None:
    with started("--port", "0", "--host", "0.0.0.0") as (process, address):
        assert httpx.get(address, timeout=10, headers={"Host": "192.168.1.5:8000"}).status_code == 200
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=15)
    assert "0.0.0.0 can be reached from the network" in err
