"""What a model asks of a loader: which tensors, in which order, and who takes them."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class WeightSpec:
    """One tensor of a model, under the checkpoint's own name without a prefix as `transformer.` or `model.`."""

    name: str
    shape: tuple[int, ...]
    """As stored in the checkpoint, C order."""
    kind: str
    """"matrix": rows are output features · "conv1d": [in, out], to be transposed to [out, in] · "vector": kept in f32 ·
    "table": a matrix of which single rows are looked up (wpe) · "codes", "scales": the two halves of a matrix in q8 or
    q4, as `compact` stores them."""
    of: "WeightSpec | None" = None
    """The matrix that codes or scales make up."""
    first: int = 0
    """The row of that matrix with which they begin."""
    into: str | None = None
    """The name of a larger tensor in which the model wants this one, with others one under the other: matrices that
    read the same input, or their biases."""
    at: int = 0
    """The row (a vector's element) of `into` with which this one begins."""

    @property
    def target(self) -> str:
        """The name under which the model computes with it."""
        return self.into or self.name

    @property
    def out_shape(self) -> tuple[int, ...]:
        """The shape with output features as rows."""
        return self.shape[::-1] if self.kind == "conv1d" else self.shape


def merged(specs: Iterable[WeightSpec]) -> list[WeightSpec]:
    """What a model computes with: as `specs`, but tensors that go into a larger one are that one, at the first's place.

    Parts of one tensor follow each other in their order, though others may come between.
    """
    whole: dict[str, WeightSpec] = {}
    for spec in specs:
        known = whole.get(spec.target)
        if known is None:
            assert spec.at == 0, f"{spec.name} is not the first of {spec.into}"
            whole[spec.target] = replace(spec, name=spec.target, into=None)
        else:
            assert spec.at == known.shape[0], f"{spec.name} does not follow the others of {spec.into}"
            assert spec.kind == known.kind != "conv1d"
            assert spec.shape[1:] == known.shape[1:]
            whole[spec.target] = replace(known, shape=(spec.at + spec.shape[0], *spec.shape[1:]))
    return list(whole.values())


class Blob(Protocol):
    """Bytes that may live outside wasm memory (a JS Uint8Array in the page, a memoryview natively)."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""

    def slice(self, start: int, stop: int) -> "Blob":
        """Return a view of [start, stop) without copying."""

    def to_bytes(self) -> bytes:
        """Copy into Python memory."""


class Sink(Protocol):
    """Takes a model's tensors, piece by piece, and turns them into what a backend computes with."""

    async def write(self, spec: WeightSpec, dtype: str, row: int, rows: int, data: Blob) -> None:
        """Take `rows` consecutive rows from `row` on (a vector is one row), raw little-endian C order.

        `dtype` is safetensors' name (F32, F16, BF16; U32 for codes, and for scales, which come after them). Pieces of
        a tensor come in order, each row once. Pieces of a "conv1d" start and end at multiples of 32 rows, but for the
        tensor's end. Awaiting gives back-pressure.
        """
