"""Stop strings over a stream: text is let through as soon as no stop string can begin in it."""

from collections.abc import Sequence


class StopFilter:
    """Holds back what might become a stop string, and cuts the text before the first one that does."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.stopped = False
        """A stop string was found; nothing comes through any more."""

    def push(self, text: str) -> str:
        """Take the next piece and return what can be shown."""
        if self.stopped:
            return ""
        self._held += text
        starts = [start for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if starts:
            self.stopped = True
            return self._release(min(starts))
        return self._release(len(self._held) - self._possible_prefix())

    def flush(self) -> str:
        """Return what was held back: the text has ended, so it was no stop string after all."""
        return "" if self.stopped else self._release(len(self._held))

    def _possible_prefix(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0

    def _release(self, length: int) -> str:
        shown, self._held = self._held[:length], self._held[length:]
        return shown
