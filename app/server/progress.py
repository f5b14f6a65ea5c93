"""Bytes of total, on a terminal as a bar that is redrawn, elsewhere as a plain line now and then."""

import time
from typing import TextIO

BAR_WIDTH = 30
REDRAW_S = 0.1
LINE_S = 5.0


def megabytes(count: int) -> str:
    """Return a byte count in MB, with one decimal."""
    return f"{count / 1e6:.1f} MB"


class Progress:
    """Shows how far one download has come. It is drawn at once, at most ten times a second, and when it ends."""

    def __init__(self, label: str, total: int, *, stream: TextIO) -> None:
        """Start at zero of `total` bytes."""
        self.label = label
        self.total = total
        self.done = 0
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._drawn_at = 0.0
        self._line = ""
        self._draw()

    def __enter__(self) -> "Progress":
        """Return itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Draw the last state and leave the line."""
        self._draw()
        if self._is_terminal:
            self._stream.write("\n")
            self._stream.flush()

    def set(self, done: int) -> None:
        """Say that `done` bytes are here."""
        self.done = done
        if time.monotonic() - self._drawn_at >= (REDRAW_S if self._is_terminal else LINE_S):
            self._draw()

    def add(self, count: int) -> None:
        """Say that `count` more bytes are here; a negative count takes back what turned out damaged."""
        self.set(self.done + count)

    def note(self, text: str) -> None:
        """Print a line of its own, without tearing the bar."""
        self._stream.write(f"\r\x1b[K{text}\n" if self._is_terminal else f"{text}\n")
        if self._is_terminal:
            self._draw()

    def _draw(self) -> None:
        self._drawn_at = time.monotonic()
        share = min(1.0, self.done / self.total) if self.total else 1.0
        figures = f"{megabytes(self.done)} of {megabytes(self.total)} ({share:.0%})"
        if self._is_terminal:
            filled = round(share * BAR_WIDTH)
            self._stream.write(f"\r\x1b[K{self.label} [{'#' * filled}{'.' * (BAR_WIDTH - filled)}] {figures}")
        elif self._line != figures:
            self._stream.write(f"{self.label}: {figures}\n")
        self._line = figures
        self._stream.flush()
