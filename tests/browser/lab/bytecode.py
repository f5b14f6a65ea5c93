"""Runs in the page's own Pyodide, needing no other file: the bytecode of what it has imported, made and compared."""

import base64
import json
import marshal
import sys
from importlib.util import MAGIC_NUMBER, cache_from_source, source_hash
from pathlib import Path

STDLIB = "/lib/python314.zip/"
RUNTIME = "/lib/"
ENGINE = "/home/pyodide/app/"
# PEP 552: a hash of the source instead of its time. The runtime is pinned, but the engine's sources change: Python
# compares, and compiles those that did.
UNCHECKED, CHECKED = (flags.to_bytes(4, "little") for flags in (1, 3))
HEADER = 16


def sources() -> dict[str, str]:
    """Modules that the page has imported from source: where the bytecode of each belongs, and its path."""
    found = {}
    for module in list(sys.modules.values()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None) or ""
        source = origin.removesuffix("c")
        if source.startswith((RUNTIME, ENGINE)) and source.endswith(".py"):
            found[f"{source}c" if source.startswith(STDLIB) else cache_from_source(source)] = source
    return found


def content(path: str) -> bytes:
    """Read a file, which may be inside the standard library's zip."""
    if not path.startswith(STDLIB):
        return Path(path).read_bytes()
    import zipfile

    with zipfile.ZipFile(STDLIB.rstrip("/")) as archive:
        return archive.read(path.removeprefix(STDLIB))


def compiled(source: str) -> bytes:
    """Return what Python makes of a file, as it would keep it."""
    data = content(source)
    code = compile(data, source, "exec", dont_inherit=True)
    flags = CHECKED if source.startswith(ENGINE) else UNCHECKED
    return MAGIC_NUMBER + flags + source_hash(data) + marshal.dumps(code)


def made() -> str:
    """Return JSON: the bytecode of `sources`, in base64."""
    return json.dumps({path: base64.b64encode(compiled(source)).decode() for path, source in sources().items()})


def compared() -> str:
    """Return JSON {count, missing, different}: of the runtime's, those without bytecode, and those with another's."""
    missing, different = [], []
    everything = {path: source for path, source in sources().items() if source.startswith(RUNTIME)}
    for path, source in everything.items():
        try:
            found = content(path)
        except (KeyError, FileNotFoundError):
            missing.append(path)
            continue
        wanted = compiled(source)
        if found[:HEADER] != wanted[:HEADER] or marshal.loads(found[HEADER:]) != marshal.loads(wanted[HEADER:]):
            different.append(path)
    return json.dumps({"count": len(everything), "missing": missing, "different": different})
