"""A plan: a graph's kernels compiled, its tensors given buffers by lifetime, everything bound, ready to be replayed."""

from dataclasses import dataclass
from typing import Any

import tabgpt_gpu

from app.engine.gpu.buffers import Buffer, Pool
from app.engine.gpu.device import Device
from app.engine.gpu.select import (
    Axis,
    Dispatch,
    PerPosition,
    PerRow,
    Selector,
    Slot,
    Tuning,
    Vectors,
    WeightPart,
    WeightScales,
    head_dim_padded,
)
from app.engine.gpu.weights import GpuWeights
from app.engine.ops.record import Cache, Graph, Tensor, Weight, last_uses, padded


@dataclass(frozen=True)
class Fixed:
    """Buffers that plans share: the step's numbers, the token ids, the caches, the logits, the angles by which heads
    are turned at each position, and two that stand for nothing."""

    step: Buffer
    ids: Buffer
    caches: list[Buffer]
    logits: Buffer
    angles: Buffer
    unread: Buffer
    unwritten: Buffer


class Plan:
    """A graph on a device. `submit` replays it in one compute pass without any work in Python."""

    def __init__(
        self, device: Device, graph: Graph, rows: int, tuning: Tuning, *, purpose: str = "activations"
    ) -> None:
        self.device = device
        self.tuning = tuning
        self.graph = graph
        self.rows = rows
        self.dispatches: list[Dispatch] = []
        self.count = 0
        """Dispatches in all."""
        self.cache_count = 0
        """Dispatches until the last layer's cache is written: all that a chunk needs whose logits nobody wants."""
        self._pool = Pool(device.buffers, purpose)
        self._js = tabgpt_gpu.newPlan()
        self._tensors: dict[Tensor, Buffer] = {}

    @classmethod
    async def create(
        cls,
        device: Device,
        graph: Graph,
        *,
        weights: GpuWeights,
        fixed: Fixed,
        rows: int,
        tuning: Tuning,
        purpose: str = "activations",
    ) -> "Plan":
        """Compile and bind. `rows`: the most tokens of a step; `purpose`: of its memory. Raises GpuError."""
        plan = cls(device, graph, rows, tuning, purpose=purpose)
        plan.dispatches = Selector(weights.layouts, tuning).dispatches(graph)
        await device.compile(dispatch.kernel for dispatch in plan.dispatches)
        plan._bind(weights, fixed)
        return plan

    def _bind(self, weights: GpuWeights, fixed: Fixed) -> None:
        keep = [self.graph.ids, self.graph.result, *self.graph.taps.values()]
        self._tensors |= {self.graph.ids: fixed.ids, self.graph.result: fixed.logits}
        freed = dict(zip(map(id, self.graph.nodes), last_uses(self.graph.nodes, keep), strict=True))
        for index, dispatch in enumerate(self.dispatches):
            slices = {
                name: self._slice(dispatch, name, slot, weights, fixed) for name, slot in dispatch.bindings.items()
            }
            if "step" in dispatch.kernel.bindings():
                slices["step"] = self._slice(dispatch, "step", "step", weights, fixed)
            x, y = dispatch.grid
            group = self.device.bind_group(dispatch.kernel, slices)
            pipeline = self.device.pipeline(dispatch.kernel)
            tabgpt_gpu.addDispatch(self._js, pipeline, group, x, *_axis(y))
            node = dispatch.node
            is_last = index + 1 == len(self.dispatches) or self.dispatches[index + 1].node is not node
            if is_last:
                for tensor in freed[id(node)]:
                    self._pool.give_back(self._tensors[tensor])
                if any(isinstance(output, Cache) for output in node.outputs.values()):
                    self.cache_count = index + 1
        self.count = len(self.dispatches)

    def _slice(
        self, dispatch: Dispatch, name: str, slot: Slot, weights: GpuWeights, fixed: Fixed
    ) -> tuple[Buffer, int, int]:
        buffer: Buffer
        if slot == "step":
            buffer = fixed.step
        elif slot == "angles":
            buffer = fixed.angles
        elif slot == "none":
            writes = dispatch.kernel.bindings()[name].type == "storage"
            buffer = fixed.unwritten if writes else fixed.unread
        elif isinstance(slot, Cache):
            buffer = fixed.caches[slot.layer]
        elif isinstance(slot, WeightPart):
            buffer = weights.parts[slot.name][slot.index]
        elif isinstance(slot, WeightScales):
            buffer = weights.scales[slot.name][slot.index]
        elif isinstance(slot, Vectors):
            assert weights.vectors is not None
            start = weights.offsets[slot.first]
            return weights.vectors, start, weights.offsets[slot.last] + weights.sizes[slot.last] - start
        elif isinstance(slot, Weight):
            (buffer,) = weights.parts[slot.name]
        else:
            assert isinstance(slot, Tensor)
            if slot not in self._tensors:
                self._tensors[slot] = self._pool.take(self._tensor_bytes(slot))
            buffer = self._tensors[slot]
        return buffer, 0, buffer.nbytes

    def _tensor_bytes(self, tensor: Tensor) -> int:
        config = self.graph.config
        rows = 1 if tensor.single else self.rows
        heads = config.n_head * head_dim_padded(config.head_dim)
        if tensor.layout == "splits":
            splits = -(-self.graph.context // self.tuning.split)
            return 4 * splits * (heads + 4 * config.n_head)
        return 4 * rows * (heads if tensor.layout == "heads" else padded(tensor.width))

    @property
    def js(self) -> Any:
        """The recorded list, for gpu.js."""
        return self._js

    def submit(self, *, rows: int, length: int, logits: bool = True) -> None:
        """Run a step of `rows` tokens, after which `length` positions are filled."""
        count = self.count if logits else self.cache_count
        tabgpt_gpu.submit(self.device.js, self._js, count, rows, length)

    def buffer(self, tensor: Tensor) -> Buffer:
        """Where a kept tensor (the result, a tap) lies."""
        return self._tensors[tensor]

    def free(self) -> None:
        """Give the activations back."""
        self._pool.free()
        self._tensors.clear()
        self._js = None


def _axis(axis: Axis) -> tuple[int, int, int]:
    """y, tile for each row, tile for each position: as gpu.js wants them."""
    if isinstance(axis, PerRow):
        return 1, axis.tile, 0
    if isinstance(axis, PerPosition):
        return 1, 0, axis.tile
    return axis, 0, 0
