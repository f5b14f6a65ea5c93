from typing import Any

import pytest

from app.engine.weights.progress import EVERY_S, WINDOW_S, LoadProgress, part_of


class Clock:
    """A clock that stands until it is moved, and bytes that came by then."""

    def __init__(self) -> None:
        self.now = 0.0
        self.bytes = 0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def told() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def progress(clock: Clock, told: list[dict[str, Any]]) -> LoadProgress:
    return LoadProgress(told.append, "m", 12, downloaded=lambda: clock.bytes, cached=lambda: 7, clock=clock)


def test_speed_and_time_left_are_those_of_the_last_seconds(
    progress: LoadProgress, clock: Clock, told: list[dict[str, Any]]
) -> None:
    progress(0, 1000, "wte.weight")
    assert told[-1] == {
        "model": "m",
        "loaded": 0,
        "total": 1000,
        "tensor": "wte.weight",
        "part": "token embeddings",
        "downloaded": 0,
        "cached": 7,
        "speed": None,
        "seconds_left": None,
    }
    for _ in range(10):
        clock.now += 1
        clock.bytes += 50
        progress(clock.bytes, 1000, "h.0.ln_1.weight")
    assert told[-1]["speed"] == pytest.approx(50)
    assert told[-1]["seconds_left"] == pytest.approx(10)
    for _ in range(int(WINDOW_S) + 1):
        clock.now += 1
        clock.bytes += 10
        progress(clock.bytes, 1000, "h.0.ln_1.weight")
    assert told[-1]["speed"] == pytest.approx(10)


def test_a_stalled_download_has_no_time_left(progress: LoadProgress, clock: Clock, told: list[dict[str, Any]]) -> None:
    for _ in range(3):
        clock.now += 1
        progress(0, 1000, "wte.weight")
    assert told[-1]["speed"] == 0
    assert told[-1]["seconds_left"] is None


def test_it_is_told_seldom_but_always_the_end(progress: LoadProgress, clock: Clock, told: list[dict[str, Any]]) -> None:
    for loaded in range(0, 1000, 100):
        progress(loaded, 1000, "wte.weight")
    assert len(told) == 1
    clock.now += EVERY_S
    progress(950, 1000, "wte.weight")
    progress(1000, 1000, "wte.weight")
    assert [data["loaded"] for data in told] == [0, 950, 1000]


@pytest.mark.parametrize(
    ("tensor", "part"),
    [
        ("wte.weight", "token embeddings"),
        ("wpe.weight", "position embeddings"),
        ("h.0.attn.c_attn.weight", "layer 1 of 12"),
        ("h.11.mlp.c_proj.bias", "layer 12 of 12"),
        ("ln_f.bias", "final norm"),
        ("lm_head.weight", "output matrix"),
    ],
)
def test_parts_in_words(tensor: str, part: str) -> None:
    assert part_of(tensor, 12) == part
