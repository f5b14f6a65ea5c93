"""A loader's sink on the GPU: raw pieces are uploaded as they land and converted by a kernel, never held in Python."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import js
import numpy as np
import tabgpt_gpu
from pyodide.ffi import to_js

from app.engine.errors import UnsupportedModelError
from app.engine.gpu.buffers import COPY_DST, STORAGE, UNIFORM, Buffer
from app.engine.gpu.device import Device
from app.engine.gpu.kernels import Constant, Kernel, kernel
from app.engine.gpu.layout import BITS, BLOCK, VECTOR_ALIGN, MatrixLayout, matrix_layout, vector_offsets
from app.engine.ops.record import padded
from app.engine.weights.blocks import KEPT, to_float32
from app.engine.weights.precision import Mixed
from app.engine.weights.spec import Blob, WeightSpec, merged

_SOURCE_NUMBERS = {
    dtype: number for number, dtype in enumerate(("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"))
} | {"Q4_K": 8, "Q5_K": 9, "Q6_K": 10}
_THREADS = 128
_IN_FLIGHT = 4


@dataclass
class GpuWeights:
    """A model's weights on the GPU: matrices in parts, vectors side by side in one buffer."""

    layouts: dict[str, MatrixLayout] = field(default_factory=dict)
    parts: dict[str, list[Buffer]] = field(default_factory=dict)
    scales: dict[str, list[Buffer]] = field(default_factory=dict)
    """Of quantised matrices."""
    vectors: Buffer | None = None
    offsets: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    def buffers(self) -> Iterator[Buffer]:
        """Every buffer."""
        for parts in [*self.parts.values(), *self.scales.values()]:
            yield from parts
        if self.vectors is not None:
            yield self.vectors


