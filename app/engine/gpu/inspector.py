"""Looks into a model on the GPU by plans whose tensors are kept. The plans that generate know nothing of it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tabgpt_gpu
from numpy.typing import NDArray
from pyodide.ffi import to_js

from app.engine.gpu.buffers import Buffer
from app.engine.gpu.kernels import Kernel
from app.engine.gpu.plan import Fixed, Plan
from app.engine.gpu.select import attention_map, head_dim_padded
from app.engine.ops.record import Graph, Model, Tensor, padded
from app.engine.ops.tap import PARTS, Rows, Tap

if TYPE_CHECKING:
    from app.engine.gpu.runner import GpuRunner

Array = NDArray[np.float32]

CHUNK = 128
"""Tokens of a step: each keeps its residual stream and queries in every layer."""
MAP_BYTES = 1 << 24
"""Attention weights that are computed and read at once."""
ALIGN = 256


class GpuInspector:
    """See `inspection.Inspector`. Its plans are made when they are first needed, and kept until `free`."""

    def __init__(self, runner: "GpuRunner", fixed: Fixed) -> None:
        self.runner = runner
        self.device = runner.device
        self.config = runner.config
        self.chunk = min(CHUNK, runner.n_ctx)
        self._fixed = fixed
        self._plans: dict[str, Plan] = {}
        self._current: Plan | None = None
        self._step = np.zeros(4, np.uint32)
        self._settings: list[dict[str, Any]] = []
        self._rows: Tensor | None = None
        self._buffers: dict[str, Buffer] = {}

    async def feed(self, ids: Sequence[int], *, parts: bool = False) -> None:
        """See `Inspector.feed`."""
        self.device.check()
        name = "token" if len(ids) == 1 else "chunk"
        assert not parts or name == "token"
        self._current = plan = await self._tapped(name)
        self._step = np.array([self.runner.length, len(ids), 0, 0], np.uint32)
        self.device.write(self._fixed.ids, np.asarray(ids, np.uint32))
        self.device.write(self._fixed.step, self._step)
        self.runner.tokens += ids
        plan.submit(rows=len(ids), length=self.runner.length)

    async def stream(self) -> Array:
        """See `Inspector.stream`."""
        width = self.config.n_embd
        names = [f"out.{layer}" for layer in range(self.config.n_layer + 1)]
        nbytes = 4 * self._count * padded(width)
        data = await self._read([(self._buffer(name), 0, nbytes) for name in names])
        return np.stack([floats.reshape(self._count, -1)[:, :width] for floats in data])

    async def attention(self, layers: Sequence[int], heads: Sequence[int], *, cell: int, cells: int) -> Array:
        """See `Inspector.attention`."""
        shape = (len(heads), self._count, cells)
        nbytes = 4 * int(np.prod(shape))
        stride = padded(nbytes, ALIGN)
        at_once = max(1, min(len(layers), MAP_BYTES // stride))
        out = self._own("maps", at_once * stride)
        view = self._own("view", 4 * (4 + self.config.n_head))
        words = np.array([0, self._count, cell, cells, *heads], np.uint32)
        await self.device.compile({self._map_kernel(layer) for layer in layers})
        maps: list[Array] = []
        for first in range(0, len(layers), at_once):
            self.device.write(view, words)
            self.device.write(self._fixed.step, self._step)
            plan = tabgpt_gpu.newPlan()
            group = layers[first : first + at_once]
            for index, layer in enumerate(group):
                kernel = self._map_kernel(layer)
                slices = {
                    "q": self._whole(self._buffer(f"q.{layer}")),
                    "kv": self._whole(self._fixed.caches[layer]),
                    "out": (out, index * stride, stride),
                    "view": self._whole(view),
                    "step": self._whole(self._fixed.step),
                }
                bound = self.device.bind_group(kernel, slices)
                tabgpt_gpu.addDispatch(plan, self.device.pipeline(kernel), bound, len(heads), self._count, 0, 0)
            tabgpt_gpu.submit(self.device.js, plan, len(group), 0, 0)
            maps += await self._read([(out, index * stride, nbytes) for index in range(len(group))])
        return np.stack(maps).reshape(len(layers), *shape)

    async def part(self, name: str, layer: int) -> Array:
        """See `Inspector.part`."""
        tensor = self._tensor(f"{name}.{layer}")
        (data,) = await self._read([(self._buffer(f"{name}.{layer}"), 0, self._buffer(f"{name}.{layer}").nbytes)])
        if tensor.layout != "heads":
            return data[: tensor.width]
        d = self.config.head_dim
        heads = tensor.width // d
        return np.ascontiguousarray(data[: heads * head_dim_padded(d)].reshape(heads, -1)[:, :d])

    async def lens(self, rows: Array) -> Array:
        """See `Inspector.lens`."""
        plan = await self._lens_plan()
        assert self._rows is not None
        logits = self._own("logits", 4 * plan.rows * padded(self.config.n_vocab))
        found = []
        for first in range(0, len(rows), plan.rows):
            some = rows[first : first + plan.rows]
            stored = np.zeros((len(some), padded(rows.shape[1])), np.float32)
            stored[:, : rows.shape[1]] = some
            self.device.write(plan.buffer(self._rows), stored)
            self.device.write(self._fixed.step, np.array([0, len(some), 0, 0], np.uint32))
            plan.submit(rows=len(some), length=0)
            (data,) = await self._read([(logits, 0, 4 * len(some) * padded(self.config.n_vocab))])
            found.append(data.reshape(len(some), -1)[:, : self.config.n_vocab])
        return np.concatenate(found)

    def free(self) -> None:
        """See `Inspector.free`."""
        for plan in self._plans.values():
            plan.free()
        for buffer in self._buffers.values():
            self.device.buffers.destroy(buffer)
        self._plans.clear()
        self._buffers.clear()
        self._current = self._rows = None

    @property
    def _count(self) -> int:
        return int(self._step[1])

    async def _tapped(self, name: str) -> Plan:
        if name not in self._plans:
            taps: list[Tap] = []

            def with_taps(model: Model) -> Model:
                def run(*args: Any, ops: Any, **named: Any) -> Any:
                    taps.append(Tap(ops))
                    return model(*args, ops=taps[-1], **named)

                return run

            single = name == "token"

            def keep(graph: Graph) -> None:
                graph.taps |= taps[-1].named(PARTS if single else ())
                self._settings = [layer.settings for layer in taps[-1].layers]

            rows = 1 if single else self.chunk
            self._plans[name] = await self._make(with_taps, keep, rows, single=single, fixed=self._fixed)
        return self._plans[name]

    async def _lens_plan(self) -> Plan:
        """The model's end, from any rows of a residual stream."""
        if "lens" not in self._plans:
            rows = Tensor("rows", self.config.n_embd)
            before: list[int] = []

            def from_rows(model: Model) -> Model:
                def run(*args: Any, ops: Any, **named: Any) -> Any:
                    return model(*args, ops=Rows(ops, rows, on_last=lambda: before.append(len(ops.nodes))), **named)

                return run

            def keep(graph: Graph) -> None:
                del graph.nodes[: before[-1]]
                graph.result.single = False
                graph.taps["rows"] = rows

            count = self.config.n_layer + 1
            logits = self._own("logits", 4 * count * padded(self.config.n_vocab))
            fixed = replace(self._fixed, logits=logits)
            self._plans["lens"] = await self._make(from_rows, keep, count, single=False, fixed=fixed)
            self._rows = rows
        return self._plans["lens"]

    async def _make(
        self, wrap: Callable[[Model], Model], keep: Callable[[Graph], None], rows: int, *, single: bool, fixed: Fixed
    ) -> Plan:
        self.device.push_memory_scope()
        try:
            plan = await self.runner.make_plan(rows, single=single, wrap=wrap, keep=keep, fixed=fixed)
        except BaseException:
            await self.device.js.popErrorScope()
            raise
        try:
            await self.device.pop_memory_scope("making room for looking into the model")
        except BaseException:
            plan.free()
            raise
        return plan

    def _map_kernel(self, layer: int) -> Kernel:
        assert self._current is not None, "feed() comes first"
        threads = self.device.tuning().sampler_threads
        return attention_map(self._current.graph, self._settings[layer], threads=threads)

    def _tensor(self, name: str) -> Tensor:
        assert self._current is not None, "feed() comes first"
        return self._current.graph.taps[name]

    def _buffer(self, name: str) -> Buffer:
        assert self._current is not None, "feed() comes first"
        return self._current.buffer(self._tensor(name))

    def _own(self, name: str, nbytes: int) -> Buffer:
        """A buffer of this object's own, at least so large."""
        held = self._buffers.get(name)
        if held is None or held.nbytes < nbytes:
            if held is not None:
                self.device.buffers.destroy(held)
            self._buffers[name] = held = self.device.buffers.create(nbytes, "inspection")
        return held

    def _whole(self, buffer: Buffer) -> tuple[Buffer, int, int]:
        return buffer, 0, buffer.nbytes

    async def _read(self, pieces: Sequence[tuple[Buffer, int, int]]) -> list[Array]:
        """Several stretches of f32s in one readback."""
        buffers, offsets, sizes = zip(*pieces, strict=True)
        total = sum(sizes)
        gathered = self._own("gathered", total)
        js_buffers = to_js([buffer.js for buffer in buffers])
        tabgpt_gpu.gather(self.device.js, js_buffers, to_js(offsets), to_js(sizes), gathered.js)
        whole = await self.device.read(gathered, total)
        edges = np.cumsum([0, *(nbytes for _, _, nbytes in pieces)])
        return [
            np.frombuffer(whole, np.float32, nbytes // 4, int(edge)).copy()
            for edge, (_, _, nbytes) in zip(edges[:-1], pieces, strict=True)
        ]
