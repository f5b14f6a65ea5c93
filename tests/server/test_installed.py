"""A wheel of the project, installed outside the checkout, serves what the checkout serves."""

import os
import re
import subprocess
import sys
import sysconfig
import threading
import venv
from pathlib import Path

import httpx
import pytest

from app.server.site import Site

ROOT = Path(__file__).parents[2]


def run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a clean environment that has the wheel, and of the rest only tabgpt's dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # The build backend is among the test dependencies, so that this needs no network.
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT), cwd=folder)
    (wheel,) = folder.glob("tabgpt-*.whl")
    venv.create(folder / "env", with_pip=False)
    scripts = "Scripts" if os.name == "nt" else "bin"
    python = folder / "env" / scripts / ("python.exe" if os.name == "nt" else "python")
    run(*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel), cwd=folder)
    # A path in a .pth file comes after the environment's own packages, and .pth files there are not followed: this
    # checkout, which is installed there in editable mode, stays out of sight.
    purelib = run(str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    (Path(purelib) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_it_is_the_wheel_that_runs(installed: Path, tmp_path: Path) -> None:
    where = run(
        str(installed), "-c", "import app, weights_tool; print(app.__file__, weights_tool.__file__)", cwd=tmp_path
    )
    assert str(ROOT) not in where
    assert where.count(str(installed.parents[1])) == 2


def test_it_serves_the_same_bytes_as_the_checkout(installed: Path, tmp_path: Path, site: Site) -> None:
    process = subprocess.Popen(
        [str(installed), "-m", "app", "--port", "0"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    late = threading.Timer(120, process.kill)
    late.start()
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        with httpx.Client(base_url=found[0], timeout=30) as client:
            for path, file in site.files().items():
                answer = client.get(f"/{path}")
                assert answer.status_code == 200, path
                assert answer.content == file.read_bytes(), path
            assert client.get("/").content == site.files()["index.html"].read_bytes()
    finally:
        process.terminate()
        process.communicate()
        late.cancel()


def test_its_command_is_installed(installed: Path, tmp_path: Path) -> None:
    command = installed.with_name("tabgpt.exe" if os.name == "nt" else "tabgpt")
    assert run(str(command), "--version", cwd=tmp_path).startswith("tabgpt ")


def test_it_builds_the_same_site_as_the_checkout(installed: Path, tmp_path: Path, site: Site) -> None:
    run(str(installed), "-m", "app", "build", "dist", cwd=tmp_path)
    for path, file in site.files().items():
        assert (tmp_path / "dist" / path).read_bytes() == file.read_bytes(), path
