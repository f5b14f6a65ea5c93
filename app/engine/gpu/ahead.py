"""Keeps the GPU busy: submits tokens before the earlier ones are read back, and reads them back in groups.

Chromium answers a readback at once if the GPU is idle by then, and otherwise up to 3 ms later, since it polls. At a
third of a millisecond a token, what counts is never to wait.
"""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator
from typing import Any

import tabgpt_gpu

from app.engine.gpu.buffers import COPY_DST, MAP_READ, Buffer
from app.engine.gpu.device import Device
from app.engine.gpu.results import RESULT_WORDS, Drawn, parse
from app.engine.gpu.sampler import GpuSampler

MAX_AHEAD = 128
"""Tokens in flight at most."""
STOP_MS = 60.0
"""What is in flight should be done in this time, so that Stop answers within a tenth of a second."""
_GROUPS = 8
"""Submits over which the tokens in flight are spread: the next is issued while the others still run."""


class Ahead:
    """One run of tokens, each drawn by the plan `sampler_plan` from the logits of the plan `model_plan`."""

    def __init__(
        self, device: Device, model_plan: Any, sampler_plan: Any, sampler: GpuSampler, ms_per_token: float | None
    ) -> None:
        """`ms_per_token` is an estimate from an earlier run, if there was one."""
        self._device = device
        self._model = model_plan
        self._plan = sampler_plan
        self._sampler = sampler
        self._staging: list[Buffer] = []
        self.ms_per_token = ms_per_token
        self.python_seconds = 0.0
        self.submit_seconds = 0.0

    async def groups(
        self, length: int, *, first: int, stop: int, depth: int | None
    ) -> AsyncGenerator[list[Drawn], None]:
        """Yield tokens `first` to `stop` of a generation, where the cache holds `length` and the logits are ready.

        `depth` tokens are in flight; None adapts to how long one takes.
        """
        pending: deque[tuple[asyncio.Future[Any], Buffer]] = deque()
        submitted, received = first, first
        last = time.perf_counter()
        try:
            while received < stop:
                busy = time.perf_counter()
                room = depth or self._room()
                size = max(1, -(-room // _GROUPS))
                while submitted < stop and (not pending or submitted - received + size <= room):
                    steps = 1 if submitted == first else min(size, stop - submitted)
                    # The first token comes from logits that are there already.
                    model = None if submitted == first else self._model
                    pending.append(self._submit(model, steps, length + submitted - first - 1, submitted))
                    submitted += steps
                future, staging = pending.popleft()
                self.python_seconds += time.perf_counter() - busy
                data = await self._device.arrival(future)
                busy = time.perf_counter()
                self._staging.append(staging)
                group = parse(data.to_bytes())
                now = time.perf_counter()
                self._note(1000 * (now - last) / len(group))
                last = now
                received += len(group)
                self.python_seconds += now - busy
                yield group
        finally:
            # Buffers must not be mapped when they are used or freed next.
            await asyncio.gather(*(future for future, _ in pending), return_exceptions=True)
            for buffer in [*self._staging, *(staging for _, staging in pending)]:
                self._device.buffers.destroy(buffer)

    def _submit(self, model: Any, steps: int, length: int, drawn: int) -> tuple[asyncio.Future[Any], Buffer]:
        nbytes = 4 * RESULT_WORDS * MAX_AHEAD
        staging = (
            self._staging.pop()
            if self._staging
            else self._device.buffers.create(nbytes, "staging", MAP_READ | COPY_DST)
        )
        sampler = self._sampler
        start = time.perf_counter()
        promise = tabgpt_gpu.decode(
            self._device.js,
            model,
            self._plan,
            steps,
            length,
            sampler.results.js,
            drawn % sampler.ring,
            sampler.ring,
            4 * RESULT_WORDS,
            staging.js,
        )
        self.submit_seconds += time.perf_counter() - start
        return asyncio.ensure_future(promise), staging

    def _room(self) -> int:
        """Tokens that may be in flight."""
        if self.ms_per_token is None:
            return 2
        return max(1, min(MAX_AHEAD, int(STOP_MS / max(self.ms_per_token, 0.01))))

    def _note(self, ms: float) -> None:
        # The first readings are waits for an idle pipeline, and too long; the estimate falls at once and rises slowly.
        self.ms_per_token = (
            ms if self.ms_per_token is None else min(ms, self.ms_per_token + 0.25 * (ms - self.ms_per_token))
        )
