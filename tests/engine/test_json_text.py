import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.json_text import MAX_DEPTH, parse_json, too_deep

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(['"', "\\", '\\"', "[[[", "}]", '"[']),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
)


@given(values, st.booleans())
@settings(deadline=None)
def test_what_json_says_is_what_it_gives(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert parse_json(text) == value
    assert parse_json(text.encode(errors="surrogatepass").decode(errors="replace").encode()) is not ...


@given(st.binary(max_size=200))
@settings(deadline=None)
def test_bytes_that_are_no_json_are_a_value_error(data: bytes) -> None:
    try:
        parse_json(data)
    except ValueError:
        return
    json.loads(data.decode("utf-8-sig"))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000, '[{"a":' * 60_000])
def test_too_deep_is_refused_before_it_is_parsed(text: str) -> None:
    with pytest.raises(ValueError, match="nested deeper"):
        parse_json(text)


@pytest.mark.parametrize("opened", ["[", '{"a":'])
def test_the_border(opened: str) -> None:
    closed = "]" if opened == "[" else "}"
    for depth in (1, MAX_DEPTH, 2 * MAX_DEPTH):
        assert not too_deep((opened * depth + "1" + closed * depth).encode())
    assert too_deep((opened * 5 * MAX_DEPTH + "1" + closed * 5 * MAX_DEPTH).encode())


def test_brackets_in_strings_do_not_count() -> None:
    assert parse_json(json.dumps(["[" * 1000, '"' + "{" * 1000, "\\" + "[" * 1000])) is not None


def test_a_large_flat_text_is_no_trouble() -> None:
    vocabulary = {f"token {number}": number for number in range(200_000)}
    merges = [[f"a{number}", "[b"] for number in range(200_000)]
    assert parse_json(json.dumps({"vocab": vocabulary, "merges": merges}))["vocab"] == vocabulary
