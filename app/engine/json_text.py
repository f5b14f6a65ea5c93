"""JSON from strangers: nested so deep that the parser would run out of stack, it ends Python itself under WebAssembly.

CPython's own guard knows the size of a native stack, not that of the browser's.
"""

import json
import re
from typing import Any

MAX_DEPTH = 100
"""Arrays and objects within each other. No file of a model comes near."""

_ESCAPE = re.compile(rb"\\.", re.DOTALL)
_STRING = re.compile(rb'"[^"]*"')
_ALL_BUT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))


def parse_json(data: bytes | str, **keywords: Any) -> Any:
    """Return what the JSON text `data` (UTF-8) says; `keywords` are those of `json.loads`.

    Raises ValueError for all that is wrong with it.
    """
    data = data.encode() if isinstance(data, str) else bytes(data)
    if too_deep(data):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    try:
        return json.loads(data.decode("utf-8-sig"), **keywords)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def too_deep(data: bytes) -> bool:
    """Tell whether brackets are nested deeper than MAX_DEPTH, without parsing, in time linear in the text's length."""
    brackets = _STRING.sub(b"", _ESCAPE.sub(b"", data).translate(None, _ALL_BUT_STRUCTURE))
    # Each round takes away the innermost level. What never pairs is no JSON; the parser finds that out by itself.
    for _ in range(MAX_DEPTH):
        rest = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(rest) == len(brackets):
            break
        brackets = rest
    return len(brackets) > 2 * MAX_DEPTH
