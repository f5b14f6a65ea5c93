"""Which GGUF file of a repository is meant."""

import contextlib
import re
from typing import Any

from app.engine.errors import HubError, NotFoundError
from app.engine.weights.files import ModelFiles
from app.engine.weights.hub import LISTING, parse_json

DEFAULT = "Q4_K_M"
"""What is taken of a repository that holds several files and nothing else, as llama.cpp does."""
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.ASCII | re.IGNORECASE)
_SHOWN = 12


async def named_gguf(source: ModelFiles) -> str | None:
    """Return the name of the GGUF file that was asked for, None if none was.

    Raises NotFoundError, naming those that are there, or another HubError.
    """
    if source.gguf is not None:
        # It tells which version of the repository this is, without which nothing is kept. A mirror may have no lists.
        with contextlib.suppress(HubError):
            await source.read(LISTING)
        return source.gguf
    if source.variant is None:
        return None
    names = await _listed(source)
    found = _matching(names, source.variant)
    if found is None:
        raise NotFoundError(
            f"{source.model}: no GGUF file has {source.variant!r} in its name, or several have. There are "
            f"{', '.join(names[:_SHOWN]) or 'none'}. Name one: owner/name/file.gguf."
        )
    return found


async def only_gguf(source: ModelFiles) -> str | None:
    """Return the GGUF file of a repository that holds no other weights; None if it has none, or no list can be had.

    If there are several: the one that is named DEFAULT, or else the first.
    """
    try:
        names = await _listed(source)
    except HubError:
        return None
    return _matching(names, DEFAULT) or next(iter(names), None)


async def _listed(source: ModelFiles) -> list[str]:
    """Return the repository's GGUF files but for parts of larger ones and projectors of images, in order."""
    listed: Any = parse_json(await source.read(LISTING), label=source.label(LISTING))
    siblings = listed.get("siblings") if isinstance(listed, dict) else None
    names = [entry.get("rfilename") for entry in siblings or [] if isinstance(entry, dict)]
    files = [name for name in names if isinstance(name, str) and name.lower().endswith(".gguf") and ".." not in name]
    return sorted(name for name in files if not _PART.search(name) and "mmproj" not in name.lower())


def _matching(names: list[str], variant: str) -> str | None:
    """Return the name that has `variant` in it, as a word if several have it; None if that is not one."""
    found = [name for name in names if variant.lower() in name.lower()]
    if len(found) > 1:
        word = re.compile(rf"(?<![a-z0-9_]){re.escape(variant.lower())}(?![a-z0-9_])")
        found = [name for name in found if word.search(name.lower())]
    return found[0] if len(found) == 1 else None
