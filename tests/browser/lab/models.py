"""Runs whole models through their GPU plans."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np

from app.engine.errors import EngineError
from app.engine.gpu.device import open_device
from app.engine.gpu.runner import GpuRunner
from app.engine.gpu.select import Tuning
from app.engine.gpu.weights import GpuSink, GpuWeights
from app.engine.models import weight_specs
from app.engine.ops.eager import EagerRunner, NumpySink
from app.engine.ops.fuse import RULES
from app.engine.ops.record import padded
from app.engine.weights.browser import FetchTransport
from app.engine.weights.hub import open_source
from app.engine.weights.loader import open_checkpoint, stream
from app.engine.weights.quantize import dequantize, quantize
from app.engine.weights.spec import merged
from tests.browser.lab.kernels import device


async def load(
    url: str,
    *,
    precision: str,
    limits: str = "adapter",
    rules: list[str] | None = None,
    tuning: dict[str, Any] | None = None,
    max_binding: int | None = None,
    piece_bytes: int = 1 << 24,
    chunk: int = 512,
) -> GpuRunner:
    """Load the model in the folder at `url`."""
    gpu = await device(limits)
    source = open_source(url, transport=FetchTransport())
    checkpoint = await open_checkpoint(source)
    specs = weight_specs(checkpoint.config)
    sink = GpuSink(gpu, specs, precision=precision, max_piece=piece_bytes, max_binding=max_binding)
    try:
        await sink.prepare()
        await stream(checkpoint, specs, sink, source=source, piece_bytes=piece_bytes)
        weights = await sink.finish()
    except BaseException:
        sink.abort()
        raise
    return await GpuRunner.create(
        gpu,
        checkpoint.config,
        weights,
        rules=RULES if rules is None else rules,
        # A software adapter would rather read short prompts token by token; here the tiled kernels are wanted.
        tuning=replace(gpu.tuning(), prefill_from=2) if tuning is None else Tuning(**tuning),
        chunk=chunk,
    )


async def answers(*, url: str, prompts: list[list[int]], greedy: int, **options: Any) -> dict[str, Any]:
    """For each prompt its last logits and its greedy continuation; then the memory, with the model and without."""
    runner = await load(url, **options)
    results = []
    try:
        for ids in prompts:
            runner.rewind(0)
            await runner.feed(ids)
            logits = await runner.logits()
            continued = [int(logits.argmax())]
            while len(continued) < greedy:
                await runner.feed(continued[-1:])
                continued.append(int((await runner.logits()).argmax()))
            results.append({"logits": logits.astype(float).tolist(), "greedy": continued})
        dispatches = {name: runner.plan(name).count for name in ("prefill", "decode")}
        memory = runner.memory()
    finally:
        runner.free()
    return {"results": results, "dispatches": dispatches, "memory": memory, "memory_after": runner.memory()}


async def quantised_differences(*, url: str, prompts: list[list[int]], precision: str) -> list[float]:
    """The root mean square by which the last logits differ from NumPy's with weights quantised in NumPy."""
    source = open_source(url, transport=FetchTransport())
    checkpoint = await open_checkpoint(source)
    specs = weight_specs(checkpoint.config)
    sink = NumpySink(checkpoint.config)
    await stream(checkpoint, specs, sink, source=source)
    for spec in merged(specs):
        if spec.kind == "matrix":
            weight = sink.params[spec.name]
            width = weight.shape[1]
            stored = np.pad(weight, ((0, 0), (0, padded(width) - width)))
            sink.params[spec.name] = dequantize(*quantize(stored, precision), precision)[:, :width]
    reference = EagerRunner(checkpoint.config, sink.params)
    runner = await load(url, precision=precision)
    differences = []
    try:
        for ids in prompts:
            for each in (runner, reference):
                each.rewind(0)
                await each.feed(ids)
            difference = await runner.logits() - await reference.logits()
            differences.append(float(np.sqrt(np.square(difference).mean())))
    finally:
        runner.free()
    return differences


async def reload(*, url: str, times: int) -> list[dict[str, int]]:
    """What is allocated after each of several loads and unloads."""
    seen = []
    for _ in range(times):
        runner = await load(url, precision="f16")
        await runner.feed([1, 2, 3])
        await runner.logits()
        runner.free()
        seen.append(runner.memory())
    return seen


async def too_large() -> str:
    """The name and message of the error when a buffer cannot be had."""
    gpu = await open_device(limits="adapter")
    gpu.push_memory_scope()
    buffers = [gpu.buffers.create(gpu.max_binding, "test") for _ in range(200)]
    try:
        await gpu.pop_memory_scope("testing")
    except EngineError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        for buffer in buffers:
            gpu.buffers.destroy(buffer)
        gpu.destroy()
    return "no error"


async def split_invariance(*, url: str, ids: list[int], cuts: list[int], chunk: int) -> float:
    """The largest difference in the last logits between feeding `ids` at once and in pieces."""
    runner = await load(url, precision="f32", chunk=chunk)
    try:
        await runner.feed(ids)
        whole = await runner.logits()
        runner.rewind(0)
        edges = [0, *cuts, len(ids)]
        for start, stop in itertools.pairwise(edges):
            await runner.feed(ids[start:stop])
        return float(np.abs(await runner.logits() - whole).max())
    finally:
        runner.free()


async def tune(*, url: str, precision: str, tunings: list[dict[str, Any]], prompts: list[int]) -> list[Any]:
    """GPU times of one set of weights under several tunings, after prompts of several lengths."""
    first = await load(url, precision=precision)
    gpu, config, weights = first.device, first.config, first.weights
    first.weights = GpuWeights()
    first.free()
    results = []
    for tuning in tunings:
        base = gpu.tuning()
        runner = await GpuRunner.create(gpu, config, weights, tuning=replace(base, **tuning))
        for count in prompts:
            times = await runner.gpu_times(list(range(count)), 2)
            results.append([tuning, count, times])
        runner.weights = GpuWeights()
        runner.free()
    for buffer in weights.buffers():
        gpu.buffers.destroy(buffer)
    return results
