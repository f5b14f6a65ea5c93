import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import app
from app.server.errors import SetupError
from app.server.runtime import FILES
from app.server.site import PACKAGE, Site, assets, tree

CHAT_WHEELS = [f"wheels/{name}-{version(name)}-py3-none-any.whl" for name in ("jinja2", "markupsafe")]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A small checkout: its `app` package, with static/ and wgsl/ beside it."""
    for path, content in {
        "app/__init__.py": "A = 1\n",
        "app/__main__.py": "raise SystemExit\n",
        "app/server/asgi.py": "S = 1\n",
        "app/engine/__init__.py": "",
        "app/engine/gpu/plan.py": "P = 1\n",
        "app/engine/gpu/__pycache__/plan.cpython-314.pyc": "junk",
        "static/index.html": "<title>page</title>",
        "static/models/story/config.json": "{}",
        "static/.DS_Store": "junk",
        "wgsl/matvec.wgsl": "// matvec",
        "wgsl/lib/tanh.wgsl": "// tanh",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    return tmp_path / "app"


@pytest.fixture
def small(package: Path, tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path / "runtime", package=package, bytecode=None)
    yield made
    made.close()


def wheel_of(site: Site) -> zipfile.ZipFile:
    files = site.files()
    return zipfile.ZipFile(io.BytesIO(files[json.loads(files["site.json"].read_bytes())["wheel"]].read_bytes()))


def test_the_tree_is_complete_and_nothing_else(small: Site) -> None:
    wheel = f"wheels/tabgpt-{app.__version__}-py3-none-any.whl"
    assert set(small.files()) == {
        "index.html",
        "models/story/config.json",
        "wgsl/matvec.wgsl",
        "wgsl/lib/tanh.wgsl",
        "source/app/__init__.py",
        "source/app/engine/__init__.py",
        "source/app/engine/gpu/plan.py",
        "site.json",
        "sw-files.js",
        wheel,
        *CHAT_WHEELS,
        "pyodide/pyodide-lock.json",
        *(f"pyodide/{file.name}" for file in FILES),
    }
    assert json.loads(small.files()["site.json"].read_bytes()) == {
        "version": app.__version__,
        "wheel": wheel,
        "pyodide": "pyodide/",
        "bytecode": None,
        "chat": CHAT_WHEELS,
        "models": [],
    }


def test_the_service_worker_learns_what_there_is_and_what_has_changed(small: Site, package: Path) -> None:
    def told() -> dict[str, Any]:
        script = small.files()["sw-files.js"].read_text()
        found: dict[str, Any] = json.loads(script.removeprefix("self.SITE = ").removesuffix(";\n"))
        return found

    first = told()
    there = {path: file for path, file in small.files().items() if file.exists()}
    assert set(first["files"]) == set(there) - {"sw-files.js"}
    for path, digest in first["files"].items():
        assert digest == hashlib.sha256(there[path].read_bytes()).hexdigest()
    assert told() == first
    (package.parent / "static" / "index.html").write_text("<title>another</title>")
    second = told()
    assert second["version"] != first["version"]
    assert [path for path in first["files"] if first["files"][path] != second["files"][path]] == ["index.html"]
    # The worker itself is compared by the browser.
    (package.parent / "static" / "sw.js").write_text("// worker")
    assert told() == second


def test_the_wheel_holds_the_engine_and_its_shaders_but_no_server(small: Site) -> None:
    info = f"tabgpt-{app.__version__}.dist-info"
    assert sorted(wheel_of(small).namelist()) == [
        "app/__init__.py",
        "app/engine/__init__.py",
        "app/engine/gpu/plan.py",
        "app/wgsl/lib/tanh.wgsl",
        "app/wgsl/matvec.wgsl",
        f"{info}/METADATA",
        f"{info}/RECORD",
        f"{info}/WHEEL",
    ]


def test_edits_show_at_once(small: Site, package: Path) -> None:
    before = small.files()
    assert small.files() == before
    (package / "engine" / "gpu" / "plan.py").write_text("P = 22\n")
    (package.parent / "wgsl" / "new.wgsl").write_text("// new")
    (package.parent / "static" / "new.js").write_text("export {};")
    after = small.files()
    assert wheel_of(small).read("app/engine/gpu/plan.py") == b"P = 22\n"
    assert "app/wgsl/new.wgsl" in wheel_of(small).namelist()
    assert after.keys() - before.keys() == {"wgsl/new.wgsl", "new.js"}


def test_an_unchanged_tree_is_not_written_again(small: Site) -> None:
    made = [path for path in small.files().values() if path.suffix == ".whl" or path.name == "site.json"]
    stats = [path.stat() for path in made if path.exists()]
    assert len(stats) == 4
    small.files()
    assert [path.stat().st_mtime_ns for path in made if path.exists()] == [stat.st_mtime_ns for stat in stats]


def test_two_sites_of_the_same_sources_have_the_same_wheel(small: Site, package: Path, tmp_path: Path) -> None:
    for path in package.rglob("*.py"):
        os.utime(path, (1e9, 1e9))
    other = Site(tmp_path, package=package, bytecode=None)
    try:
        name = f"wheels/tabgpt-{app.__version__}-py3-none-any.whl"
        assert small.files()[name].read_bytes() == other.files()[name].read_bytes()
    finally:
        other.close()


def test_an_installed_package_carries_its_assets_inside(package: Path, tmp_path: Path) -> None:
    assert assets("static", package=package) == package.parent / "static"
    shutil.copytree(package.parent / "static", package / "static")
    assert assets("static", package=package) == package / "static"


def test_missing_assets_are_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"static/ is neither in .* this installation is incomplete"):
        assets("static", package=tmp_path / "app")


def test_close_removes_what_it_wrote(package: Path, tmp_path: Path) -> None:
    made = Site(tmp_path, package=package, bytecode=None)
    written = made.files()["site.json"]
    assert written.exists()
    made.close()
    assert not written.parent.exists()


def test_every_file_of_the_real_tree_is_there(site: Site) -> None:
    files = site.files()
    assert {"index.html", "site.json", "models/story/model.safetensors", "pyodide/pyodide.mjs"} <= files.keys()
    assert all(path.is_file() for path in files.values())
    assert all(name == name.lstrip("/") and "\\" not in name and ".." not in name.split("/") for name in files)


def test_the_real_wheel_imports_without_the_server(site: Site, tmp_path: Path) -> None:
    wheel = tmp_path / "engine.whl"
    shutil.copyfile(next(path for name, path in site.files().items() if name.startswith("wheels/")), wheel)
    program = "import sys; sys.path.insert(0, sys.argv[1]); import app.engine.errors as e; print(e.__file__)"
    command = [sys.executable, "-P", "-c", program, str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=tmp_path)
    assert done.stdout.startswith(str(wheel))
    names = zipfile.ZipFile(wheel).namelist()
    shaders = {f"app/wgsl/{path}" for path, _ in tree(assets("wgsl"))}
    modules = {f"app/engine/{path}" for path, _ in tree(PACKAGE / "engine")}
    assert shaders | modules <= set(names)
    assert not [name for name in names if name.startswith("app/server")]
