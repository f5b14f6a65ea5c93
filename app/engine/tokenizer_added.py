"""Tokens that are found in a text before anything is merged: special ones, and others that were added."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import regex

from app.engine.tokenizer_patterns import SPACE

_WORD = regex.compile(r"\w")


@dataclass(frozen=True, kw_only=True)
class AddedToken:
    """One of them, with its options as `tokenizers` has them."""

    text: str
    id: int
    special: bool = False
    """It controls the model; its spelling in a text is plain text unless one asks otherwise."""
    lstrip: bool = False
    """White space before it belongs to it."""
    rstrip: bool = False
    single_word: bool = False
    """It is not found within a word."""
    normalized: bool = False
    """It is looked for in the normalised text."""


class AddedTokens:
    """Cuts a text at its added tokens: of two that begin at one place the longer one counts."""

    def __init__(self, tokens: Iterable[AddedToken]) -> None:
        """Look for `tokens`."""
        self._tokens = {token.text: token for token in tokens}
        longest_first = sorted(self._tokens, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def split(self, text: str, *, allow_special: bool) -> Iterator[str | int]:
        """Yield the stretches of text between tokens, and the tokens' ids, in order.

        The same as the library's AddedVocabulary.find_matches, with `encode_special_tokens` unless `allow_special`.
        """
        done = 0
        for match in self._pattern.finditer(text) if self._pattern else ():
            token, start, stop = self._tokens[match.group()], match.start(), match.end()
            if token.special and not allow_special:
                continue
            if token.single_word and (_is_word(text[start - 1 : start]) or _is_word(text[stop : stop + 1])):
                continue
            if token.lstrip:
                while start > done and SPACE.match(text[start - 1]):
                    start -= 1
            if token.rstrip and (space := SPACE.match(text, stop)):
                stop = space.end()
            if start > done:
                yield text[done:start]
            yield token.id
            done = stop
        if done < len(text):
            yield text[done:]


def _is_word(character: str) -> bool:
    return bool(character) and _WORD.match(character) is not None
