"""Writes safetensors files whose tensors are made piece by piece, so that a model never is in memory as a whole."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from app.engine.weights.quantize import Words
from app.engine.weights.safetensors import BITS

Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor to be written."""

    name: str
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[Floats | Words]]
    """Gives its values in C order, in pieces of any length."""
    dtype: str | None = None
    """Its own, unless it has that of the whole model. Words are U32."""


def encode(values: Floats | Words, dtype: str) -> bytes:
    """Return values as stored in F32, F16 or BF16 (rounded to nearest, ties to even), or words in U32."""
    if dtype == "U32":
        return values.astype("<u4").tobytes()
    if dtype == "F32":
        return values.astype("<f4").tobytes()
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    assert dtype == "BF16", dtype
    bits = values.astype("<f4").view("<u4")
    rounded: NDArray[np.uint32] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return rounded.astype("<u2").tobytes()


def shards(tensors: Sequence[Tensor], dtype: str, max_bytes: int | None) -> list[list[Tensor]]:
    """Share tensors out to files of at most `max_bytes` of weights each (but at least one tensor)."""
    parts: list[list[Tensor]] = [[]]
    used = 0
    for tensor in tensors:
        nbytes = _nbytes(tensor, dtype)
        if parts[-1] and max_bytes is not None and used + nbytes > max_bytes:
            parts.append([])
            used = 0
        parts[-1].append(tensor)
        used += nbytes
    return parts


def write_model(
    folder: Path,
    tensors: Sequence[Tensor],
    dtype: str,
    *,
    max_bytes: int | None,
    tick: Callable[[int], None],
    metadata: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write model.safetensors, or several files and their index; return the paths. `tick` is told bytes written.

    `metadata` goes into each file.

    A file has its name only once it is complete.
    """
    parts = shards(tensors, dtype, max_bytes)
    if len(parts) == 1:
        path = folder / "model.safetensors"
        write_file(path, parts[0], dtype, tick=tick, metadata=metadata)
        return [path]
    paths: list[Path] = []
    where: dict[str, str] = {}
    for number, part in enumerate(parts, 1):
        path = folder / f"model-{number:05}-of-{len(parts):05}.safetensors"
        write_file(path, part, dtype, tick=tick, metadata=metadata)
        where |= dict.fromkeys((tensor.name for tensor in part), path.name)
        paths.append(path)
    total = sum(_nbytes(tensor, dtype) for tensor in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": where}
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps(index, indent=2) + "\n")
    return [*paths, path]


def write_file(
    path: Path,
    tensors: Sequence[Tensor],
    dtype: str,
    *,
    tick: Callable[[int], None],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write one safetensors file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    end = 0
    for tensor in tensors:
        start, end = end, end + _nbytes(tensor, dtype)
        header[tensor.name] = {
            "dtype": tensor.dtype or dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_name(path.name + ".part")
    try:
        with unfinished.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for tensor in tensors:
                _write_pieces(file, tensor, dtype, tick)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_pieces(file: IO[bytes], tensor: Tensor, dtype: str, tick: Callable[[int], None]) -> None:
    written = 0
    for piece in tensor.pieces():
        data = encode(piece, tensor.dtype or dtype)
        file.write(data)
        written += len(data)
        tick(len(data))
    assert written == _nbytes(tensor, dtype), tensor.name


def _nbytes(tensor: Tensor, dtype: str) -> int:
    return prod(tensor.shape) * BITS[tensor.dtype or dtype] // 8


def total_bytes(tensors: Iterable[Tensor], dtype: str) -> int:
    """Return the bytes of all tensors."""
    return sum(_nbytes(tensor, dtype) for tensor in tensors)


def check_room(folder: Path, nbytes: int) -> None:
    """Raise OSError if the disk has not `nbytes` free."""
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise OSError(f"{folder} has {free / 1e9:.1f} GB free, but {nbytes / 1e9:.1f} GB are needed.")
