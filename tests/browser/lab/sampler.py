"""Draws tokens with the GPU sampler from given logits, and runs whole generations ahead."""

from base64 import b64decode
from contextlib import aclosing
from math import isfinite
from typing import Any

import numpy as np
import tabgpt_gpu

from app.engine.gpu.ahead import MAX_AHEAD
from app.engine.gpu.buffers import COPY_DST, MAP_READ, STORAGE, UNIFORM
from app.engine.gpu.results import RESULT_WORDS, parse
from app.engine.gpu.sampler import GpuSampler
from app.engine.sampling import Rules
from tests.browser.lab.kernels import device
from tests.browser.lab.models import load


async def draws(
    *, logits: str, rules: dict[str, Any], uniforms: list[float], history: list[int], top: int = 0
) -> list[Any]:
    """[id, logprob, status, top] for each uniform, from the same logits each time."""
    gpu = await device()
    values = np.frombuffer(b64decode(logits), np.float32)
    create = gpu.buffers.create
    buffers = [create(4 * values.size, "test"), create(16, "test"), create(32, "test", UNIFORM | STORAGE | COPY_DST)]
    gpu.write(buffers[0], values)
    gpu.write(buffers[2], np.array([5, 3, 0, 0], np.uint32))
    ring = len(uniforms)
    sampler = await GpuSampler.create(
        gpu, n_vocab=values.size, logits=buffers[0], ids=buffers[1], step=buffers[2], ring=ring
    )
    plan = sampler.begin(Rules(**rules), top=top, uniforms=np.array(uniforms, np.float32), history=history)
    staging = create(4 * RESULT_WORDS * MAX_AHEAD, "test", MAP_READ | COPY_DST)
    result = []
    for start in range(0, ring, MAX_AHEAD):
        steps = min(MAX_AHEAD, ring - start)
        size = 4 * RESULT_WORDS
        data = await tabgpt_gpu.decode(gpu.js, None, plan, steps, 0, sampler.results.js, start, ring, size, staging.js)
        result += [[d.id, d.logprob if isfinite(d.logprob) else None, d.status, d.top] for d in parse(data.to_bytes())]
    gpu.check()
    for buffer in [*buffers, staging]:
        gpu.buffers.destroy(buffer)
    sampler.free()
    return result


async def generations(
    *, url: str, ids: list[int], rules: dict[str, Any], uniforms: list[float], depths: list[int | None], stop_after: int
) -> dict[str, Any]:
    """The same generation at several depths, and once broken off after `stop_after` tokens and continued."""
    runner = await load(url, precision="f32")
    numbers = np.array(uniforms, np.float32)
    runs = []
    try:
        for depth in depths:
            runner.rewind(0)
            await runner.feed(ids)
            tokens = []
            async for group in runner.sample(Rules(**rules), uniforms=numbers, history=ids, depth=depth):
                tokens += [drawn.id for drawn in group]
            runs.append(tokens)
        runner.rewind(0)
        await runner.feed(ids)
        broken: list[int] = []
        async with aclosing(runner.sample(Rules(**rules), uniforms=numbers, history=ids, depth=16)) as groups:
            async for group in groups:
                broken += [drawn.id for drawn in group]
                if len(broken) >= stop_after:
                    break
        length = runner.length
        history = [*ids, *broken]
        await runner.feed(broken[-1:])
        async for group in runner.sample(Rules(**rules), uniforms=numbers[len(broken) :], history=history):
            broken += [drawn.id for drawn in group]
        memory = runner.memory()
    finally:
        runner.free()
    return {"runs": runs, "broken": broken, "length": length, "memory": memory}
