"""Where a token's time goes, for a user's own text: quick enough to be asked for by the way.

`bench` measures thoroughly, with random tokens; this takes a second.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, cast

from app.engine.errors import CancelledError, OptionError
from app.engine.ops.eager import EagerOps, EagerRunner
from app.engine.options import parse_ids, whole
from app.engine.runner import Runner, SamplingRunner
from app.engine.sampling import Rules, sample
from app.engine.token_source import uniforms
from app.engine.tokenizer import Tokenizer

NEW_TOKENS = 16
QUICK_MS = 500.0
"""On a slow machine less is measured, rather than for longer."""


class Timed:
    """`ops.Ops` that add up the seconds of each operation."""

    def __init__(self, ops: Any, seconds: dict[str, float]) -> None:
        self._ops = ops
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._ops, name)
        if not callable(operation):
            return operation

        def run(*args: Any, **named: Any) -> Any:
            start = time.perf_counter()
            result = operation(*args, **named)
            self._seconds[name] += time.perf_counter() - start
            return result

        return run


async def profile(
    runner: Runner, tokenizer: Tokenizer, raw: Mapping[str, Any], *, cancelled: Callable[[], bool] = lambda: False
) -> dict[str, Any]:
    """Read a text (option `prompt` or `ids`) and write `new_tokens` greedily; say where the time went, in milliseconds.

    prefill {tokens, ms, python_ms, submit_ms, waiting_ms, gpu_ms, kernels_ms, dispatches}: of the whole text. decode
    has weight_bytes, cache_bytes and gb_per_second, too, and is of one token. `ms` is by the clock. python_ms is
    Python's share, in which submit_ms, what recording and submitting the commands took, is not counted; waiting_ms the
    rest. gpu_ms is how long the GPU was busy and kernels_ms with what, None without timestamps; on NumPy kernels_ms are
    its operations. bound: "gpu" if it was busy for more than half of the time, "cpu" if not, None if that is not
    known. memory: bytes by purpose. The cache's contents are forgotten.

    Raises OptionError and CancelledError.
    """
    if not isinstance(raw, Mapping) or not raw.keys() <= {"prompt", "ids", "new_tokens"}:
        raise OptionError("profile takes the options prompt, ids, new_tokens.")
    ids = tokenizer.encode(str(raw.get("prompt") or "")) if raw.get("ids") is None else list(raw["ids"])
    ids = list(parse_ids("ids", ids, runner.n_vocab))
    new = whole("new_tokens", raw.get("new_tokens") or NEW_TOKENS, 2, 1024)
    if not 1 <= len(ids) <= runner.n_ctx - 2:
        raise OptionError(f"There must be 1 to {runner.n_ctx - 2} tokens to measure with, not {len(ids)}.")
    new = min(new, runner.n_ctx - len(ids))

    async def turn() -> None:
        await asyncio.sleep(0)
        if cancelled():
            raise CancelledError("Measuring was stopped.")

    if isinstance(runner, SamplingRunner):
        report = await _on_gpu(runner, ids, new, turn)
    else:
        report = await _in_numpy(cast(EagerRunner, runner), ids, new, turn)
    return {**report, "memory": runner.memory()}


async def _on_gpu(runner: SamplingRunner, ids: list[int], new: int, turn: Any) -> dict[str, Any]:
    async def read() -> dict[str, float]:
        await turn()
        python, submit, start = runner.python_seconds, runner.submit_seconds, time.perf_counter()
        runner.rewind(0)
        await runner.feed(ids)
        await runner.logits()
        return _shares(time.perf_counter() - start, runner.python_seconds - python, runner.submit_seconds - submit)

    prefill = await read()
    if prefill["ms"] < QUICK_MS:
        prefill = await read()  # the first time also warms up
    python, submit = runner.python_seconds, runner.submit_seconds
    arrivals: list[tuple[float, int]] = []
    async with aclosing(runner.sample(Rules(temperature=0), uniforms=uniforms(0, new), history=ids)) as groups:
        async for group in groups:
            arrivals.append((time.perf_counter(), len(group)))
            if len(arrivals) > 2 and 1000 * (arrivals[-1][0] - arrivals[0][0]) > QUICK_MS:
                break
            await turn()
    new = sum(count for _, count in arrivals)
    (start, first), (end, _) = arrivals[0], arrivals[-1]
    decode = _shares(
        (end - start) / max(1, new - first),
        (runner.python_seconds - python) / new,
        (runner.submit_seconds - submit) / new,
    )
    await turn()
    gpu = await runner.gpu_times(ids, new)
    gpu_ms = None if gpu is None else gpu["ms_per_token"]
    weights, cache = runner.bytes_per_token(len(ids) + new // 2)
    return {
        "prefill": {
            "tokens": len(ids),
            **prefill,
            "gpu_ms": None if gpu is None else gpu["prefill_ms"],
            "kernels_ms": None if gpu is None else gpu["prefill_kernels_ms"],
            "dispatches": None if gpu is None else gpu["prefill_dispatches"],
            "bound": None if gpu is None else _bound(gpu["prefill_ms"], prefill["ms"]),
        },
        "decode": {
            "tokens": new,
            **decode,
            "gpu_ms": gpu_ms,
            "kernels_ms": None if gpu is None else gpu["kernels_ms"],
            "dispatches": None if gpu is None else gpu["dispatches_per_token"],
            "weight_bytes": weights,
            "cache_bytes": cache,
            "gb_per_second": (weights + cache) / (gpu_ms or decode["ms"]) / 1e6,
            "bound": None if gpu_ms is None else _bound(gpu_ms, decode["ms"]),
        },
    }


def _shares(seconds: float, python: float, submit: float) -> dict[str, float]:
    """Parts of a time by the clock; `submit` is a part of `python`."""
    return {
        "ms": 1000 * seconds,
        "python_ms": 1000 * max(0.0, python - submit),
        "submit_ms": 1000 * submit,
        "waiting_ms": 1000 * max(0.0, seconds - python),
    }


def _bound(gpu_ms: float, ms: float) -> str:
    return "gpu" if gpu_ms > ms / 2 else "cpu"


async def _in_numpy(runner: EagerRunner, ids: list[int], new: int, turn: Any) -> dict[str, Any]:
    async def read(pieces: list[int]) -> tuple[float, dict[str, float]]:
        seconds: dict[str, float] = defaultdict(float)
        start = time.perf_counter()
        for first in range(0, len(pieces), 16):
            await turn()
            runner.take(pieces[first : first + 16], Timed(EagerOps(runner.length), seconds))
        return 1000 * (time.perf_counter() - start), {name: 1000 * value for name, value in seconds.items()}

    runner.rewind(0)
    prefill_ms, prefill_kernels = await read(ids)
    start = time.perf_counter()
    kernels: dict[str, float] = defaultdict(float)
    new = min(new, 4)
    for _ in range(new):
        chosen = sample(await runner.logits(), Rules(temperature=0), 0.0)
        _, found = await read([chosen.id])
        for name, value in found.items():
            kernels[name] += value / new
    ms = 1000 * (time.perf_counter() - start) / new
    memory = runner.memory()
    cache = memory["cache"] * runner.length // runner.n_ctx
    return {
        "prefill": {
            "tokens": len(ids),
            **_shares(prefill_ms / 1000, prefill_ms / 1000, 0.0),
            "gpu_ms": None,
            "kernels_ms": prefill_kernels,
            "dispatches": 0,
            "bound": "cpu",
        },
        "decode": {
            "tokens": new,
            **_shares(ms / 1000, ms / 1000, 0.0),
            "gpu_ms": None,
            "kernels_ms": dict(kernels),
            "dispatches": 0,
            "weight_bytes": memory["weights"],
            "cache_bytes": cache,
            "gb_per_second": (memory["weights"] + cache) / ms / 1e6,
            "bound": "cpu",
        },
    }
