import io
import zipfile
from pathlib import Path

from app.server.bytecode import BYTECODE, STDLIB, package_bytecode, with_bytecode
from app.server.runtime import FILES
from app.server.site import Site

PYC = "lib/python3.14/site-packages/pack/__pycache__/one.cpython-314.pyc"


def write_bytecode(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("lib/python314.zip/os.pyc", b"compiled os")
        archive.writestr(PYC, b"compiled one")
    return path


def small_stdlib() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("os.py", b"source of os")
        archive.writestr("re/__init__.py", b"source of re")
    return buffer.getvalue()


def contents(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_standard_library_gets_its_own_bytecode_beside_its_sources(tmp_path: Path) -> None:
    bytecode = write_bytecode(tmp_path / "bytecode.zip")
    before = small_stdlib()
    assert contents(with_bytecode(before, bytecode)) == {**contents(before), "os.pyc": b"compiled os"}
    assert with_bytecode(before, bytecode) == with_bytecode(before, bytecode)


def test_packages_get_the_rest(tmp_path: Path) -> None:
    bytecode = write_bytecode(tmp_path / "bytecode.zip")
    assert contents(package_bytecode(bytecode)) == {PYC: b"compiled one"}
    assert package_bytecode(bytecode) == package_bytecode(bytecode)


def test_a_site_serves_both(tmp_path: Path) -> None:
    for file in FILES:
        (tmp_path / file.name).write_bytes(small_stdlib() if file.name == "python_stdlib.zip" else b"")
    site = Site(tmp_path, bytecode=write_bytecode(tmp_path / "bytecode.zip"))
    try:
        files = site.files()
        assert '"bytecode": "pyodide/bytecode.zip"' in files["site.json"].read_text()
        assert "os.pyc" in contents(files["pyodide/python_stdlib.zip"].read_bytes())
        assert PYC in contents(files["pyodide/bytecode.zip"].read_bytes())
        assert (tmp_path / "python_stdlib.zip").read_bytes() == small_stdlib()
    finally:
        site.close()


def test_all_that_comes_along_is_bytecode_of_the_runtime_or_the_engine() -> None:
    with zipfile.ZipFile(BYTECODE) as archive:
        names = archive.namelist()
    folders = (STDLIB, "lib/python3.14/site-packages/", "home/pyodide/app/")
    assert len(names) > 200
    assert [name for name in names if not name.startswith(folders) or not name.endswith(".pyc")] == []