class GpuSink:
    """Implements `Sink`. Call `finish` once all tensors are in, or `abort`."""

    def __init__(
        self,
        device: Device,
        specs: list[WeightSpec],
        *,
        precision: str,
        kept: Mixed | None = None,
        max_piece: int,
        max_binding: int | None = None,
    ) -> None:
        """Allocate for `specs`. Pieces have `max_piece` bytes or one step of rows, parts at most `max_binding`.

        Matrices are in `precision`, but those that `kept` names.
        """
        self.device = device
        self.weights = GpuWeights()
        self._specs = {spec.name: spec for spec in specs}
        self._kept = kept
        self._precision = precision
        # A piece has whole rows, and 32 of them where they are transposed, however wide they are.
        steps = [4 * spec.shape[1] * (32 if spec.kind == "conv1d" else 1) for spec in specs if spec.kind != "vector"]
        self._max_piece = max(max_piece, *steps)
        self._uploads: list[tuple[Buffer, Buffer]] = []
        self._next = 0
        self._pending: list[Any] = []
        whole = merged(specs)
        for spec in whole:
            if spec.kind == "vector":
                continue
            rows, columns = spec.out_shape
            kept_precision = precision if kept is None else kept.precisions.get(spec.name, precision)
            spec_precision = "f32" if spec.kind == "table" else kept_precision
            limit = device.max_binding if spec.kind == "table" else max_binding or device.max_binding
            layout = matrix_layout(rows, columns, spec_precision, max_bytes=limit)
            if spec.kind == "table" and len(layout.parts) > 1:
                raise UnsupportedModelError(
                    f"{spec.name} takes {layout.nbytes / 1e6:,.1f} MB; this GPU binds at most {limit / 1e6:,.1f} MB."
                )
            self.weights.layouts[spec.name] = layout
        vectors = {spec.name: spec.shape for spec in whole if spec.kind == "vector"}
        self.weights.offsets, total = vector_offsets(vectors)
        self.weights.sizes = {name: 4 * padded(shape[0], VECTOR_ALIGN) for name, shape in vectors.items()}
        device.push_memory_scope()
        create = device.buffers.create
        self.weights.vectors = create(total, "weights")
        for name, layout in self.weights.layouts.items():
            self.weights.parts[name] = [create(layout.part_bytes(part), "weights") for part in layout.parts]
            if layout.quantised:
                self.weights.scales[name] = [create(layout.scale_bytes(part), "weights") for part in layout.parts]

    async def prepare(self) -> None:
        """Compile the conversion kernels and see whether the memory was there. Raises GpuError if not."""
        await self.device.pop_memory_scope("making room for the weights")
        if self._kept is not None:
            pairs = [(dtype, precision or self._precision) for dtype, precision in sorted(self._kept.conversions)]
            await self.device.compile(_convert_kernel(*pair, transposed=False) for pair in pairs)
        else:
            precisions = {layout.precision for layout in self.weights.layouts.values()}
            kinds = {spec.kind == "conv1d" for spec in self._specs.values() if spec.kind != "vector"}
            await self.device.compile(
                _convert_kernel(dtype, precision, transposed=transposed)
                for dtype in ("F32", "F16", "BF16")
                for precision in precisions
                for transposed in kinds
            )
        usage = STORAGE | COPY_DST
        for _ in range(2):
            create = self.device.buffers.create
            self._uploads.append((create(self._max_piece, "upload", usage), create(32, "upload", UNIFORM | COPY_DST)))

    async def write(self, spec: WeightSpec, dtype: str, row: int, rows: int, data: Blob) -> None:
        """See `Sink.write`."""
        if spec.kind == "vector":
            assert self.weights.vectors is not None
            values = to_float32(data.to_bytes(), dtype)
            self.device.write(self.weights.vectors, values, self.weights.offsets[spec.target] + 4 * spec.at)
            return
        if spec.of is not None:
            self._copy(spec, spec.of, spec.of.at + spec.first + row, rows, data)
            await self._queued()
            return
        assert data.nbytes <= self._max_piece, f"{spec.name}: a piece of {data.nbytes} bytes"
        upload, _ = self._uploads[self._next]
        self._upload(upload, data)
        layout = self.weights.layouts[spec.target]
        for index in range(len(layout.parts)):
            self._convert(spec, dtype, spec.at + row, rows, index)
        self._next = (self._next + 1) % len(self._uploads)
        await self._queued()

    def _copy(self, spec: WeightSpec, matrix: WeightSpec, row: int, rows: int, data: Blob) -> None:
        """Put codes or scales, which are stored as the kernels read them, where they belong."""
        layout = self.weights.layouts[matrix.target]
        buffers = (self.weights.parts if spec.kind == "codes" else self.weights.scales)[matrix.target]
        nbytes = data.nbytes // rows
        array = getattr(data, "js", None)
        if array is None:
            array = to_js(data.to_bytes())
        for part, buffer in zip(layout.parts, buffers, strict=True):
            first, stop = max(row, part.first), min(row + rows, part.first + part.rows)
            if first < stop:
                place, offset = (first - part.first) * nbytes, (first - row) * nbytes
                self.device.js.queue.writeBuffer(buffer.js, place, array, offset, (stop - first) * nbytes)

    async def _queued(self) -> None:
        # WebGPU queues as much as it is given; waiting for an older piece bounds what the browser holds for us.
        self._pending.append(asyncio.ensure_future(self.device.idle()))
        if len(self._pending) > _IN_FLIGHT:
            await self._pending.pop(0)
        self.device.check()

    def _upload(self, buffer: Buffer, data: Blob) -> None:
        queue = self.device.js.queue
        whole = data.nbytes - data.nbytes % 4
        array = getattr(data, "js", None)
        if array is None:
            array = to_js(data.to_bytes())
        if whole:
            queue.writeBuffer(buffer.js, 0, array, 0, whole)
        if whole < data.nbytes:  # writeBuffer wants whole words
            tail = js.Uint8Array.new(4)
            tail.set(array.subarray(whole, data.nbytes))
            queue.writeBuffer(buffer.js, whole, tail)

    def _convert(self, spec: WeightSpec, dtype: str, row: int, rows: int, index: int) -> None:
        upload, uniform = self._uploads[self._next]
        layout = self.weights.layouts[spec.target]
        part = layout.parts[index]
        transposed = spec.kind == "conv1d"
        if transposed:
            is_last = row + rows == spec.shape[0]
            k_count = (layout.k if is_last else row + rows) - row
            lines = part.rows
        else:
            k_count = layout.k
            lines = min(row + rows, part.first + part.rows) - max(row, part.first)
            if lines <= 0:
                return
        code = _convert_kernel(dtype, layout.precision, transposed=transposed)
        piece = np.array([row, rows, spec.shape[1], part.first, part.rows, layout.k, k_count, 0], np.uint32)
        self.device.write(uniform, piece)
        destination = self.weights.parts[spec.target][index]
        slices = {
            "source": (upload, 0, upload.nbytes),
            "destination": (destination, 0, destination.nbytes),
            "piece": (uniform, 0, 32),
        }
        if layout.quantised:
            scales = self.weights.scales[spec.target][index]
            slices["scales"] = (scales, 0, scales.nbytes)
        jobs = lines * k_count // (BLOCK if layout.quantised else 32 // BITS[layout.precision])
        groups = -(-jobs // _THREADS)
        y = -(-groups // 65_535)
        plan = tabgpt_gpu.newPlan()
        group = self.device.bind_group(code, slices)
        tabgpt_gpu.addDispatch(plan, self.device.pipeline(code), group, -(-groups // y), y, 0, 0)
        tabgpt_gpu.submit(self.device.js, plan, 1, 0, 0)

    async def finish(self) -> GpuWeights:
        """Wait for the last conversion, free the upload buffers, and hand the weights over."""
        await asyncio.gather(*self._pending)
        self._free_uploads()
        self.device.check()
        return self.weights

    def abort(self) -> None:
        """Free everything."""
        self._free_uploads()
        for buffer in self.weights.buffers():
            self.device.buffers.destroy(buffer)

    def _free_uploads(self) -> None:
        for pair in self._uploads:
            for buffer in pair:
                self.device.buffers.destroy(buffer)
        self._uploads.clear()
        self._pending.clear()


def _convert_kernel(dtype: str, precision: str, *, transposed: bool) -> Kernel:
    constants: dict[str, Constant] = {"WG": _THREADS, "SOURCE": _SOURCE_NUMBERS[dtype], "TRANSPOSED": transposed}
    bits = BITS[precision]
    if KEPT.get(dtype) == precision:
        return kernel("repack", "source", **constants, BITS=bits)
    if bits < 16:
        return kernel("quantize", "source", **constants, BITS=bits)
    return kernel("convert", "source", **constants, PER_WORD=32 // bits)
