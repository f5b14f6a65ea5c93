"""A line on the terminal that says how far a long write is."""

import sys
import time


class Progress:
    """Shows bytes of the whole, ten times a second, if stderr is a terminal."""

    def __init__(self, total: int, what: str) -> None:
        """Begin at 0 of `total` bytes."""
        self._total, self._what, self._done = total, what, 0
        self._shown = 0.0
        self._visible = sys.stderr.isatty()

    def __call__(self, nbytes: int) -> None:
        """Count `nbytes` more."""
        self._done += nbytes
        now = time.monotonic()
        if self._visible and (now - self._shown > 0.1 or self._done >= self._total):
            self._shown = now
            done, total = self._done / 1e6, self._total / 1e6
            end = "\n" if self._done >= self._total else ""
            line = f"\r{self._what} {done:,.0f} of {total:,.0f} MB"
            print(line, end=end, file=sys.stderr, flush=True)
