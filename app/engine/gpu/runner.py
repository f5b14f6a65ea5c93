"""A `Runner` on WebGPU: two plans over one set of weights and caches, for prompt chunks and for single tokens."""

import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from typing import Any

import numpy as np
import tabgpt_gpu
from numpy.typing import NDArray
from pyodide.ffi import to_js

from app.engine.errors import NonFiniteLogitsError
from app.engine.gpu.ahead import MAX_AHEAD, Ahead
from app.engine.gpu.buffers import COPY_DST, STORAGE, UNIFORM, Buffer
from app.engine.gpu.device import Device
from app.engine.gpu.inspector import GpuInspector
from app.engine.gpu.plan import Fixed, Plan
from app.engine.gpu.results import BAD_LOGITS, OK, UNDECIDED, Drawn, can_sample
from app.engine.gpu.sampler import GpuSampler
from app.engine.gpu.select import Tuning, cache_floats, describe
from app.engine.gpu.tune import can_tune, tuned
from app.engine.gpu.tune import report as tuning_report
from app.engine.gpu.weights import GpuWeights
from app.engine.models import family_of, forward, nest, weight_specs
from app.engine.models.config import Config
from app.engine.models.rope import angle_table
from app.engine.ops.fuse import RULES, FuseLimits, fuse
from app.engine.ops.record import Graph, Model, Weight, padded, record
from app.engine.sampling import Rules
from app.engine.sampling import sample as choose
from app.engine.sampling import top as ranking
from app.engine.weights.spec import merged

CHUNK = 512
"""Tokens of the prompt that one submit takes at most."""


_TIMED_MS = 20.0
"""How long a timed pass should take, so that timestamps' rounding does not matter."""


