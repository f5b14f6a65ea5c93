import gzip
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.errors import TokenizerError
from app.engine.tokenizer import StreamDecoder, Tokenizer

FIXTURES = Path(__file__).parents[1] / "fixtures"
STORY = Path(__file__).parents[2] / "static" / "models" / "story"


def gpt2_files() -> dict[str, bytes]:
    folder = FIXTURES / "gpt2-vocab"
    return {name: gzip.decompress((folder / f"{name}.gz").read_bytes()) for name in ("vocab.json", "merges.txt")}


def story_files(*names: str) -> dict[str, bytes]:
    return {name: (STORY / name).read_bytes() for name in names}


def expected(name: str) -> Any:
    return json.loads(gzip.decompress((FIXTURES / "tokenizer" / f"{name}.json.gz").read_bytes()))


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    return Tokenizer.from_files(gpt2_files())


@pytest.fixture(scope="module")
def story() -> Tokenizer:
    return Tokenizer.from_files(story_files("tokenizer.json"))


@pytest.fixture(params=["gpt2", "story"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tokenizer(name: str, request: pytest.FixtureRequest) -> Tokenizer:
    made: Tokenizer = request.getfixturevalue(name)
    return made


def test_ids_are_those_of_the_reference(name: str, tokenizer: Tokenizer) -> None:
    cases = expected(name)["texts"]
    assert len(cases) >= 500
    wrong = [case["text"] for case in cases if tokenizer.encode(case["text"]) != case["ids"]]
    assert not wrong


def test_ids_of_long_runs_are_those_of_the_reference(name: str, tokenizer: Tokenizer) -> None:
    for case in expected(name)["repeated"]:
        ids = tokenizer.encode(case["unit"] * case["times"] + case["tail"])
        assert len(ids) == case["count"], case
        assert hashlib.sha256(json.dumps(ids).encode()).hexdigest() == case["sha256"], case


def test_what_was_encoded_is_decoded(name: str, tokenizer: Tokenizer) -> None:
    for case in expected(name)["texts"]:
        assert tokenizer.decode(case["ids"]) == case["text"]


@pytest.mark.parametrize("unit", ["a", "^", " ", "\n", "é", "🎉", "\t ", "ab", "\x1c"])
def test_a_million_of_anything_takes_seconds_at_most(gpt2: Tokenizer, unit: str) -> None:
    text = unit * (1_000_000 // len(unit.encode())) + "x"
    started = time.perf_counter()
    ids = gpt2.encode(text)
    # Far above what it takes here, far below what quadratic time would.
    assert time.perf_counter() - started < 30
    assert gpt2.decode(ids) == text


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=60) | st.text(alphabet="ab 1'\n\t.s🎉é", max_size=1500))
def test_any_text_comes_back(gpt2: Tokenizer, text: str) -> None:
    clean = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    assert gpt2.decode(gpt2.encode(text)) == clean
    assert "".join(piece for _, piece in gpt2.pieces("abc " + "déjà")) == "abc déjà"


def test_both_kinds_of_files_give_the_same(story: Tokenizer) -> None:
    other = Tokenizer.from_files(story_files("vocab.json", "merges.txt"))
    assert (other.n_vocab, other.eos_id) == (story.n_vocab, story.eos_id) == (8192, 8191)
    for case in expected("story")["texts"]:
        assert other.encode(case["text"]) == case["ids"]


def test_sizes_and_the_end_of_text(gpt2: Tokenizer) -> None:
    assert (gpt2.n_vocab, gpt2.eos_id) == (50257, 50256)
    assert Tokenizer.from_files(gpt2_files(), eos_id=7).eos_id == 7


def test_special_tokens_in_a_prompt_are_plain_text(tokenizer: Tokenizer) -> None:
    text = "a<|endoftext|>b<|endoftext|>"
    plain = tokenizer.encode(text)
    assert tokenizer.eos_id not in plain
    assert tokenizer.decode(plain) == text
    a, b, end = tokenizer.encode("a"), tokenizer.encode("b"), tokenizer.eos_id
    assert tokenizer.encode(text, allow_special=True) == [*a, end, *b, end]


def test_lone_surrogates_are_replaced(gpt2: Tokenizer) -> None:
    assert gpt2.decode(gpt2.encode("a\ud83cb\udf89c")) == "a�b�c"
    assert gpt2.encode("\ud83c\udf89") == gpt2.encode("🎉")


def test_ids_beyond_the_vocabulary_are_replaced(gpt2: Tokenizer) -> None:
    assert gpt2.decode([50257, *gpt2.encode("x"), 10**9]) == "�x�"
    decoder = StreamDecoder(gpt2)
    assert decoder.push(60_000) + decoder.flush() == "�"


def test_a_stream_never_shows_half_a_character(gpt2: Tokenizer) -> None:
    ids = gpt2.encode("🎉")
    assert len(ids) == 3
    decoder = StreamDecoder(gpt2)
    assert [decoder.push(id_) for id_ in ids] == ["", "", "🎉"]
    assert decoder.flush() == ""


def test_a_stream_is_the_whole_text(name: str, tokenizer: Tokenizer) -> None:
    for case in expected(name)["texts"]:
        decoder = StreamDecoder(tokenizer)
        parts = [decoder.push(id_) for id_ in case["ids"]]
        assert "".join(parts) + decoder.flush() == case["text"]
        assert all("\ufffd" not in part for part in parts) or "\ufffd" in case["text"]


def test_a_stream_gives_up_at_once_what_cannot_become_a_character(gpt2: Tokenizer) -> None:
    first, second, _ = gpt2.encode("🎉")
    (x,) = gpt2.encode("x")
    decoder = StreamDecoder(gpt2)
    assert decoder.push(first) == ""
    assert decoder.push(x) == "�x"
    assert decoder.push(first) + decoder.push(second) == ""
    assert decoder.flush() == "�"
    assert decoder.push(x) == "x"
    (continuation,) = (id_ for id_ in range(256) if gpt2.token_bytes(id_) == b"\x80")
    assert decoder.push(continuation) == "�"


def test_pieces_belong_to_ids(gpt2: Tokenizer) -> None:
    assert gpt2.pieces("Hello world") == [(15496, "Hello"), (995, " world")]
    assert [piece for _, piece in gpt2.pieces("🎉")] == ["�", "�", "�"]


# Vocabularies that are not like GPT-2's


def small(**changes: Any) -> dict[str, bytes]:
    """A tokenizer.json with all bytes, ids scattered and not in the merges' order."""
    from app.engine.tokenizer_files import BYTES

    vocab = {char: 1000 - byte for char, byte in BYTES.items()} | {"ab": 7, "abc": 3, "Ġab": 500}
    raw: dict[str, Any] = {
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b", ["ab", "c"], "Ġ ab"]},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False},
        "added_tokens": [
            {"id": 2000, "content": "<|endoftext|>", "special": True},
            {"id": 2001, "content": "<tag>", "special": False},
            {"id": 2002, "content": "<tag>s", "special": False},
        ],
    }
    for place, value in changes.items():
        *path, last = place.split("__")
        target = raw
        for part in path:
            target = target[part]
        target[last] = value
    return {"tokenizer.json": json.dumps(raw).encode()}


def test_ids_need_not_follow_the_merges() -> None:
    tokenizer = Tokenizer.from_files(small())
    assert tokenizer.encode("abc ab b") == [3, 500, 1000 - 32, 1000 - 98]
    assert tokenizer.decode([3, 500]) == "abc ab"
    assert tokenizer.n_vocab == 2003
    assert tokenizer.eos_id == 2000


def test_added_tokens_that_are_not_special_are_always_found() -> None:
    tokenizer = Tokenizer.from_files(small())
    assert tokenizer.encode("ab<tag>ab<tag>s<|endoftext|>")[:4] == [7, 2001, 7, 2002]
    assert 2000 not in tokenizer.encode("<|endoftext|>")
    assert tokenizer.encode("<tag>s<|endoftext|>", allow_special=True) == [2002, 2000]


def test_a_prefix_space_is_put_where_the_files_ask_for_one() -> None:
    tokenizer = Tokenizer.from_files(small(pre_tokenizer__add_prefix_space=True))
    assert tokenizer.encode("ab") == [500]
    assert tokenizer.encode(" ab") == [500]
    assert tokenizer.encode("") == []


def test_bytes_without_a_token_are_left_out_as_the_reference_does() -> None:
    tokenizer = Tokenizer.from_files(
        small(model__vocab={"a": 0, "b": 1, "c": 2, "ab": 3}, model__merges=["a b"], added_tokens=[])
    )
    assert tokenizer.encode("abxc é") == [3, 2]
    assert tokenizer.n_vocab == 4
    assert tokenizer.eos_id is None


def test_tokens_that_no_text_leads_to_can_still_be_shown() -> None:
    vocab = json.loads(small()["tokenizer.json"])["model"]["vocab"] | {"Ġzzz": 1500, "日 x": 1501}
    tokenizer = Tokenizer.from_files(small(model__vocab=vocab))
    assert tokenizer.decode([1500, 1501]) == " zzz日 x"
    assert 1500 not in tokenizer.encode(" zzz")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": None}, "has no model"),
        ({"model__type": "WordPiece"}, "'WordPiece'"),
        ({"model__type": "Unigram"}, "'Unigram'"),
        ({"model__byte_fallback": True}, "byte_fallback"),
        ({"model__end_of_word_suffix": "</w>"}, "end_of_word_suffix"),
        ({"model__continuing_subword_prefix": "##"}, "continuing_subword_prefix"),
        ({"normalizer": {"type": "Lowercase"}}, "normalizer Lowercase"),
        ({"pre_tokenizer": None}, "pre-tokenizer None"),
        ({"pre_tokenizer": {"type": "Sequence"}}, "pre-tokenizer Sequence"),
        ({"pre_tokenizer__use_regex": False}, "pre-tokenizer ByteLevel"),
        ({"model__vocab": {}}, "no vocabulary"),
        ({"model__vocab": ["a"]}, "no vocabulary"),
        ({"model__vocab": {"▁hello": 1}, "model__merges": []}, "not byte-level"),
        ({"model__vocab__ab": -1}, "'ab' has the id '-1'"),
        ({"model__vocab__ab": 4_000_000}, "'ab' has the id"),
        ({"model__vocab__ab": True}, "'ab' has the id"),
        ({"model__vocab__ab": 1.0}, "'ab' has the id"),
        ({"model__vocab__ab": "7"}, "'ab' has the id"),
        ({"model__vocab__ab": 3}, "'ab' and 'abc' share the id 3"),
        ({"model__merges": None}, "no list of merges"),
        ({"model__merges": [["a", "b", "c"]]}, "merge 1 .* no pair"),
        ({"model__merges": ["ab"]}, "merge 1 .* no pair"),
        ({"model__merges": [7]}, "merge 1 .* no pair"),
        ({"model__merges": [["a", 1]]}, "merge 1 .* no pair"),
        ({"model__merges": ["a b", "b c"]}, "merge 2 .* 'bc'.* not in the vocabulary"),
        ({"model__vocab": {"a": 1, "日": 2, "a日": 3}, "model__merges": ["a 日"]}, "not spelled in bytes"),
        ({"added_tokens": [{"id": 1}]}, "added_tokens"),
        ({"added_tokens": ["x"]}, "added_tokens"),
        ({"added_tokens": [{"content": "x"}]}, "'x' has the id"),
        ({"added_tokens": [{"content": "x", "id": 7}]}, "'ab' and 'x' share the id 7"),
    ],
)
def test_a_damaged_or_foreign_tokenizer_is_refused_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(TokenizerError, match=says):
        Tokenizer.from_files(small(**changes))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'"x"', b"1" * 5000])
def test_files_that_are_no_json_are_refused(data: bytes) -> None:
    for files in ({"tokenizer.json": data}, {"vocab.json": data, "merges.txt": b""}):
        with pytest.raises(TokenizerError, match=r"tokenizer\.json|vocab\.json"):
            Tokenizer.from_files(files)


def test_missing_files_are_named() -> None:
    with pytest.raises(TokenizerError, match=r"merges\.txt is missing"):
        Tokenizer.from_files({"vocab.json": b"{}"})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2000) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
places = st.sampled_from(
    ["model", "model__type", "model__vocab", "model__vocab__a", "model__vocab__zz", "model__merges", "added_tokens",
     "pre_tokenizer", "normalizer", "pre_tokenizer__add_prefix_space", "post_processor", "version"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(place=places, value=json_values, text=st.text(max_size=8))
def test_mutated_files_never_crash(place: str, value: Any, text: str) -> None:
    try:
        tokenizer = Tokenizer.from_files(small(**{place: value}))
    except TokenizerError:
        return
    tokenizer.decode(tokenizer.encode(text, allow_special=True))
