"""Builds the engine's wheel, the same bytes from the same sources wherever and whenever it is built."""

import base64
import hashlib
import io
import zipfile
from collections.abc import Mapping

PYTHON = ">=3.11"
REQUIRES = ("numpy", "tiktoken")
# The earliest time that a zip can hold.
EPOCH = (1980, 1, 1, 0, 0, 0)


def wheel_name(version: str) -> str:
    """Return the file name of the engine's wheel."""
    return f"tabgpt-{version}-py3-none-any.whl"


def build_wheel(version: str, sources: Mapping[str, bytes]) -> bytes:
    """Return a wheel with `sources` (path in the wheel -> content), installable by pip and micropip."""
    info = f"tabgpt-{version}.dist-info"
    metadata = [
        "Metadata-Version: 2.4",
        "Name: tabgpt",
        f"Version: {version}",
        "Summary: GPT-2 in a browser tab: the engine, for Pyodide.",
        "License-Expression: MIT",
        f"Requires-Python: {PYTHON}",
        *(f"Requires-Dist: {requirement}" for requirement in REQUIRES),
    ]
    members = {path: sources[path] for path in sorted(sources)}
    return zip_wheel(info, members | {f"{info}/METADATA": ("\n".join(metadata) + "\n").encode()})


def zip_wheel(info: str, contents: Mapping[str, bytes]) -> bytes:
    """Return a wheel of `contents` (path -> content, METADATA included), whose folder of metadata is `info`."""
    members = dict(contents)
    members[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tabgpt\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = "".join(f"{path},sha256={_digest(content)},{len(content)}\n" for path, content in members.items())
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()

    buffer = io.BytesIO()
    # Stored, not deflated: zlibs differ in what they make of the same input.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for path, content in members.items():
            entry = zipfile.ZipInfo(path, EPOCH)
            entry.create_system = 3
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
