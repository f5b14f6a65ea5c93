"""How far a load is, as people want to know it: bytes, speed, time left, and what is coming."""

import re
import time
from collections import deque
from collections.abc import Callable
from typing import Any

EVERY_S = 0.05
"""Not more often than anyone can see."""
WINDOW_S = 5.0
"""The speed is that of the last seconds."""

_LAYER = re.compile(r"(?:h|layers)\.(\d+)\.")
_HALF = re.compile(r"\.(codes|scales)(\.\d+)?$")
_PARTS = dict.fromkeys(("wte.weight", "embed_tokens.weight", "embed_in.weight"), "token embeddings") | {
    "wpe.weight": "position embeddings",
    "lm_head.weight": "output matrix",
}


class LoadProgress:
    """Takes a loader's progress and passes it on as {model, loaded, total, tensor, part, downloaded, cached, speed,
    seconds_left}: bytes, bytes a second over the network, seconds; None for what cannot be told.
    """

    def __init__(
        self,
        emit: Callable[[dict[str, Any]], None],
        model: str,
        layers: int,
        *,
        downloaded: Callable[[], int],
        cached: Callable[[], int],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Tell `emit`. `downloaded` and `cached` give the bytes that came over the network, and from the cache."""
        self._emit, self._model, self._layers = emit, model, layers
        self._downloaded, self._cached, self._clock = downloaded, cached, clock
        self._told: float | None = None
        self._samples: deque[tuple[float, int]] = deque([(clock(), downloaded())])

    def __call__(self, loaded: int, total: int, name: str) -> None:
        """See loader.OnProgress."""
        now = self._clock()
        if loaded < total and self._told is not None and now - self._told < EVERY_S:
            return
        self._told = now
        downloaded = self._downloaded()
        self._samples.append((now, downloaded))
        while len(self._samples) > 2 and now - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()
        then, before = self._samples[0]
        speed = (downloaded - before) / (now - then) if now - then >= 0.5 else None
        self._emit(
            {
                "model": self._model,
                "loaded": loaded,
                "total": total,
                "tensor": name,
                "part": part_of(name, self._layers),
                "downloaded": downloaded,
                "cached": self._cached(),
                "speed": speed,
                "seconds_left": (total - loaded) / speed if speed else None,
            }
        )


def part_of(tensor: str, layers: int) -> str:
    """Say in words which part of a model a tensor belongs to."""
    if layer := _LAYER.match(tensor):
        return f"layer {int(layer[1]) + 1} of {layers}"
    return _PARTS.get(_HALF.sub("", tensor), "final norm")
