import io

import pytest

from app.server import progress
from app.server.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_elsewhere_than_on_a_terminal_it_prints_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_S", 0.0)
    stream = io.StringIO()
    with Progress("Fetching", 2_000_000, stream=stream) as shown:
        shown.add(500_000)
        shown.note("the other source")
        shown.set(2_000_000)
    assert stream.getvalue().splitlines() == [
        "Fetching: 0.0 MB of 2.0 MB (0%)",
        "Fetching: 0.5 MB of 2.0 MB (25%)",
        "the other source",
        "Fetching: 2.0 MB of 2.0 MB (100%)",
    ]


def test_lines_are_few() -> None:
    stream = io.StringIO()
    with Progress("Fetching", 1000, stream=stream) as shown:
        for _ in range(1000):
            shown.add(1)
    assert stream.getvalue().splitlines() == ["Fetching: 0.0 MB of 0.0 MB (0%)", "Fetching: 0.0 MB of 0.0 MB (100%)"]


def test_on_a_terminal_it_redraws_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "REDRAW_S", 0.0)
    stream = Terminal()
    with Progress("Fetching", 4_000_000, stream=stream) as shown:
        shown.add(3_000_000)
        shown.add(-1_000_000)
    drawn = stream.getvalue()
    assert drawn.count("\n") == 1
    assert drawn.endswith("\r\x1b[KFetching [###############...............] 2.0 MB of 4.0 MB (50%)\n")
