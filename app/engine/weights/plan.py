"""Which bytes to ask for, in which requests, so that tensors arrive in the order in which they are wanted.

A file's own order is seldom the model's (transformers sorts by name). So the wanted pieces are taken in windows of some
tens of megabytes; within a window, what lies side by side in a file becomes one range, whatever the order, and long
ranges are cut at the borders of pieces. A layer of a small model is one request then, not twelve.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from app.engine.weights.blocks import nbytes as size_of
from app.engine.weights.safetensors import TensorRef
from app.engine.weights.spec import WeightSpec

PIECE_BYTES = 8 << 20
"""Bytes in one piece, and in one request, at most (but a piece has at least one row, or 32 of a conv1d)."""
WINDOW = 4
"""Pieces of full size in a window."""
GAP_BYTES = 1 << 16
"""Unwanted bytes between two tensors that are fetched along rather than making two requests."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """A range of a file that is fetched at once."""

    file: str
    start: int
    stop: int
    name: str
    """One of the tensors in it, to show."""
    wanted: int
    """Bytes that pieces are made of; the rest lies between them."""


@dataclass(kw_only=True, eq=False)
class Piece:
    """Some rows of a tensor, handed to the sink at once."""

    spec: WeightSpec
    file: str
    dtype: str
    row: int
    rows: int
    start: int
    """Offset in the file."""
    nbytes: int
    request: Request = field(init=False)
    """Where its bytes come with; set when the window is planned."""

    @property
    def stop(self) -> int:
        """Offset after its last byte."""
        return self.start + self.nbytes


@dataclass(frozen=True, kw_only=True)
class Window:
    """Consecutive pieces, and the requests that bring them, in the order of their first use."""

    pieces: list[Piece]
    requests: list[Request]


def plan(
    tensors: Mapping[str, TensorRef], specs: Sequence[WeightSpec], *, piece_bytes: int = PIECE_BYTES
) -> list[Window]:
    """Plan the fetching of `specs`, all of which must be among `tensors` with the right shape."""
    windows: list[Window] = []
    pieces: list[Piece] = []
    nbytes = 0
    for spec in specs:
        for piece in cut(spec, tensors[spec.name], piece_bytes):
            if pieces and nbytes + piece.nbytes > WINDOW * piece_bytes:
                windows.append(_window(pieces, piece_bytes))
                pieces, nbytes = [], 0
            pieces.append(piece)
            nbytes += piece.nbytes
    return [*windows, _window(pieces, piece_bytes)] if pieces else windows


def cut(spec: WeightSpec, ref: TensorRef, piece_bytes: int) -> list[Piece]:
    """Cut a tensor into runs of rows of at most `piece_bytes`, as `Sink.write` wants them."""
    if spec.kind == "vector":
        rows, per_row, step = 1, ref.nbytes, 1
    else:
        rows, per_row = ref.shape[0], size_of(ref.dtype, ref.shape[1:])
        step = max(1, piece_bytes // max(1, per_row))
        if spec.kind == "conv1d":
            step = max(32, step // 32 * 32)
    return [
        Piece(
            spec=spec,
            file=ref.file,
            dtype=ref.dtype,
            row=row,
            rows=min(step, rows - row),
            start=ref.start + row * per_row,
            nbytes=min(step, rows - row) * per_row,
        )
        for row in range(0, rows, step)
    ]


def _window(pieces: list[Piece], request_bytes: int) -> Window:
    """Give every piece its request."""
    order = {id(piece): place for place, piece in enumerate(pieces)}
    groups: list[list[Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.file, piece.start)):
        first, last = (groups[-1][0], groups[-1][-1]) if groups else (piece, piece)
        near = piece.file == last.file and 0 <= piece.start - last.stop <= GAP_BYTES
        if groups and near and piece.stop - first.start <= request_bytes:
            groups[-1].append(piece)
        else:
            groups.append([piece])
    first_use: dict[Request, int] = {}
    for group in groups:
        places = [order[id(piece)] for piece in group]
        name = pieces[min(places)].spec.name
        wanted = sum(piece.nbytes for piece in group)
        request = Request(file=group[0].file, start=group[0].start, stop=group[-1].stop, name=name, wanted=wanted)
        for piece in group:
            piece.request = request
        first_use[request] = min(places)
    return Window(pieces=pieces, requests=sorted(first_use, key=lambda request: first_use[request]))
