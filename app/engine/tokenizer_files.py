"""A byte-level BPE's files, read from untrusted bytes: tokenizer.json, or vocab.json and merges.txt."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from app.engine.errors import TokenizerError
from app.engine.json_text import parse_json
from app.engine.tokenizer_added import AddedToken
from app.engine.tokenizer_patterns import PATTERNS, Pattern, find_pattern

MAX_ID = 4_000_000
"""Ids must be below; a config may not ask for more tokens either."""
MAX_ADDED, MAX_ADDED_LENGTH = 100_000, 1000
"""Added tokens, and the characters of one."""
NORMAL_FORMS = ("NFC", "NFD", "NFKC", "NFKD")


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
    added: tuple[AddedToken, ...]
    """Those that are found in the text before anything is merged, special or not."""
    other: dict[bytes, int]
    """Ids that no merge makes, but that a model may choose."""
    pattern: Pattern = PATTERNS["gpt2"]
    """How a text is cut before anything is merged."""
    add_prefix_space: bool = False
    normal_form: str | None = None
    """Of Unicode, one of NORMAL_FORMS, into which a text is brought first."""
    whole_pieces: bool = False
    """A piece that is a token is that token, whether merges make it or not (`ignore_merges`)."""
    prefix: tuple[int, ...] = ()
    """Ids with which the model expects a text to begin."""

    def decoder(self) -> dict[int, bytes]:
        """Return the bytes of every id."""
        known = {id_: token for tokens in (self.other, self.single, self.merged) for token, id_ in tokens.items()}
        return known | {token.id: token.text.encode("utf-8", "replace") for token in self.added}

    @property
    def special(self) -> dict[str, int]:
        """Ids of the added tokens that control the model."""
        return {token.text: token.id for token in self.added if token.special}


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
    parts = build("vocab.json", vocab, [line.rstrip("\r") for line in merges if line.strip()], None)
    return Vocabulary(**parts)


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
    if model.get("dropout"):
        raise _unsupported(f"dropout {model['dropout']!r}")
    split = raw.get("pre_tokenizer")
    found = find_pattern(split)
    if found is None:
        raise _unsupported(f"the pre-tokenizer {_type(split)}, in a form that is not known")
    if not isinstance(model.get("merges"), list):
        raise TokenizerError(f"{file} has no list of merges. The file is damaged.")
    added = _added_tokens(file, raw.get("added_tokens") or [])
    return Vocabulary(
        **build(file, model.get("vocab"), model["merges"], added),
        pattern=found[0],
        add_prefix_space=found[1],
        normal_form=_normal_form(raw.get("normalizer")),
        whole_pieces=model.get("ignore_merges") is True,
        prefix=_prefix(file, raw.get("post_processor")),
    )


def _added_tokens(file: str, entries: Any) -> list[AddedToken]:
    if not isinstance(entries, list) or len(entries) > MAX_ADDED:
        raise TokenizerError(f"{file}: added_tokens is no list of up to {MAX_ADDED}. The file is damaged.")
    added: dict[str, AddedToken] = {}
    for entry in entries:
        text = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(text, str) or not 0 < len(text) <= MAX_ADDED_LENGTH:
            raise TokenizerError(
                f"{file}: an entry of added_tokens has no content, or one of more than {MAX_ADDED_LENGTH} characters. "
                "The file is damaged."
            )
        special = bool(entry.get("special"))
        added[text] = AddedToken(
            text=text,
            id=entry.get("id", -1),
            special=special,
            lstrip=bool(entry.get("lstrip")),
            rstrip=bool(entry.get("rstrip")),
            single_word=bool(entry.get("single_word")),
            normalized=bool(entry.get("normalized", not special)),
        )
    return list(added.values())


def _normal_form(part: Any) -> str | None:
    steps = part.get("normalizers") if isinstance(part, dict) and part.get("type") == "Sequence" else [part]
    if isinstance(steps, list):
        kinds = [_type(step) for step in steps if step is not None]
        if not kinds:
            return None
        if len(kinds) == 1 and kinds[0] in NORMAL_FORMS:
            return kinds[0]
    raise _unsupported(f"the normalizer {_type(part)}, where {', '.join(NORMAL_FORMS)} are known")


def _prefix(file: str, part: Any) -> tuple[int, ...]:
    """Return the ids that a post-processor puts before a single text."""
    steps = part.get("processors") if isinstance(part, dict) and part.get("type") == "Sequence" else [part]
    ids: list[int] = []
    for step in steps if isinstance(steps, list) else [steps]:
        if step is None or (isinstance(step, dict) and step.get("type") == "ByteLevel"):
            continue  # it moves offsets, not tokens
        if not isinstance(step, dict) or step.get("type") != "TemplateProcessing":
            raise _unsupported(f"the post-processor {_type(step)}")
        try:
            for item in step["single"]:
                if "Sequence" in item:
                    break  # what comes after the text would end it
                ids += step["special_tokens"][item["SpecialToken"]["id"]]["ids"]
        except (KeyError, TypeError, IndexError) as error:
            raise TokenizerError(f"{file}: its post_processor makes no sense. The file is damaged.") from error
    if len(ids) > 16 or not all(_is_id(id_) for id_ in ids):
        raise TokenizerError(f"{file}: its post_processor puts {str(ids)[:60]} before a text. The file is damaged.")
    return tuple(ids)


def build(file: str, vocab: Any, merges: Iterable[Any], added: list[AddedToken] | None) -> dict[str, Any]:
    """Return the parts of a Vocabulary. `added` None: no file tells, so whatever stands in <|...|> is special.

    Raises TokenizerError if they contradict each other.
    """
    if not isinstance(vocab, dict) or not vocab:
        raise TokenizerError(f"{file} has no vocabulary. The file is damaged.")
    owner: dict[int, str] = {}
    given = added or []
    known = {token.text for token in given}
    for token, id_ in [*vocab.items(), *((token.text, token.id) for token in given)]:
        if not _is_id(id_):
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
    guessed: list[AddedToken] = []
    for token, id_ in vocab.items():
        if token not in made and token not in known and token not in BYTES:
            if added is None and token.startswith("<|") and token.endswith("|>"):
                guessed.append(AddedToken(text=token, id=id_, special=True))
            else:
                spelled = _spell(token)
                other[token.encode("utf-8", "replace") if spelled is None else spelled] = id_
    return {"single": single, "merged": merged, "added": (*given, *guessed), "other": other}


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_ID


def _spell(token: str) -> bytes | None:
    """Return the bytes that a token spells, None if it has characters that stand for no byte."""
    try:
        return token.translate(_TO_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return None


def _json(file: str, data: bytes) -> Any:
    try:
        return parse_json(_text(file, data))
    except ValueError as error:
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
        f"This model's tokenizer has {what[:120]}; tabgpt supports byte-level BPE, as GPT-2, Llama 3, Qwen and SmolLM "
        "have it, and no SentencePiece. Choose a model that has it."
    )
