"""How text is cut into pieces before anything is merged: the patterns that are known, and how files ask for them.

A tokenizer's file may carry any regular expression. Only those that are listed here are accepted, since another one may
take forever, and tiktoken and the original library may not read it alike.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import regex


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """One way to cut."""

    name: str
    source: str
    """As tiktoken takes it: the same pieces as the original, with possessive quantifiers where they make it faster."""

    def pieces(self, text: str) -> Iterator[str]:
        """Cut `text` as tiktoken does, at any length."""
        return (match.group() for match in _compiled(self.source).finditer(text))


_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
# What GPT-2's pattern makes of the text between two digits, each of which stands alone.
_DIGITS = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++|\p{N}| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?![^\s\p{N}])|\s"
_LLAMA3 = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace("{1,3}+", "")

PATTERNS = {
    name: Pattern(name=name, source=source)
    for name, source in (("gpt2", _GPT2), ("gpt2-digits", _DIGITS), ("llama3", _LLAMA3), ("qwen2", _QWEN2))
}

# As the files spell them.
_KNOWN = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ): "llama3",
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ): "qwen2",
}

_COMPILED: dict[str, Any] = {}


def _compiled(source: str) -> Any:
    if source not in _COMPILED:
        # The regex module's \s has four control characters more than Unicode's White_Space, and its $ another meaning.
        white = source.replace(r"\S", r"\P{White_Space}").replace(r"\s", r"\p{White_Space}").replace("$", r"\Z")
        _COMPILED[source] = regex.compile(white)
    return _COMPILED[source]


SPACE, NO_SPACE = re.compile(r"[^\S\x1c-\x1f]+"), re.compile(r"[\S\x1c-\x1f]+")
"""Runs of Unicode's White_Space, and of anything else."""


def find_pattern(part: Any) -> tuple[Pattern, bool] | None:
    """Return the pattern that a file's `pre_tokenizer` amounts to, and whether a space is put before a text.

    None if it is none of the known ones.
    """
    steps = part.get("pretokenizers") if isinstance(part, dict) and part.get("type") == "Sequence" else [part]
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        return None
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"] and _cuts(steps[0]):
        return PATTERNS["gpt2"], bool(steps[0].get("add_prefix_space", True))
    if len(steps) != 2 or kinds[1] != "ByteLevel" or steps[1].get("add_prefix_space", True):
        return None
    first, cuts = steps[0], _cuts(steps[1])
    if kinds[0] == "Digits" and first.get("individual_digits") is True and cuts:
        return PATTERNS["gpt2-digits"], False
    if kinds[0] == "Split" and not cuts:
        source = first.get("pattern")
        source = source.get("Regex") if isinstance(source, dict) else None
        # The pieces are all of the text, so that "what is between them" is nothing.
        whole = (first.get("behavior"), bool(first.get("invert"))) in (("Isolated", False), ("Removed", True))
        if whole and isinstance(source, str) and source in _KNOWN:
            return PATTERNS[_KNOWN[source]], False
    return None


def _cuts(step: dict[str, Any]) -> bool:
    return step.get("use_regex", True) is not False
