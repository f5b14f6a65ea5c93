"""PyTorch's checkpoints, without PyTorch and without running what a pickle may carry.

Two formats: a zip archive (since 1.6) with the pickle and one entry for each storage, and the older one, a series of
pickles followed by the storages. Only the few names that tensors need are let through; values are read where they lie.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from app.engine.errors import ModelFileError
from weights_tool.stored import Stored

_MAGIC = 0x1950A86A20F9469CFC6C
_STORAGES = {
    "FloatStorage": ("F32", 4),
    "HalfStorage": ("F16", 2),
    "BFloat16Storage": ("BF16", 2),
    "DoubleStorage": ("F64", 8),
    "LongStorage": ("I64", 8),
    "IntStorage": ("I32", 4),
    "ShortStorage": ("I16", 2),
    "CharStorage": ("I8", 1),
    "ByteStorage": ("U8", 1),
    "BoolStorage": ("BOOL", 1),
}


@dataclass(frozen=True)
class _StorageType:
    dtype: str
    width: int


@dataclass
class _Storage:
    type: _StorageType
    path: Path
    offset: int | None = None
    """In the file, of its first byte."""

    def reader(self, first: int) -> Callable[[int, int], bytes]:
        def read(start: int, stop: int) -> bytes:
            assert self.offset is not None
            with self.path.open("rb") as file:
                file.seek(self.offset + (first + start) * self.type.width)
                data = file.read((stop - start) * self.type.width)
            if len(data) != (stop - start) * self.type.width:
                raise ModelFileError(f"{self.path.name} ends within a tensor: it is cut off.")
            return data

        return read


@dataclass
class _Tensor:
    storage: _Storage
    first: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def stored(self, name: str) -> Stored:
        expected, stride = [], 1
        for size in reversed(self.shape):
            expected.append(stride)
            stride *= max(1, size)
        plain = all(
            size <= 1 or have == want
            for size, have, want in zip(self.shape, self.strides, reversed(expected), strict=True)
        )
        if not plain:
            raise ModelFileError(f"Tensor {name!r} is stored as a view with other strides. Save a contiguous copy.")
        return Stored(shape=self.shape, dtype=self.storage.type.dtype, read=self.storage.reader(self.first))


def _rebuild_tensor(
    storage: _Storage, first: int, shape: tuple[int, ...], strides: tuple[int, ...], *_: Any
) -> _Tensor:
    sizes = (first, *shape, *strides)
    if not isinstance(storage, _Storage) or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise ModelFileError("A tensor in the pickle makes no sense.")
    return _Tensor(storage, first, tuple(shape), tuple(strides))


def _rebuild_parameter(tensor: _Tensor, *_: Any) -> _Tensor:
    return tensor


class _Unpickler(pickle.Unpickler):
    """Knows tensors, plain data, and nothing that could do anything."""

    def __init__(self, file: IO[bytes], path: Path, storages: dict[str, _Storage]) -> None:
        super().__init__(file, encoding="utf-8")
        self._path, self._storages = path, storages

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and name in _STORAGES:
            return _StorageType(*_STORAGES[name])
        allowed = {
            ("collections", "OrderedDict"): OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
            ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
        }
        if (module, name) not in allowed:
            raise ModelFileError(
                f"{self._path.name} wants to use {module}.{name}, which no weights need. It is not read: a pickle can "
                "run code. If you trust it, save its state_dict alone with PyTorch and convert that."
            )
        return allowed[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        if not isinstance(pid, tuple) or len(pid) < 5 or pid[0] != "storage" or not isinstance(pid[1], _StorageType):
            raise ModelFileError(f"{self._path.name} refers to something that is no tensor's storage.")
        return self._storages.setdefault(str(pid[2]), _Storage(pid[1], self._path))


def read_checkpoint(path: Path) -> tuple[dict[str, Stored], dict[str, Any]]:
    """Return the tensors of a `.bin` or `.pt` file, and the plain values that stand beside a training checkpoint's.

    Raises ModelFileError for what is damaged, no checkpoint, or asks for more than tensors.
    """
    try:
        content = _zipped(path) if zipfile.is_zipfile(path) else _legacy(path)
    except (pickle.UnpicklingError, EOFError, KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path.name} is damaged, or no PyTorch checkpoint ({error}).") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path.name} holds a {type(content).__name__} where a state_dict was expected.")
    state = next((content[key] for key in ("model", "state_dict") if isinstance(content.get(key), dict)), content)
    extra = {} if state is content else {key: value for key, value in content.items() if value is not state}
    tensors = {str(name): value.stored(str(name)) for name, value in state.items() if isinstance(value, _Tensor)}
    if not tensors:
        raise ModelFileError(f"{path.name} holds no tensors by name.")
    return tensors, extra


def read_plain(path: Path) -> Any:
    """Return a pickle's plain data (dicts, lists, strings, numbers). Raises ModelFileError for anything else."""
    try:
        with path.open("rb") as file:
            return _Unpickler(file, path, {}).load()
    except (pickle.UnpicklingError, EOFError, KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
        raise ModelFileError(f"{path.name} is damaged, or no pickle ({error}).") from error


def _zipped(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
        inner = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(inner) != 1:
            raise ModelFileError(f"{path.name} is a zip archive, but not one of PyTorch's.")
        storages: dict[str, _Storage] = {}
        content = _Unpickler(io.BytesIO(archive.read(inner[0])), path, storages).load()
        folder = inner[0].removesuffix("data.pkl")
        for key, storage in storages.items():
            entry = archive.getinfo(f"{folder}data/{key}")
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ModelFileError(f"{path.name} is compressed, which PyTorch itself does not write.")
            # The local header's own lengths count: PyTorch pads there, so that storages are aligned.
            raw.seek(entry.header_offset + 26)
            lengths = raw.read(4)
            name_length, extra = int.from_bytes(lengths[:2], "little"), int.from_bytes(lengths[2:], "little")
            storage.offset = entry.header_offset + 30 + name_length + extra
        return content


def _legacy(path: Path) -> Any:
    with path.open("rb") as file:
        storages: dict[str, _Storage] = {}
        if _Unpickler(file, path, storages).load() != _MAGIC:
            raise ModelFileError(f"{path.name} is no PyTorch checkpoint.")
        for _ in range(2):  # the protocol's version, and what machine wrote it
            _Unpickler(file, path, storages).load()
        content = _Unpickler(file, path, storages).load()
        for key in _Unpickler(file, path, storages).load():
            storage = storages[str(key)]
            count = int.from_bytes(file.read(8), "little")
            storage.offset = file.tell()
            file.seek(count * storage.type.width, io.SEEK_CUR)
        return content
