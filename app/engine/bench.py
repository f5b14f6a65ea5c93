"""Measures a loaded model: how long a prompt and a token take, and where the time goes."""

import time
from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np

from app.engine.errors import OptionError
from app.engine.options import MAX_DEPTH, whole
from app.engine.runner import Runner, SamplingRunner
from app.engine.sampling import Rules
from app.engine.token_source import uniforms

DEFAULTS = {"prompt_tokens": 16, "new_tokens": 128, "depth": None, "runs": 3}
MAX_RUNS = 1000
RULES: dict[str, Rules] = {"greedy": Rules(temperature=0), "top_k 40, top_p 0.95": Rules(top_k=40, top_p=0.95)}


async def bench(runner: Runner, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Read `prompt_tokens` random tokens and write `new_tokens`, `runs` times; report medians, in milliseconds.

    prefill_ms: until the prompt's first result is read back. For each of RULES, and for one token at a time with a
    readback each ("depth 1"): ms_per_token, its p95 over groups, python_ms_per_token (encoding, submitting, parsing).
    `gpu`, where the device has timestamps: prefill_ms, ms_per_token, and each kernel's share of a token.

    Raises OptionError.
    """
    if not isinstance(raw, Mapping) or not raw.keys() <= DEFAULTS.keys():
        raise OptionError(f"bench takes the options {', '.join(DEFAULTS)}.")
    options = DEFAULTS | {name: value for name, value in raw.items() if value is not None}
    count = whole("prompt_tokens", options["prompt_tokens"], 1, runner.n_ctx - 2)
    new = whole("new_tokens", options["new_tokens"], 2, runner.n_ctx - 1)
    runs = whole("runs", options["runs"], 1, MAX_RUNS)
    depth = None if options["depth"] is None else whole("depth", options["depth"], 1, MAX_DEPTH)
    if count + new > runner.n_ctx:
        raise OptionError(f"prompt_tokens and new_tokens must fit the context of {runner.n_ctx} together.")
    ids = np.random.default_rng(0).integers(runner.n_vocab, size=count).tolist()

    async def prompt() -> None:
        runner.rewind(0)
        await runner.feed(ids)
        await runner.logits()

    await prompt()  # the first time compiles
    report: dict[str, Any] = {
        "prompt_tokens": count,
        "new_tokens": new,
        "prefill_ms": await _median_ms(prompt, runs),
    }
    if isinstance(runner, SamplingRunner):
        for name, rules in RULES.items():
            report[name] = await _decode(runner, ids, rules, new, depth, runs)
        few = min(new, 32)
        report["depth 1"] = await _decode(runner, ids, RULES["greedy"], few, 1, runs)
        report["gpu"] = await runner.gpu_times(ids, new)
    return report


async def _decode(
    runner: SamplingRunner, ids: list[int], rules: Rules, new: int, depth: int | None, runs: int
) -> dict[str, float]:
    means, gaps, python = [], [], []
    for _ in range(runs):
        runner.rewind(0)
        await runner.feed(ids)
        spent = runner.python_seconds
        groups = runner.sample(rules, uniforms=uniforms(0, new), history=ids, depth=depth)
        arrivals = [(time.perf_counter(), len(group)) async for group in groups]
        python.append(1000 * (runner.python_seconds - spent) / new)
        (start, first), (end, _) = arrivals[0], arrivals[-1]
        means.append(1000 * (end - start) / (new - first))
        pairs = pairwise(arrivals)
        gaps += [1000 * (later - earlier) / size for (earlier, _), (later, size) in pairs]
    return {
        "ms_per_token": median(means),
        "p95_ms_per_token": float(np.percentile(gaps, 95)),
        "python_ms_per_token": median(python),
    }


async def _median_ms(work: Callable[[], Awaitable[None]], runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        await work()
        times.append(1000 * (time.perf_counter() - start))
    return median(times)
