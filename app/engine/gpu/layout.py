"""How weights lie in GPU memory: padded rows, a precision, and parts that fit a binding."""

from dataclasses import dataclass
from math import prod

from app.engine.ops.record import padded

BITS = {"f32": 32, "f16": 16, "q8": 8, "q4": 4}
"""Bits that one weight's code takes in each precision."""

BLOCK = 32
"""Weights of a row that share a scale, in the quantised precisions: one word a block."""

VECTOR_ALIGN = 64
"""f32s to which vectors are aligned: 256 bytes, the default minStorageBufferOffsetAlignment."""


@dataclass(frozen=True)
class Part:
    """Rows [first, first + rows) of a matrix, in a buffer of their own."""

    first: int
    rows: int


@dataclass(frozen=True)
class MatrixLayout:
    """A matrix [rows, columns] as stored: each row padded to k columns."""

    rows: int
    columns: int
    precision: str
    parts: tuple[Part, ...]

    @property
    def k(self) -> int:
        """Columns with padding."""
        return padded(self.columns)

    def part_bytes(self, part: Part) -> int:
        """Size of one part's buffer."""
        return part.rows * self.k * BITS[self.precision] // 8

    @property
    def quantised(self) -> bool:
        """Whether there are scales beside the codes."""
        return BITS[self.precision] < 16

    def scale_bytes(self, part: Part) -> int:
        """Size of the buffer of one part's scales, 0 without any."""
        return part.rows * self.k // BLOCK * 4 if self.quantised else 0

    @property
    def nbytes(self) -> int:
        """Size of all parts."""
        return sum(self.part_bytes(part) + self.scale_bytes(part) for part in self.parts)


def matrix_layout(rows: int, columns: int, precision: str, *, max_bytes: int) -> MatrixLayout:
    """Split a matrix by rows into as few equal parts as fit `max_bytes` each."""
    row_bytes = padded(columns) * BITS[precision] // 8
    per_part = max(1, max_bytes // row_bytes)
    count = -(-rows // per_part)
    even = padded(-(-rows // count), 4)  # whole vectors of the output, where that still fits
    even = even if even <= per_part else per_part
    parts = tuple(Part(first, min(even, rows - first)) for first in range(0, rows, even))
    return MatrixLayout(rows, columns, precision, parts)


def vector_offsets(shapes: dict[str, tuple[int, ...]]) -> tuple[dict[str, int], int]:
    """Place vectors one behind the other in one buffer: byte offsets by name, and the buffer's size."""
    offsets, end = {}, 0
    for name, shape in shapes.items():
        offsets[name] = end
        end += 4 * padded(prod(shape), VECTOR_ALIGN)
    return offsets, end
