"""What the token loop needs from a loaded model, whichever backend computes it."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from app.engine.sampling import Rules


class Runner(Protocol):
    """A model with its weights and one KV cache. Positions [0, length) of the cache are filled.

    `ops.eager`'s runner computes in NumPy, `gpu.plan`'s on WebGPU; `generate.py` cannot tell them apart.
    """

    n_ctx: int
    """Positions that the cache holds."""
    n_vocab: int
    """Length of a logits vector."""

    @property
    def length(self) -> int:
        """How many tokens are in the cache."""

    @property
    def tokens(self) -> list[int]:
        """Which they are."""

    async def feed(self, ids: Sequence[int]) -> None:
        """Append `ids` (at least one; `length + len(ids) <= n_ctx`) and compute the logits after the last of them."""

    async def settle(self) -> None:
        """Wait until what was fed is computed, so that stopping here wastes nothing."""

    async def logits(self) -> NDArray[np.float32]:
        """Return the logits [n_vocab] after the last token that was fed."""

    def rewind(self, length: int) -> None:
        """Forget all cached positions from `length` on."""

    def memory(self) -> dict[str, int]:
        """Bytes by purpose: weights, cache, activations, staging."""

    def free(self) -> None:
        """Release everything. The runner is dead afterwards."""


@runtime_checkable
class SamplingRunner(Runner, Protocol):
    """A runner that can choose tokens itself, running ahead of Python."""

    python_seconds: float
    """Time that `feed` and `sample` have spent in Python so far, not waiting."""

    submit_seconds: float
    """The part of it that recording and submitting commands took."""

    def can_sample(self, rules: Rules, top: int) -> bool:
        """Whether `sample` knows these rules and can report the `top` likeliest tokens."""

    def sample(
        self,
        rules: Rules,
        *,
        uniforms: NDArray[np.float32],
        history: Sequence[int],
        top: int = 0,
        depth: int | None = None,
    ) -> AsyncGenerator[list[Any], None]:
        """Draw a token for each of `uniforms`, by the rules of `sampling.sample`, in groups of {id, logprob, top}."""

    def bytes_per_token(self, length: int) -> tuple[int, int]:
        """What a token reads of the weights and, at this length, of the cache."""

    async def gpu_times(self, ids: Sequence[int], new: int) -> dict[str, Any] | None:
        """GPU time of reading `ids` and writing `new` tokens, by kernel; None without timestamps."""
