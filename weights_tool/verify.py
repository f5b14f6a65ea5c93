"""`verify`: reads all of a model's files and says what is wrong with them."""

import argparse
import asyncio
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.errors import EngineError
from app.engine.weights.compact import SCALES
from weights_tool.inspection import inspect
from weights_tool.output import add_command
from weights_tool.progress import Progress
from weights_tool.stored import FLOATS, Stored, find_weights
from weights_tool.writing import Floats

SUMS = "SHA256SUMS"

HELP = """\
Check all that `inspect` does (headers, bounds, shapes against the config, tokenizer), and every value: none may be NaN
or infinite, nor the scales of q8 and q4. Files that SHA256SUMS names, which `publish` writes, must have the sums that
it gives.
Exit status 1 if something is wrong.
"""


def add_verify(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    parser = add_command(commands, "verify", short="read all of a model and say what is wrong with it", long=HELP)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with config.json and safetensors")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Do what the command line asks; return the exit status."""
    if not options.folder.is_dir():
        raise NotADirectoryError(f"{str(options.folder)!r} is not a folder.")
    found = verify(options.folder)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(options.folder)
        print(f"  {found['values']:,} values read, {found['sums']} checksums compared")
        print("\n".join(f"  FAULT {fault}" for fault in found["faults"]) or "  nothing is wrong with it")
    return 1 if found["faults"] else 0


def verify(folder: Path) -> dict[str, Any]:
    """Return {faults, values, sums}: what is wrong, in words, and how much was looked at."""
    found = asyncio.run(inspect(folder))
    faults: list[str] = list(found["faults"])
    scheme: str | None = found.get("format")
    values = 0
    try:
        tensors, _ = find_weights(folder)
        show = Progress(
            sum(stored.count for name, stored in tensors.items() if _is_read(name, stored, scheme)),
            "reading, in M values:",
        )
        for name, stored in tensors.items():
            strange = 0
            for piece in _floats(stored, scheme) if _is_read(name, stored, scheme) else ():
                strange += int(np.count_nonzero(~np.isfinite(piece)))
                values += piece.size
                show(piece.size)
            if strange:
                faults.append(f"Tensor {name!r} has {strange} values that are NaN or infinite.")
    except EngineError as error:
        fault = f"{type(error).__name__}: {error}"
        if not faults:
            faults.append(fault)
    compared = 0
    for name, expected in read_sums(folder).items():
        path = folder / name
        compared += 1
        if not path.is_file():
            faults.append(f"{name} is missing, though {SUMS} names it.")
        elif file_sha256(path) != expected:
            faults.append(f"{name} has another SHA-256 than {SUMS} says.")
    return {"faults": faults, "values": values, "sums": compared}


def _is_read(name: str, stored: Stored, scheme: str | None) -> bool:
    """Tell whether a tensor's values may be strange; every code is a number."""
    return stored.dtype in FLOATS or (scheme is not None and SCALES in name and stored.dtype == "U32")


def _floats(stored: Stored, scheme: str | None) -> Iterator[Floats]:
    """Yield a tensor's values; those of a block's word are one f32 or two f16."""
    if stored.dtype in FLOATS:
        yield from stored.pieces()
        return
    for words in stored.words():
        yield words.view(np.float32 if scheme == "q8" else np.float16).astype(np.float32)


def read_sums(folder: Path) -> dict[str, str]:
    """Return what a folder's SHA256SUMS says; nothing if there is none."""
    path = folder / SUMS
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    pairs = (line.split(maxsplit=1) for line in lines if line.strip())
    return {name.lstrip("*"): digest for digest, name in pairs if Path(name.lstrip("*")).name == name.lstrip("*")}


def file_sha256(path: Path) -> str:
    """Return a file's SHA-256, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
