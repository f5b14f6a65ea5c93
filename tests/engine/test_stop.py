from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.engine.stop import StopFilter


def run(pieces: Sequence[str], stops: Sequence[str]) -> tuple[list[str], str, bool]:
    """Return what each push showed, what the flush showed, and whether it stopped."""
    stop = StopFilter(stops)
    shown = [stop.push(piece) for piece in pieces]
    return shown, stop.flush(), stop.stopped


def test_without_stop_strings_everything_comes_through_at_once() -> None:
    assert run(["a", "", "b"], []) == (["a", "", "b"], "", False)


def test_a_possible_stop_string_is_held_until_it_is_none() -> None:
    assert run(["a\n", "b", "\n"], ["\n\n"]) == (["a", "\nb", ""], "\n", False)


def test_nothing_is_shown_from_the_stop_string_on() -> None:
    assert run(["one E", "N", "D two", "three"], ["END"]) == (["one ", "", "", ""], "", True)


def test_the_earliest_of_several_wins() -> None:
    assert run(["abcdef"], ["ef", "cd", "zz"]) == (["ab"], "", True)


def test_a_stop_string_that_overlaps_itself_is_found() -> None:
    assert run(["aa", "b"], ["aab"]) == (["", ""], "", True)
    assert run(["aaa", "b"], ["aab"]) == (["a", ""], "", True)


@pytest.mark.parametrize("text", ["", "x", "stop", "a stop b"])
def test_a_text_in_one_piece(text: str) -> None:
    assert run([text], ["stop"]) == ([text.split("stop")[0]], "", "stop" in text)


@given(st.lists(st.text("ab", max_size=3), max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_how_the_text_is_cut_into_pieces_does_not_matter(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    found = [start for stop in stops if (start := text.find(stop)) >= 0]
    shown, rest, stopped = run(pieces, stops)
    assert stopped == bool(found)
    # In small pieces, the stop string that is complete first wins, even if a longer one began before it.
    expected = min((text[: text.find(stop)] for stop in stops if stop in text), key=len, default=text)
    assert "".join([*shown, rest]).startswith(expected)
    if not found:
        assert "".join([*shown, rest]) == text
    else:
        assert all(stop not in "".join([*shown, rest]) for stop in stops)