class GpuRunner:
    """See `SamplingRunner`. Made by `create`."""

    def __init__(self, device: Device, config: Config, weights: GpuWeights, fixed: Fixed, context: int) -> None:
        self.device = device
        self.config = config
        self.weights = weights
        self.n_ctx = context
        self.n_vocab = config.n_vocab
        self.tokens: list[int] = []
        self._fixed = fixed
        self._plans: dict[str, Plan] = {}
        self._sampler: GpuSampler | None = None
        self._inspector: GpuInspector | None = None
        self._drawn = 0
        self.python_seconds = 0.0
        self.submit_seconds = 0.0
        self._ms_per_token: float | None = None
        self._prefill_from = Tuning.prefill_from
        self._rules = tuple(RULES)

    @classmethod
    async def create(
        cls,
        device: Device,
        config: Config,
        weights: GpuWeights,
        *,
        rules: Collection[str] = tuple(RULES),
        tuning: Tuning | None = None,
        chunk: int = CHUNK,
        context: int | None = None,
    ) -> "GpuRunner":
        """Allocate caches, record, fuse, compile and bind both plans. Raises GpuError; then nothing stays allocated.

        `rules` are the fusions to use, `tuning` overrides the adapter's. `context`: positions of the caches, by default
        all that the model knows.
        """
        tuning = tuning or device.tuning()
        context = config.n_ctx if context is None else context
        chunk = min(chunk, context)
        create = device.buffers.create
        device.push_memory_scope()
        fixed = Fixed(
            step=create(32, "activations", UNIFORM | STORAGE | COPY_DST),
            ids=create(4 * chunk, "activations"),
            caches=[create(4 * cache_floats(config, context), "cache") for _ in range(config.n_layer)],
            logits=create(4 * padded(config.n_vocab), "activations"),
            angles=create(0 if config.rope is None else 4 * config.rope.width * context, "activations"),
            unread=create(16, "activations"),
            unwritten=create(16, "activations"),
        )
        runner = cls(device, config, weights, fixed, context)
        runner._write_angles()
        runner._prefill_from = tuning.prefill_from
        runner._rules = tuple(rules)
        try:
            for name, rows in (("prefill", chunk), ("decode", 1)):
                runner._plans[name] = await runner._plan(rows, single=name == "decode", tuning=tuning)
            runner._sampler = await GpuSampler.create(
                device,
                n_vocab=config.n_vocab,
                logits=fixed.logits,
                ids=fixed.ids,
                step=fixed.step,
                ring=max(MAX_AHEAD, context),
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

    def _write_angles(self) -> None:
        if self.config.rope is not None:
            for first in range(0, self.n_ctx, CHUNK):
                table = angle_table(self.config.rope, first, min(first + CHUNK, self.n_ctx))
                self.device.write(self._fixed.angles, table, first * 4 * self.config.rope.width)

    @property
    def length(self) -> int:
        """See `Runner.length`."""
        return len(self.tokens)

    async def feed(self, ids: Sequence[int]) -> None:
        """See `Runner.feed`."""
        assert 0 < len(ids) <= self.n_ctx - self.length, "the cache is full"
        self.device.check()
        began = time.perf_counter()
        start = 0
        while start < len(ids):
            plan = self._plans["prefill" if len(ids) - start >= self._prefill_from else "decode"]
            piece = ids[start : start + plan.rows]
            start += len(piece)
            self.device.write(self._fixed.ids, np.asarray(piece, np.uint32))
            self.device.write(self._fixed.step, np.array([self.length, len(piece), self._drawn, 0], np.uint32))
            self.tokens += piece
            submitting = time.perf_counter()
            plan.submit(rows=len(piece), length=self.length, logits=start == len(ids))
            self.submit_seconds += time.perf_counter() - submitting
        self.python_seconds += time.perf_counter() - began

    async def settle(self) -> None:
        """See `Runner.settle`."""
        await self.device.idle()

    async def logits(self) -> NDArray[np.float32]:
        """See `Runner.logits`."""
        return np.frombuffer(await self.device.read(self._fixed.logits, 4 * self.n_vocab), np.float32)

    async def _plan(self, rows: int, *, single: bool, tuning: Tuning) -> Plan:
        graph = fuse(self._graph(single=single), rules=self._rules, limits=self._limits())
        return await Plan.create(self.device, graph, weights=self.weights, fixed=self._fixed, rows=rows, tuning=tuning)

    def _graph(self, *, single: bool, wrap: Callable[[Model], Model] = lambda model: model) -> Graph:
        specs = merged(weight_specs(self.config))
        params = nest({spec.name: Weight(spec.name, spec.out_shape) for spec in specs})
        return record(wrap(forward(self.config)), params, self.config, single=single, context=self.n_ctx)

    def _limits(self) -> FuseLimits:
        in_parts = [name for name, layout in self.weights.layouts.items() if len(layout.parts) > 1]
        return FuseLimits(self.device.limits["maxComputeWorkgroupStorageSize"], in_parts)

    async def make_plan(
        self,
        rows: int,
        *,
        single: bool,
        fixed: Fixed,
        wrap: Callable[[Model], Model],
        keep: Callable[[Graph], None],
    ) -> Plan:
        """Make a plan for looking into the model: `wrap` sees the model run, `keep` says what of its graph to keep."""
        graph = self._graph(single=single, wrap=wrap)
        keep(graph)
        fuse(graph, limits=self._limits())
        tuning, weights = self._plans["decode"].tuning, self.weights
        return await Plan.create(
            self.device, graph, weights=weights, fixed=fixed, rows=rows, tuning=tuning, purpose="inspection"
        )

    def inspector(self) -> GpuInspector:
        """See `InspectableRunner.inspector`."""
        if self._inspector is None:
            self._inspector = GpuInspector(self, self._fixed)
        return self._inspector

    async def tune(self, precision: str) -> dict[str, Any]:
        """Find the best decode plan for this adapter and use it; returns `tune.tuned`'s report."""
        if not can_tune(self.device, self._weight_bytes()):
            return tuning_report("default", self.device.tuning(), {})

        default = self._plans["decode"]

        async def compare(tuning: Tuning) -> float:
            plan = await self._plan(1, single=True, tuning=tuning)
            try:
                # Clocks drift by more than variants differ, so the default is timed on both sides.
                before = await self._time([default.js], 0, 1 << 20, 1, 1)
                times = [await self._time([plan.js], 0, 1 << 20, 1, 1) for _ in range(2)]
                after = await self._time([default.js], 0, 1 << 20, 1, 1)
            finally:
                plan.free()
            return sum(times) / (before + after)

        tuning, found = await tuned(self.device, self.config, precision, compare)
        if tuning != self._plans["decode"].tuning:
            plan = await self._plan(1, single=True, tuning=tuning)
            self._plans["decode"].free()
            self._plans["decode"] = plan
        return found

    def bytes_per_token(self, length: int) -> tuple[int, int]:
        """See `SamplingRunner.bytes_per_token`."""
        cache = sum(buffer.nbytes for buffer in self._fixed.caches)
        return self._weight_bytes(), cache * length // self.n_ctx

    def _weight_bytes(self) -> int:
        """Bytes of weights that a token reads."""
        # Of tables, and of embeddings that are not the head too, it reads a row.
        looked_up = {spec.name for spec in weight_specs(self.config) if spec.kind == "table"}
        if not self.config.tied:
            looked_up.add(f"{family_of(self.config).embedding}.weight")
        return sum(layout.nbytes for name, layout in self.weights.layouts.items() if name not in looked_up)

    async def _time(self, plans: list[Any], first: int, stop: int, rows: int, length: int) -> float:
        """GPU milliseconds of the dispatches [first, stop) of some plans, repeated for as long as it takes to tell."""

        async def run(repeats: int) -> float:
            timed = tabgpt_gpu.time(self.device.js, to_js(plans), first, stop, repeats, rows, length)
            total = await self.device.arrival(timed)
            return float(total) / repeats

        once = await run(1)
        return once if once > _TIMED_MS else await run(max(1, min(100, int(_TIMED_MS / max(once, 0.05)))))

    def can_sample(self, rules: Rules, top: int) -> bool:
        """See `SamplingRunner.can_sample`."""
        return can_sample(rules, top)

    async def sample(
        self,
        rules: Rules,
        *,
        uniforms: NDArray[np.float32],
        history: Sequence[int],
        top: int = 0,
        depth: int | None = None,
    ) -> AsyncGenerator[list[Drawn], None]:
        """Draw len(uniforms) tokens on the GPU, which runs ahead of whoever consumes them.

        `history` are the tokens in the cache, after whose last one the logits are ready. `depth` is how many tokens are
        submitted before the first of them is read; None adapts it: few at first, so that text appears at once, then as
        many as keep the GPU busy and can be thrown away at once. Yields tokens in groups as they are read back.
        Whatever was computed past the last one yielded is forgotten when the generator is closed.
        """
        sampler = self._sampler
        assert sampler is not None
        assert self.length + len(uniforms) - 1 <= self.n_ctx, "the cache is too short"
        tokens = list(history)
        while len(tokens) - len(history) < len(uniforms):
            done = len(tokens) - len(history)
            plan = sampler.begin(rules, top=top, uniforms=uniforms, history=tokens)
            ahead = Ahead(self.device, self._plans["decode"].js, plan, sampler, self._ms_per_token)
            undecided = False
            async with aclosing(ahead.groups(len(tokens), first=done, stop=len(uniforms), depth=depth)) as groups:
                async for group in groups:
                    kept = []
                    for drawn in group:
                        undecided = drawn.status == UNDECIDED
                        if undecided:
                            break
                        if drawn.status == BAD_LOGITS:
                            await self._raise_bad_logits(tokens)
                        self.tokens = list(tokens)  # what runs ahead of here does not count
                        tokens.append(drawn.id)
                        kept.append(drawn)
                    if kept:
                        yield kept
                    if undecided:
                        break
            self.python_seconds += ahead.python_seconds
            self.submit_seconds += ahead.submit_seconds
            self._ms_per_token = ahead.ms_per_token
            if undecided:
                # The logits have been overwritten since: compute them again, and choose in Python.
                logits = await self._logits_after(tokens)
                chosen = choose(logits, rules, float(uniforms[len(tokens) - len(history)]), tokens)
                ranked = ranking(logits, top) if top else []
                tokens.append(chosen.id)
                yield [Drawn(chosen.id, chosen.logprob, OK, ranked)]
                if len(tokens) - len(history) < len(uniforms):
                    self._drawn = len(tokens) - len(history)
                    try:
                        await self.feed(tokens[-1:])
                    finally:
                        self._drawn = 0

    async def _logits_after(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        self.rewind(len(tokens) - 1)
        await self.feed(tokens[-1:])
        return await self.logits()

    async def _raise_bad_logits(self, tokens: Sequence[int]) -> None:
        choose(await self._logits_after(tokens), Rules(), 0.0)
        raise NonFiniteLogitsError(
            "The model computed NaN or infinite logits once, and finite ones when asked again: the GPU or its driver "
            "may be faulty. Load the model again, or choose the NumPy backend."
        )

    async def gpu_times(self, ids: Sequence[int], new: int) -> dict[str, Any] | None:
        """See `SamplingRunner.gpu_times`. Forgets the cache's contents."""
        if "timestamp-query" not in self.device.features or self._sampler is None:
            return None
        self.rewind(0)
        await self.feed(ids)
        greedy = self._sampler.begin(Rules(temperature=0), top=0, uniforms=np.zeros(1, np.float32), history=ids)
        middle = len(ids) + new // 2
        decode, prefill = self._plans["decode"], self._plans["prefill"]

        async def by_kernel(plan: Any, names: list[str], rows: int, length: int) -> dict[str, float]:
            # All dispatches of a name are timed together: one by one they would take seconds.
            places: dict[str, list[int]] = {}
            for index, name in enumerate(names):
                places.setdefault(name, []).append(index)
            return {
                name: await self._time([tabgpt_gpu.pick(plan, to_js(some))], 0, 1 << 20, rows, length)
                for name, some in places.items()
            }

        kernels = await by_kernel(decode.js, [describe(dispatch) for dispatch in decode.dispatches], 1, middle)
        kernels |= await by_kernel(greedy, ["sample"] * self._sampler.dispatches(greedy), 1, middle)
        weights = self._weight_bytes()
        ms = await self._time([decode.js, greedy], 0, 1 << 20, 1, middle)
        # As `feed` would read it: in chunks, or a few tokens one after the other.
        tiled = len(ids) >= self._prefill_from
        plan, rows = (prefill, min(len(ids), prefill.rows)) if tiled else (decode, 1)
        times = len(ids) / rows
        names = [describe(dispatch) for dispatch in plan.dispatches]
        by_name = await by_kernel(plan.js, names, rows, rows) if tiled else kernels.copy()
        by_name.pop("sample", None)
        prefill_ms = times * await self._time([plan.js], 0, 1 << 20, rows, rows)
        self.rewind(0)
        return {
            "prefill_ms": prefill_ms,
            "prefill_kernels_ms": {name: times * value for name, value in by_name.items()},
            "prefill_dispatches": plan.count * -(-len(ids) // rows),
            "ms_per_token": ms,
            "kernels_ms": kernels,
            "dispatches_per_token": decode.count + self._sampler.dispatches(greedy),
            "weight_bytes_per_token": weights,
            "weights_gb_per_second": weights / ms / 1e6,
        }

    def rewind(self, length: int) -> None:
        """See `Runner.rewind`."""
        del self.tokens[length:]

    def memory(self) -> dict[str, int]:
        """See `Runner.memory`."""
        return self.device.buffers.bytes_by_purpose()

    def plan(self, name: str) -> Plan:
        """The "prefill" or "decode" plan, for looking at."""
        return self._plans[name]

    def free(self) -> None:
        """See `Runner.free`."""
        if self._inspector is not None:
            self._inspector.free()
        for plan in self._plans.values():
            plan.free()
        self._plans.clear()
        if self._sampler is not None:
            self._sampler.free()
        for buffer in [*self._fixed_buffers(), *self.weights.buffers()]:
            self.device.buffers.destroy(buffer)

    def _fixed_buffers(self) -> list[Buffer]:
        fixed = self._fixed
        return [
            *(fixed.step, fixed.ids, *fixed.caches, fixed.logits, fixed.angles),
            *(fixed.unread, fixed.unwritten),
        ]
