import base64
import csv
import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

from app.server.wheel import build_wheel, wheel_name

SOURCES = {"app/engine/b.py": b"B = 2\n", "app/__init__.py": b"A = 1\n", "app/wgsl/x.wgsl": b"// x\n"}


def test_the_same_sources_in_any_order_give_the_same_bytes() -> None:
    backwards = dict(reversed(SOURCES.items()))
    assert build_wheel("1.2", SOURCES) == build_wheel("1.2", backwards)
    assert build_wheel("1.2", SOURCES) != build_wheel("1.2", {**SOURCES, "app/__init__.py": b"A = 2\n"})


def test_its_bytes_are_known() -> None:
    # Another Python, zlib, clock or system must not change them; a change of this hash must be on purpose.
    digest = hashlib.sha256(build_wheel("1.2", SOURCES)).hexdigest()
    assert digest == "d88bf611cbb9e3ba3ff0f00dc8175af523c29aa1aee25e6296e4ce048a159399"


def test_the_record_names_every_member_with_its_hash() -> None:
    archive = zipfile.ZipFile(io.BytesIO(build_wheel("1.2", SOURCES)))
    rows = list(csv.reader(io.StringIO(archive.read("tabgpt-1.2.dist-info/RECORD").decode())))
    assert sorted(row[0] for row in rows) == sorted(archive.namelist())
    for path, digest, size in rows[:-1]:
        content = archive.read(path)
        assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        assert int(size) == len(content)
    assert rows[-1] == ["tabgpt-1.2.dist-info/RECORD", "", ""]


def test_pip_installs_it(tmp_path: Path) -> None:
    wheel = tmp_path / wheel_name("1.2")
    wheel.write_bytes(build_wheel("1.2", SOURCES))
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check"]
    # As root pip warns; whether it is root is no matter here.
    command += ["--root-user-action=ignore", "--target", str(tmp_path / "installed"), str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for path, content in SOURCES.items():
        assert (tmp_path / "installed" / path).read_bytes() == content
    metadata = (tmp_path / "installed" / "tabgpt-1.2.dist-info" / "METADATA").read_text()
    assert "Requires-Dist: numpy\nRequires-Dist: tiktoken\n" in metadata
