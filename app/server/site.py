"""Gathers what a browser needs into one tree: URL path -> file. Serving and the static build both take it from here."""

import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import app
from app.server.bytecode import BYTECODE, package_bytecode, with_bytecode
from app.server.chat_model import NAME
from app.server.errors import SetupError
from app.server.pure_wheel import CHAT, pure_wheel
from app.server.runtime import FILES, LOCK_FILE, LOCK_NAME
from app.server.wheel import build_wheel, wheel_name

PACKAGE = Path(app.__file__).parent
STDLIB = "python_stdlib.zip"
PACKAGE_BYTECODE = "pyodide/bytecode.zip"
CHAT_MODEL = f"models/{NAME}/model.gguf"
SERVICE_WORKER = "sw.js"
FILE_LIST = "sw-files.js"
"""The service worker reads it at its start: a browser that finds it changed installs a new version."""


def assets(name: str, *, package: Path = PACKAGE) -> Path:
    """Return the folder `name` ("static" or "wgsl"): inside an installed package, at the top level of a checkout."""
    for folder in (package / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise SetupError(
        f"The folder {name}/ is neither in {package} nor beside it, so this installation is incomplete. "
        "Install tabgpt again, with `pip install .` in a complete checkout."
    )


def tree(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield (path below `folder` with slashes, file) for all files, in order.

    Without hidden ones, bytecode, and links that lead out of the folder.
    """
    root = folder.resolve()
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name != "__pycache__")
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith(".pyc"):
                path = Path(parent) / name
                if path.is_symlink() and not path.resolve().is_relative_to(root):
                    continue
                yield path.relative_to(folder).as_posix(), path


class Site:
    """The tree that a browser sees, always as the sources are now: whoever asks again sees an edit.

    The engine's wheel, site.json and the service worker's list are written to a folder of this object's own, so that
    everything is a file.
    """

    def __init__(
        self,
        runtime: Path,
        *,
        package: Path = PACKAGE,
        chat_model: Path | None = None,
        bytecode: Path | None = BYTECODE,
    ) -> None:
        """Take the runtime from the folder `runtime`; `package` is where the `app` package lies.

        `chat_model` is the file of the model that `chat_model.py` fetches, if the page is to offer it. `bytecode` is of
        the runtime's modules (see `bytecode.py`); without it the page compiles them itself.
        """
        self._bytecode = bytecode
        self._chat_model = chat_model
        self._runtime = runtime
        self._package = package
        self._static = assets("static", package=package)
        self._wgsl = assets("wgsl", package=package)
        self._lock = threading.Lock()
        self._built: tuple[object, Path] | None = None
        self._with_bytecode: dict[str, Path] | None = None
        self._wheels: list[tuple[str, bytes]] | None = None
        self._hashes: dict[Path, tuple[tuple[int, int], str]] = {}
        self._made = tempfile.TemporaryDirectory(prefix="tabgpt-site-", ignore_cleanup_errors=True)

    def close(self) -> None:
        """Remove the files that this object wrote."""
        self._made.cleanup()

    def files(self) -> dict[str, Path]:
        """Return the whole tree: URL path without a leading slash -> file."""
        found = dict(tree(self._static))
        found |= {f"wgsl/{path}": file for path, file in tree(self._wgsl)}
        found |= {f"pyodide/{file.name}": self._runtime / file.name for file in FILES}
        found[f"pyodide/{LOCK_NAME}"] = LOCK_FILE
        found |= self._compiled()
        # For reading, beside the page's explanations: in the wheel they are only as part of a zip.
        found |= {f"source/{path}": file for path, file in self.engine_sources().items() if path.endswith(".py")}
        wheel = self._wheel()
        found[f"wheels/{wheel.name}"] = wheel
        chat = {f"wheels/{name}": self._made_file(name, content) for name, content in self._chat_wheels()}
        found |= chat
        if self._chat_model is not None:
            found[CHAT_MODEL] = self._chat_model
        described = {
            "version": app.__version__,
            "wheel": f"wheels/{wheel.name}",
            "pyodide": "pyodide/",
            "bytecode": PACKAGE_BYTECODE if PACKAGE_BYTECODE in found else None,
            "chat": list(chat),
            "models": [] if self._chat_model is None else [NAME],
        }
        found["site.json"] = self._made_file("site.json", json.dumps(described, indent=2).encode())
        found[FILE_LIST] = self._made_file(FILE_LIST, self._file_list(found))
        return found

    def _file_list(self, files: dict[str, Path]) -> bytes:
        """Return the script that tells the service worker what there is, as what, and a version made of that."""
        # The model is too large to be fetched by every visitor: the browser keeps none of it but what it asks for.
        left_out = (SERVICE_WORKER, CHAT_MODEL)
        hashes = {path: self._hash(file) for path, file in sorted(files.items()) if path not in left_out}
        content = json.dumps({path: digest for path, digest in hashes.items() if digest}, indent=0)
        version = hashlib.sha256(content.encode()).hexdigest()[:16]
        return f'self.SITE = {{"version": "{version}", "files": {content}}};\n'.encode()

    def _hash(self, file: Path) -> str | None:
        """Return a file's sha256, read again only if it was changed; None for one that is not there."""
        try:
            stat = file.stat()
        except FileNotFoundError:
            return None
        state = (stat.st_mtime_ns, stat.st_size)
        known = self._hashes.get(file)
        if known is None or known[0] != state:
            with file.open("rb") as opened:
                known = self._hashes[file] = state, hashlib.file_digest(opened, "sha256").hexdigest()
        return known[1]

    def _compiled(self) -> dict[str, Path]:
        """Return what of the runtime comes with bytecode."""
        if self._bytecode is None:
            return {}
        with self._lock:
            if self._with_bytecode is None:
                stdlib = with_bytecode((self._runtime / STDLIB).read_bytes(), self._bytecode)
                self._with_bytecode = {
                    f"pyodide/{STDLIB}": self._write(STDLIB, stdlib),
                    PACKAGE_BYTECODE: self._write("bytecode.zip", package_bytecode(self._bytecode)),
                }
            return self._with_bytecode

    def _chat_wheels(self) -> list[tuple[str, bytes]]:
        """Return the wheels that the page loads for a model that chats: names and contents."""
        if self._wheels is None:
            self._wheels = [pure_wheel(name) for name in CHAT]
        return self._wheels

    def engine_sources(self) -> dict[str, Path]:
        """Return what goes into the engine's wheel: path in the wheel -> file."""
        found = {"app/__init__.py": self._package / "__init__.py"}
        found |= {f"app/engine/{path}": file for path, file in tree(self._package / "engine")}
        found |= {f"app/wgsl/{path}": file for path, file in tree(self._wgsl)}
        return found

    def _wheel(self) -> Path:
        with self._lock:
            sources = self.engine_sources()
            stats = {path: file.stat() for path, file in sources.items()}
            state = {path: (stat.st_mtime_ns, stat.st_size) for path, stat in stats.items()}
            if self._built is None or self._built[0] != state:
                content = build_wheel(app.__version__, {path: file.read_bytes() for path, file in sources.items()})
                self._built = state, self._write(wheel_name(app.__version__), content)
            return self._built[1]

    def _made_file(self, name: str, content: bytes) -> Path:
        path = Path(self._made.name) / name
        with self._lock:
            if not path.exists() or path.read_bytes() != content:
                self._write(name, content)
        return path

    def _write(self, name: str, content: bytes) -> Path:
        # Replaced by a rename: a response that is under way keeps reading the old file.
        path = Path(self._made.name) / name
        part = path.with_name(f"{name}.{hashlib.sha256(content).hexdigest()[:12]}.part")
        part.write_bytes(content)
        part.replace(path)
        return path
