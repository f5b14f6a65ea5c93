"""A byte-level BPE's files, read from untrusted bytes: tokenizer.json, or vocab.json and merges.txt."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.engine.errors import TokenizerError

MAX_ID = 4_000_000
"""Ids must be below; a config may not ask for more tokens either."""


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes as printable characters: those that are printable as themselves, the rest from 256."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in shown}
    hidden = [byte for byte in range(256) if byte not in shown]
    return alphabet | {chr(256 + place): byte for place, byte in enumerate(hidden)}


BYTES = _byte_alphabet()
"""The byte that each character of the spelling stands for."""
# For str.translate; Latin-1 characters that spell no byte are sent where Latin-1 does not reach.
_TO_LATIN_1 = dict.fromkeys(range(256), 65535) | {ord(char): byte for char, byte in BYTES.items()}


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """A validated vocabulary."""

    single: dict[bytes, int]
    """Ids of the tokens of one byte."""
    merged: dict[bytes, int]
    """Ids of what merges make, in the order of the merges."""
    added: dict[str, int]
    """Ids of tokens that are found in the text before anything is merged, special or not."""
    special: dict[str, int]
    """Those of them that control the model; their spelling in a prompt is plain text."""
    other: dict[bytes, int]
    """Ids that no text leads to, but that a model may choose."""
    add_prefix_space: bool = False

    def decoder(self) -> dict[int, bytes]:
        """Return the bytes of every id."""
        known = {id_: token for tokens in (self.other, self.single, self.merged) for token, id_ in tokens.items()}
        return known | {id_: text.encode("utf-8", "replace") for text, id_ in self.added.items()}


def read_vocabulary(files: Mapping[str, bytes]) -> Vocabulary:
    """Read `tokenizer.json`, or else `vocab.json` and `merges.txt`. Raises TokenizerError, naming file and fault."""
    if "tokenizer.json" in files:
        return _from_tokenizer_json(_json("tokenizer.json", files["tokenizer.json"]))
    if missing := [file for file in ("vocab.json", "merges.txt") if file not in files]:
        raise TokenizerError(
            f"The tokenizer needs tokenizer.json, or vocab.json and merges.txt; {missing[0]} is missing."
        )
    vocab = _json("vocab.json", files["vocab.json"])
    merges = _text("merges.txt", files["merges.txt"]).split("\n")
    if merges[0].startswith("#version"):
        del merges[0]
    return _build("vocab.json", vocab, [line.rstrip("\r") for line in merges if line.strip()], {}, None)


def _from_tokenizer_json(raw: Any) -> Vocabulary:
    file = "tokenizer.json"
    model = raw.get("model") if isinstance(raw, dict) else None
    if not isinstance(model, dict):
        raise TokenizerError(f"{file} has no model. The file is damaged.")
    if model.get("type", "BPE") != "BPE":
        raise _unsupported(f"a model of type {model['type']!r}")
    for option in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(option):
            raise _unsupported(f"{option} {model[option]!r}")
    if raw.get("normalizer") is not None:
        raise _unsupported(f"a normalizer ({_type(raw['normalizer'])})")
    split = raw.get("pre_tokenizer")
    if not isinstance(split, dict) or split.get("type") != "ByteLevel" or split.get("use_regex") is False:
        raise _unsupported(f"the pre-tokenizer {_type(split)}, where GPT-2 has ByteLevel")
    if not isinstance(model.get("merges"), list):
        raise TokenizerError(f"{file} has no list of merges. The file is damaged.")
    added: dict[str, int] = {}
    special: set[str] = set()
    entries = raw.get("added_tokens") or []
    if not isinstance(entries, list):
        raise TokenizerError(f"{file}: added_tokens is no list. The file is damaged.")
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str) or not entry["content"]:
            raise TokenizerError(f"{file}: an entry of added_tokens has no content. The file is damaged.")
        added[entry["content"]] = entry.get("id", -1)
        if entry.get("special"):
            special.add(entry["content"])
    prefix = bool(split.get("add_prefix_space"))
    return _build(file, model.get("vocab"), model["merges"], added, special, add_prefix_space=prefix)


def _build(
    file: str,
    vocab: Any,
    merges: Iterable[Any],
    added: dict[str, int],
    special: set[str] | None,
    *,
    add_prefix_space: bool = False,
) -> Vocabulary:
    """Put a vocabulary together. `special` None: no file tells, so whatever stands in <|...|> is."""
    if not isinstance(vocab, dict) or not vocab:
        raise TokenizerError(f"{file} has no vocabulary. The file is damaged.")
    owner: dict[int, str] = {}
    for token, id_ in [*vocab.items(), *added.items()]:
        if isinstance(id_, bool) or not isinstance(id_, int) or not 0 <= id_ < MAX_ID:
            raise TokenizerError(
                f"{file}: token {token[:40]!r} has the id {str(id_)[:40]!r}; ids are whole numbers from 0 to "
                f"{MAX_ID - 1}. The file is damaged."
            )
        if owner.setdefault(id_, token) != token:
            raise TokenizerError(
                f"{file}: tokens {owner[id_][:40]!r} and {token[:40]!r} share the id {id_}. The file is damaged."
            )
    single = {bytes([byte]): vocab[char] for char, byte in BYTES.items() if char in vocab}
    if not single:
        raise _unsupported("a vocabulary that is not byte-level: it has no token for any byte")
    merged: dict[bytes, int] = {}
    made: set[str] = set()
    for number, merge in enumerate(merges, 1):
        pair = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(part, str) and part for part in pair):
            raise TokenizerError(f"{file}: merge {number} ({str(merge)[:40]!r}) is no pair of tokens. It is damaged.")
        token = "".join(pair)
        for part in (*pair, token):
            if part not in vocab:
                raise TokenizerError(
                    f"{file}: merge {number} ({str(merge)[:40]!r}) needs the token {part[:40]!r}, which is not in the "
                    "vocabulary. The files are damaged or do not belong together."
                )
        spelled = _spell(token)
        if spelled is None:
            raise TokenizerError(f"{file}: merge {number} makes {token[:40]!r}, which is not spelled in bytes.")
        made.add(token)
        merged.setdefault(spelled, vocab[token])  # made a second time, in another way: the first counts
    other: dict[bytes, int] = {}
    for token, id_ in vocab.items():
        if token not in made and token not in added and token not in BYTES:
            if special is None and token.startswith("<|") and token.endswith("|>"):
                added[token] = id_
            else:
                spelled = _spell(token)
                other[token.encode("utf-8", "replace") if spelled is None else spelled] = id_
    chosen = {text: id_ for text, id_ in added.items() if special is None or text in special}
    return Vocabulary(
        single=single, merged=merged, added=added, special=chosen, other=other, add_prefix_space=add_prefix_space
    )


def _spell(token: str) -> bytes | None:
    """Return the bytes that a token spells, None if it has characters that stand for no byte."""
    try:
        return token.translate(_TO_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return None


def _json(file: str, data: bytes) -> Any:
    try:
        return json.loads(_text(file, data))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{file} is not valid JSON ({str(error)[:100]}). The file is damaged.") from error


def _text(file: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{file} is not UTF-8 text. The file is damaged.") from error


def _type(part: object) -> str:
    return str(part.get("type") if isinstance(part, dict) else part)[:40]


def _unsupported(what: str) -> TokenizerError:
    return TokenizerError(
        f"This model's tokenizer has {what[:120]}; tabgpt supports GPT-2's byte-level BPE. Choose a model that has it."
    )
