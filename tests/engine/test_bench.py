from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.bench import bench
from app.engine.errors import OptionError


class StillRunner:
    """Answers at once with zeros."""

    n_ctx, n_vocab, length = 64, 16, 0

    @property
    def tokens(self) -> list[int]:
        return [0] * self.length

    async def feed(self, ids: Sequence[int]) -> None:
        self.length += len(ids)

    async def settle(self) -> None:
        pass

    async def logits(self) -> NDArray[np.float32]:
        return np.zeros(self.n_vocab, np.float32)

    def rewind(self, length: int) -> None:
        self.length = length

    def memory(self) -> dict[str, int]:
        return {}

    def free(self) -> None:
        pass


async def test_a_prompt_is_measured() -> None:
    report = await bench(StillRunner(), {"prompt_tokens": 4, "new_tokens": 8, "runs": 2, "depth": None})
    assert report["prompt_tokens"] == 4
    assert report["prefill_ms"] >= 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"runs": 0},
        {"runs": 1.5},
        {"depth": 0},
        {"depth": "deep"},
        {"prompt_tokens": float("nan")},
        {"prompt_tokens": 0},
        {"prompt_tokens": "many"},
        {"new_tokens": 1},
        {"new_tokens": 1e9},
        {"prompt_tokens": 40, "new_tokens": 40},
        {"speed": 1},
        "fast",
    ],
)
async def test_options_out_of_range_are_refused(wrong: Any) -> None:
    with pytest.raises(OptionError):
        await bench(StillRunner(), {"new_tokens": 8} | wrong if isinstance(wrong, dict) else wrong)
