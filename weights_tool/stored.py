"""Tensors in files on disk, read a few megabytes at a time: safetensors, and the pickles of PyTorch."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.errors import ModelFileError, NotFoundError
from app.engine.weights.blocks import to_float32
from app.engine.weights.quantize import Words
from app.engine.weights.safetensors import BITS, PREFIX, TensorRef, header_stop, parse_header
from weights_tool.writing import Floats

PIECE = 1 << 20
"""Values read at once."""
FLOATS = ("F32", "F16", "BF16")
MASK = re.compile(r"(.*\.)?(attn|attention)\.(masked_)?bias|(.*\.)?rotary_emb\.inv_freq")
"""Names of buffers that a model makes for itself."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A tensor in a file."""

    shape: tuple[int, ...]
    dtype: str
    """F32, F16, BF16, U32 for codes and scales, or the name of one that is no weight."""
    read: Callable[[int, int], bytes]
    """Gives the bytes of the values [start, stop), in C order."""

    @property
    def count(self) -> int:
        """How many values it has."""
        return prod(self.shape)

    def pieces(self) -> Iterator[Floats]:
        """Yield its values in C order."""
        for start in range(0, self.count, PIECE):
            yield to_float32(self.read(start, min(start + PIECE, self.count)), self.dtype)

    def words(self) -> Iterator[Words]:
        """Yield its values in C order, U32."""
        for start in range(0, self.count, PIECE):
            yield np.frombuffer(self.read(start, min(start + PIECE, self.count)), "<u4")

    def values(self) -> Floats:
        """Return all its values in its shape."""
        return np.concatenate([*self.pieces(), np.zeros(0, np.float32)]).reshape(self.shape)


def weights_only(found: dict[str, Stored]) -> dict[str, Stored]:
    """Return the tensors that are weights: floats, and no attention masks of old checkpoints."""
    return {name: stored for name, stored in found.items() if stored.dtype in FLOATS and not MASK.fullmatch(name)}


def read_safetensors(path: Path) -> dict[str, Stored]:
    """Return the tensors of a safetensors file. Raises SafetensorsError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(PREFIX)
        stop = header_stop(prefix, file=path.name, file_size=size)
        header = parse_header(prefix + file.read(stop - PREFIX), file=path.name, file_size=size)

    return {name: stored_at(path, ref) for name, ref in header.tensors.items()}


def stored_at(path: Path, ref: TensorRef) -> Stored:
    """Return the tensor that lies in a file as `ref` says."""
    width = max(1, BITS[ref.dtype] // 8)

    def read(start: int, stop: int) -> bytes:
        with path.open("rb") as file:
            file.seek(ref.start + start * width)
            return file.read((stop - start) * width)

    return Stored(shape=ref.shape, dtype=ref.dtype, read=read)


def read_sharded(index: Path, read_file: Callable[[Path], dict[str, Stored]]) -> dict[str, Stored]:
    """Return the tensors of all files that an index names."""
    try:
        listed = json.loads(index.read_bytes())["weight_map"]
        names = sorted(set(listed.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{index} is no index of weights ({error}).") from error
    found: dict[str, Stored] = {}
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelFileError(f"{index} names {str(name)[:100]!r}, which is no file beside it.")
        found |= read_file(index.parent / name)
    return found


def find_weights(path: Path) -> tuple[dict[str, Stored], dict[str, Any]]:
    """Return the tensors at `path`, a file or a model's folder, and what else a checkpoint holds (model_args).

    Raises NotFoundError if there are none, ModelFileError if they are damaged.
    """
    from weights_tool.pickled import read_checkpoint

    def tensors_of(file: Path) -> dict[str, Stored]:
        return read_checkpoint(file)[0]

    if path.is_file():
        return (read_safetensors(path), {}) if path.suffix == ".safetensors" else read_checkpoint(path)
    if (file := path / "model.safetensors").is_file():
        return read_safetensors(file), {}
    if (file := path / "model.safetensors.index.json").is_file():
        return read_sharded(file, read_safetensors), {}
    for name in ("pytorch_model.bin", "ckpt.pt"):
        if (path / name).is_file():
            return read_checkpoint(path / name)
    if (file := path / "pytorch_model.bin.index.json").is_file():
        return read_sharded(file, tensors_of), {}
    raise NotFoundError(
        f"{path} holds no weights: none of model.safetensors, pytorch_model.bin (or their index), ckpt.pt."
    )
