"""Bytecode of the modules that the page imports at its start.

Pyodide brings its standard library and its packages as source. To compile what the engine imports of them takes a
browser three seconds, at each start anew; so the result comes along, made once, in Pyodide itself, by
`python -m tests.browser.make_bytecode`. It is of these sources: `tests/browser/test_bytecode.py` compiles them again
and compares. The engine's own modules come, too, and Python skips those whose source has changed since. What is missing
here is compiled in the page, as ever.
"""

import io
import zipfile
from pathlib import Path

BYTECODE = Path(__file__).with_name("bytecode.zip")
"""A zip whose paths are those of the page's file system, below /."""
STDLIB = "lib/python314.zip/"
"""What belongs into the standard library's zip: NAME.pyc beside NAME.py. All else lies in __pycache__ folders."""


def with_bytecode(stdlib: bytes, bytecode: Path = BYTECODE) -> bytes:
    """Return the standard library's zip with the bytecode beside its sources, where Python looks first."""
    buffer = io.BytesIO(stdlib)
    with zipfile.ZipFile(bytecode) as made, zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        for entry in made.infolist():
            if entry.filename.startswith(STDLIB):
                _add(archive, entry.filename.removeprefix(STDLIB), made.read(entry))
    return buffer.getvalue()


def package_bytecode(bytecode: Path = BYTECODE) -> bytes:
    """Return a zip of the packages' bytecode, to be unpacked in /."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(bytecode) as made, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for entry in made.infolist():
            if not entry.filename.startswith(STDLIB):
                _add(archive, entry.filename, made.read(entry))
    return buffer.getvalue()


def _add(archive: zipfile.ZipFile, path: str, content: bytes) -> None:
    # Without a time of its own: the same input is to give the same zip.
    archive.writestr(zipfile.ZipInfo(path), content, zipfile.ZIP_DEFLATED)
