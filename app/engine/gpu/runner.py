"""A `Runner` on WebGPU: two plans over one set of weights and caches, for prompt chunks and for single tokens."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from app.engine.gpu.buffers import COPY_DST, STORAGE, UNIFORM, Buffer
from app.engine.gpu.device import Device
from app.engine.gpu.plan import Fixed, Plan
from app.engine.gpu.select import Tuning, cache_floats
from app.engine.gpu.weights import GpuWeights
from app.engine.models.config import GPT2Config
from app.engine.models.gpt2 import gpt2, nest, weight_specs
from app.engine.ops.fuse import RULES, FuseLimits, fuse
from app.engine.ops.record import Graph, Weight, record

CHUNK = 512
"""Tokens of the prompt that one submit takes at most."""


class GpuRunner:
    """See `Runner`. Made by `create`."""

    def __init__(self, device: Device, config: GPT2Config, weights: GpuWeights, fixed: Fixed) -> None:
        self.device = device
        self.config = config
        self.weights = weights
        self.n_ctx = config.n_ctx
        self.n_vocab = config.n_vocab
        self.length = 0
        self._fixed = fixed
        self._plans: dict[str, Plan] = {}
        self._last: Plan | None = None

    @classmethod
    async def create(
        cls,
        device: Device,
        config: GPT2Config,
        weights: GpuWeights,
        *,
        rules: Collection[str] = tuple(RULES),
        tuning: Tuning | None = None,
        chunk: int = CHUNK,
    ) -> "GpuRunner":
        """Allocate caches, record, fuse, compile and bind both plans. Raises GpuError; then nothing stays allocated.

        `rules` are the fusions to use, `tuning` overrides the adapter's.
        """
        tuning = tuning or device.tuning()
        chunk = min(chunk, config.n_ctx)
        create = device.buffers.create
        device.push_memory_scope()
        fixed = Fixed(
            step=create(32, "activations", UNIFORM | STORAGE | COPY_DST),
            ids=create(4 * chunk, "activations"),
            caches=[create(4 * cache_floats(config), "cache") for _ in range(config.n_layer)],
            unread=create(16, "activations"),
            unwritten=create(16, "activations"),
        )
        runner = cls(device, config, weights, fixed)
        try:
            limits = FuseLimits(device.limits["maxComputeWorkgroupStorageSize"], tuning.split)
            for name, rows in (("prefill", chunk), ("decode", 1)):
                graph = fuse(_graph(config, single=name == "decode"), rules=rules, limits=limits)
                runner._plans[name] = await Plan.create(
                    device, graph, weights=weights, fixed=fixed, rows=rows, tuning=tuning
                )
        except BaseException:
            await device.js.popErrorScope()
            runner.free()
            raise
        try:
            await device.pop_memory_scope("making room for the KV cache")
        except BaseException:
            runner.free()
            raise
        return runner

    async def feed(self, ids: Sequence[int]) -> None:
        """See `Runner.feed`."""
        assert 0 < len(ids) <= self.n_ctx - self.length, "the cache is full"
        self.device.check()
        start = 0
        while start < len(ids):
            plan = self._plans["decode" if len(ids) - start == 1 else "prefill"]
            piece = ids[start : start + plan.rows]
            start += len(piece)
            self.device.write(self._fixed.ids, np.asarray(piece, np.uint32))
            self.device.write(self._fixed.step, np.array([self.length, len(piece), 0, 0], np.uint32))
            self.length += len(piece)
            plan.submit(rows=len(piece), length=self.length, logits=start == len(ids))
            self._last = plan

    async def logits(self) -> NDArray[np.float32]:
        """See `Runner.logits`."""
        assert self._last is not None, "feed() comes before logits()"
        buffer = self._last.buffer(self._last.graph.result)
        return np.frombuffer(await self.device.read(buffer, 4 * self.n_vocab), np.float32)

    def rewind(self, length: int) -> None:
        """See `Runner.rewind`."""
        self.length = min(self.length, length)

    def memory(self) -> dict[str, int]:
        """See `Runner.memory`."""
        return self.device.buffers.bytes_by_purpose()

    def plan(self, name: str) -> Plan:
        """The "prefill" or "decode" plan, for looking at."""
        return self._plans[name]

    def free(self) -> None:
        """See `Runner.free`."""
        for plan in self._plans.values():
            plan.free()
        self._plans.clear()
        for buffer in [*self._fixed_buffers(), *self.weights.buffers()]:
            self.device.buffers.destroy(buffer)

    def _fixed_buffers(self) -> list[Buffer]:
        fixed = self._fixed
        return [fixed.step, fixed.ids, *fixed.caches, fixed.unread, fixed.unwritten]


def _graph(config: GPT2Config, *, single: bool) -> Graph:
    shapes = {spec.name: spec.shape[::-1] if spec.kind == "conv1d" else spec.shape for spec in weight_specs(config)}
    params = nest({name: Weight(name, shape) for name, shape in shapes.items()})
    return record(gpt2, params, config, single=single)
