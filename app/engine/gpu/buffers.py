"""GPU memory, accounted for: every buffer has a purpose, and what is freed is no longer counted."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

STORAGE, UNIFORM, COPY_SRC, COPY_DST, MAP_READ = 0x80, 0x40, 0x04, 0x08, 0x01
"""GPUBufferUsage flags."""


@dataclass(eq=False)
class Buffer:
    """A GPUBuffer. `js` is None once it is destroyed."""

    js: Any
    nbytes: int
    purpose: str


class Buffers:
    """Makes and destroys a device's buffers, and knows how many bytes each purpose takes."""

    def __init__(self, device: Any, make_descriptor: Any) -> None:
        self._device = device
        self._descriptor = make_descriptor
        self._bytes: Counter[str] = Counter()
        self._total = 0
        self.peak = 0
        """The most bytes that were allocated at once, since this was last set."""

    def create(self, nbytes: int, purpose: str, usage: int = STORAGE | COPY_SRC | COPY_DST) -> Buffer:
        """Make a zeroed buffer of at least `nbytes`, a multiple of 16."""
        nbytes = max(16, -(-nbytes // 16) * 16)
        js = self._device.createBuffer(self._descriptor({"label": purpose, "size": nbytes, "usage": usage}))
        self._bytes[purpose] += nbytes
        self._total += nbytes
        self.peak = max(self.peak, self._total)
        return Buffer(js, nbytes, purpose)

    def destroy(self, buffer: Buffer) -> None:
        """Give the memory back at once; a second call does nothing."""
        if buffer.js is None:
            return
        buffer.js.destroy()
        buffer.js = None
        self._bytes[buffer.purpose] -= buffer.nbytes
        self._total -= buffer.nbytes

    def forget_peak(self) -> None:
        """Measure the peak from here on."""
        self.peak = self._total

    def bytes_by_purpose(self) -> dict[str, int]:
        """What is allocated now."""
        return {purpose: nbytes for purpose, nbytes in self._bytes.items() if nbytes}


class Pool:
    """Hands out activation buffers and takes them back, so that tensors that are never alive together share one."""

    def __init__(self, buffers: Buffers, purpose: str = "activations") -> None:
        self._buffers = buffers
        self._purpose = purpose
        self._free: defaultdict[int, list[Buffer]] = defaultdict(list)
        self._all: list[Buffer] = []

    def take(self, nbytes: int) -> Buffer:
        """A buffer of exactly this size class: one that was given back, else a new one."""
        nbytes = max(16, -(-nbytes // 16) * 16)
        if self._free[nbytes]:
            return self._free[nbytes].pop()
        buffer = self._buffers.create(nbytes, self._purpose)
        self._all.append(buffer)
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Let the next `take` of this size have it."""
        self._free[buffer.nbytes].append(buffer)

    def free(self) -> None:
        """Destroy all, given back or not."""
        for buffer in self._all:
            self._buffers.destroy(buffer)
        self._all.clear()
        self._free.clear()
