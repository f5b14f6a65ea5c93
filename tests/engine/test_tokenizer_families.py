"""Tokenizers of other families than GPT-2: `tests/fixtures/write_tokenizer_families.py` wrote what is expected."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.errors import TokenizerError
from app.engine.tokenizer import Tokenizer

FOLDER = Path(__file__).parents[1] / "fixtures" / "tokenizer" / "families"
KINDS = ("llama3", "qwen2", "smollm", "neox")


def stored(name: str) -> Any:
    return json.loads(gzip.decompress((FOLDER / f"{name}.json.gz").read_bytes()))


@pytest.fixture(scope="module")
def texts() -> list[str]:
    found: list[str] = stored("texts")
    assert len(found) >= 2000
    return found


@pytest.fixture(scope="module")
def raw() -> dict[str, Any]:
    return {kind: stored(f"{kind}.tokenizer") for kind in KINDS}


def made(raw: Any) -> Tokenizer:
    return Tokenizer.from_files({"tokenizer.json": json.dumps(raw).encode()})


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_the_reference(kind: str, texts: list[str], raw: dict[str, Any]) -> None:
    tokenizer, expected = made(raw[kind]), stored(f"{kind}.ids")
    wrong = [
        (text, allow)
        for text, ids in zip(texts, expected["ids"], strict=True)
        for allow, wanted in ((False, ids[0]), (True, ids[-1]))
        if tokenizer.encode(text, allow_special=allow) != wanted
    ]
    assert not wrong
    assert list(tokenizer.prefix) == expected["prefix"]
    used = {id_ for ids in expected["ids"] for id_ in ids[-1]}
    assert set(tokenizer.special.values()) & used, "the texts hold special tokens"
    whole = raw[kind]["model"]["vocab"].get("Ġword")
    assert kind != "llama3" or whole in used, "and one that is a token only as a whole piece"


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_encoded_is_decoded(kind: str, texts: list[str], raw: dict[str, Any]) -> None:
    tokenizer = made(raw[kind])
    form = {"qwen2", "neox"} & {kind}
    for text in texts:
        if not form and "<mask>" not in text:
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_long_runs_are_cut_the_same_as_short_ones(raw: dict[str, Any]) -> None:
    for kind in KINDS:
        tokenizer = made(raw[kind])
        # Short enough for tiktoken at once, and the same text too long for it but for a border that both have.
        text = "don't 12345 \n\n  x!!\r\n" * 20
        assert tokenizer.encode(text + "y" * 600)[: len(tokenizer.encode(text))] == tokenizer.encode(text)


def changed(raw: Any, **changes: Any) -> Any:
    copy = json.loads(json.dumps(raw))
    for place, value in changes.items():
        *path, last = place.split("__")
        target = copy
        for part in path:
            target = target[int(part) if isinstance(target, list) else part]
        target[int(last) if isinstance(target, list) else last] = value
    return copy


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pre_tokenizer__pretokenizers__0__pattern": {"Regex": "(a+)+$"}}, "in a form that is not known"),
        ({"pre_tokenizer__pretokenizers__0__pattern": {"String": " "}}, "in a form that is not known"),
        ({"pre_tokenizer__pretokenizers__0__behavior": "Removed"}, "in a form that is not known"),
        ({"pre_tokenizer__pretokenizers__1__add_prefix_space": True}, "in a form that is not known"),
        ({"pre_tokenizer": {"type": "Metaspace"}}, "pre-tokenizer Metaspace"),
        ({"normalizer": {"type": "Replace"}}, "normalizer Replace"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}}, "normalizer"),
        ({"post_processor": {"type": "RobertaProcessing"}}, "post-processor RobertaProcessing"),
        ({"post_processor__processors__1__single": 7}, "post_processor makes no sense"),
        ({"post_processor__processors__1__special_tokens": {}}, "post_processor makes no sense"),
        ({"model__byte_fallback": True}, "no SentencePiece"),
        ({"model__dropout": 0.1}, "dropout"),
        ({"added_tokens__0__content": "x" * 1001}, "more than 1000 characters"),
    ],
)
def test_what_is_not_known_is_refused(changes: dict[str, Any], says: str, raw: dict[str, Any]) -> None:
    with pytest.raises(TokenizerError, match=says):
        made(changed(raw["llama3"], **changes))


def test_an_empty_sequence_of_normalizers_changes_nothing(raw: dict[str, Any]) -> None:
    tokenizer = made(changed(raw["llama3"], normalizer={"type": "Sequence", "normalizers": []}))
    assert tokenizer.decode(tokenizer.encode("e\u0301")) == "e\u0301"
    composed = made(changed(raw["llama3"], normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]}))
    assert composed.decode(composed.encode("e\u0301")) == "é"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2000) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
SMALL: dict[str, Any] = {
    "model": {"type": "BPE", "vocab": {chr(code): code for code in range(0x21, 0x7F)} | {"Ġ": 200, "ab": 201}},
    "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]},
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        ],
    },
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [202], "tokens": ["<s>"]}},
    },
    "added_tokens": [{"id": 202, "content": "<s>", "special": True}, {"id": 203, "content": " ", "lstrip": True}],
}
SMALL["model"]["merges"] = ["a b"]
PLACES = ["pre_tokenizer", "pre_tokenizer__pretokenizers", "pre_tokenizer__pretokenizers__0", "normalizer"]
PLACES += ["normalizer__normalizers", "post_processor", "post_processor__single", "post_processor__special_tokens"]
PLACES += ["added_tokens__1", "added_tokens__0__special", "model__ignore_merges", "added_tokens", "added_tokens__1__id"]


@settings(max_examples=300, deadline=None)
@given(place=st.sampled_from(PLACES), value=json_values, text=st.text(alphabet="ab1 <s>é\n", max_size=8))
def test_mutated_files_never_crash(place: str, value: Any, text: str) -> None:
    try:
        tokenizer = made(changed(SMALL, **{place: value}))
    except TokenizerError:
        return
    tokenizer.decode(tokenizer.encode(text, allow_special=True))


def test_the_small_one_that_is_mutated_works() -> None:
    tokenizer = made(SMALL)
    assert tokenizer.encode("ab1<s>") == [201, ord("1"), ord("<"), ord("s"), ord(">")]
    assert (tokenizer.prefix, tokenizer.encode("ab<s>", allow_special=True)) == ((202,), [201, 202])
