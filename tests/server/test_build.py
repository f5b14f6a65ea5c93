import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.server.build import MARKER, build
from app.server.errors import SetupError
from app.server.runtime import FILES
from app.server.site import Site


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for path in ("app/__init__.py", "app/engine/__init__.py", "static/index.html", "static/a/b.js", "wgsl/x.wgsl"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"// {path}")
    (tmp_path / "runtime").mkdir()
    for file in FILES:
        (tmp_path / "runtime" / file.name).write_bytes(file.name.encode())
    return tmp_path / "app"


@pytest.fixture
def small(package: Path) -> Iterator[Site]:
    made = Site(package.parent / "runtime", package=package, bytecode=None)
    yield made
    made.close()


def built(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_writes_the_whole_site(small: Site, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "dist"
    size = build(small, folder)
    files = small.files()
    assert built(folder) == {*files, ".nojekyll", MARKER}
    assert all((folder / path).read_bytes() == file.read_bytes() for path, file in files.items())
    assert size == sum(file.stat().st_size for file in files.values())


def test_a_second_build_drops_what_is_gone_and_keeps_what_others_put_there(
    small: Site, package: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "dist"
    build(small, folder)
    (folder / "CNAME").write_text("example.org")
    (package.parent / "static" / "a" / "b.js").unlink()
    (package.parent / "static" / "index.html").write_text("new")
    build(small, folder)
    assert (folder / "index.html").read_text() == "new"
    assert (folder / "CNAME").read_text() == "example.org"
    assert not (folder / "a").exists()
    assert built(folder) == {*small.files(), ".nojekyll", MARKER, "CNAME"}


@pytest.mark.parametrize("name", ["notes.txt", ".git"])
def test_a_folder_with_other_things_in_it_is_refused_untouched(small: Site, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / name).write_text("precious")
    with pytest.raises(SetupError, match="is not empty and not an earlier build"):
        build(small, folder)
    assert built(folder) == {name}


def test_an_empty_folder_will_do_and_a_file_will_not(small: Site, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    build(small, tmp_path / "empty")
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="is a file"):
        build(small, tmp_path / "file")


def test_a_build_that_broke_off_is_completed_by_the_next(small: Site, tmp_path: Path) -> None:
    folder = tmp_path / "dist"
    missing = tmp_path / "runtime" / FILES[-1].name
    content = missing.read_bytes()
    missing.unlink()
    with pytest.raises(SetupError, match="could not be written"):
        build(small, folder)
    assert not (folder / "index.html").exists()
    missing.write_bytes(content)
    build(small, folder)
    assert built(folder) == {*small.files(), ".nojekyll", MARKER}


def test_a_damaged_marker_is_refused(small: Site, tmp_path: Path) -> None:
    folder = tmp_path / "dist"
    build(small, folder)
    (folder / MARKER).write_text("{")
    with pytest.raises(SetupError, match="is damaged"):
        build(small, folder)


def test_a_marker_cannot_have_files_outside_removed(small: Site, tmp_path: Path) -> None:
    folder = tmp_path / "dist"
    build(small, folder)
    (tmp_path / "precious.txt").write_text("precious")
    listed = json.loads((folder / MARKER).read_text())["files"]
    (folder / MARKER).write_text(json.dumps({"files": [*listed, "../precious.txt", str(tmp_path / "precious.txt")]}))
    build(small, folder)
    assert (tmp_path / "precious.txt").read_text() == "precious"
