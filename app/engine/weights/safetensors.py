"""The header of a safetensors file, read from untrusted bytes.

A file is 8 bytes (the header's length, little-endian), a JSON object that names dtype, shape and place of each tensor,
and the tensors' bytes, one after the other without gaps.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from app.engine.errors import SafetensorsError, WrongContentError
from app.engine.json_text import parse_json

PREFIX = 8
"""Bytes before the header: its length."""
MAX_HEADER = 100_000_000
"""The format's own bound on the header's length."""

BITS = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
}
"""Bits of one element by the format's dtype names."""

_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_REPAIR = "The file is damaged or no safetensors file; get it again, or tell the repository's owner."


@dataclass(frozen=True, kw_only=True)
class TensorRef:
    """Where a tensor lies."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Offset in the file of its first byte."""
    stop: int
    """Offset after its last byte."""

    @property
    def nbytes(self) -> int:
        """Length in bytes."""
        return self.stop - self.start


@dataclass(frozen=True, kw_only=True)
class Header:
    """A validated header."""

    tensors: dict[str, TensorRef]
    metadata: dict[str, str]
    nbytes: int
    """Length that the whole file must have."""


def looks_like_html(data: bytes) -> bool:
    """Tell whether `data` begins like a web page."""
    return data[:512].lstrip().lower().startswith((b"<!doctype html", b"<html", b"<head", b"<?xml"))


def check_kind(data: bytes, *, file: str) -> None:
    """Raise WrongContentError if `data`, a file's first bytes, are a web page or a Git LFS pointer instead."""
    if data.startswith(_LFS_POINTER):
        raise WrongContentError(
            f"{file} is a Git LFS pointer, a note of where the real file is, not the file itself. The server holds the "
            "repository without its large files: run `git lfs pull` there, or use another hub."
        )
    if looks_like_html(data):
        raise WrongContentError(
            f"Instead of {file} the server sent a web page (a login, an error or a proxy's notice). Open its address "
            "in a browser tab to see what it says."
        )


def header_stop(prefix: bytes, *, file: str, file_size: int | None) -> int:
    """Return the offset after the header, from the file's first 8 bytes (or more).

    Raises SafetensorsError if it cannot be a header, WrongContentError if the bytes are plainly something else.
    """
    check_kind(prefix, file=file)
    if len(prefix) < PREFIX:
        raise SafetensorsError(f"{file} is only {len(prefix)} bytes long, too short for a safetensors file. {_REPAIR}")
    length = int.from_bytes(prefix[:PREFIX], "little")
    if not 2 <= length <= MAX_HEADER:
        raise SafetensorsError(
            f"{file}: its header would be {length} bytes long (2 to {MAX_HEADER} allowed). {_REPAIR}"
        )
    if file_size is not None and PREFIX + length > file_size:
        raise SafetensorsError(
            f"{file}: its header would be {length} bytes long, but the whole file has only {file_size}. {_REPAIR}"
        )
    return PREFIX + length


def parse_header(data: bytes, *, file: str, file_size: int | None) -> Header:
    """Validate the header at the start of `data` (the file's first bytes, at least up to `header_stop`).

    `file` is for messages and the TensorRefs; `file_size` is the whole file's length, if known. Raises
    SafetensorsError, naming the tensor, for whatever the format does not allow.
    """
    stop = header_stop(data, file=file, file_size=file_size)
    if len(data) < stop:
        raise SafetensorsError(f"{file} ends within its header ({len(data)} of {stop} bytes). {_REPAIR}")
    try:
        raw = parse_json(data[PREFIX:stop], object_pairs_hook=_object, parse_constant=_no_constant)
    except ValueError as error:
        raise SafetensorsError(f"{file}: its header is not valid JSON ({str(error)[:200]}). {_REPAIR}") from error
    if not isinstance(raw, dict):
        raise SafetensorsError(f"{file}: its header is not a JSON object. {_REPAIR}")
    metadata = raw.pop("__metadata__", None) or {}
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise SafetensorsError(f"{file}: __metadata__ must map names to texts. {_REPAIR}")
    tensors = {name: _tensor(name, entry, file=file, base=stop) for name, entry in raw.items()}
    end = _check_layout(tensors, file=file, base=stop)
    if file_size is not None and end != file_size:
        raise SafetensorsError(
            f"{file} has {file_size} bytes, but its header describes {end}: it is "
            f"{'cut off' if file_size < end else 'longer than it should be'}. {_REPAIR}"
        )
    return Header(tensors=tensors, metadata=metadata, nbytes=end)


def _tensor(name: str, entry: Any, *, file: str, base: int) -> TensorRef:
    def damaged(what: str) -> SafetensorsError:
        return SafetensorsError(f"{file}: tensor {name[:100]!r} {what}. {_REPAIR}")

    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise damaged("must have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        raise damaged(f"has the unknown dtype {str(dtype)[:40]!r}")
    if not isinstance(shape, list) or len(shape) > 32 or not all(_is_size(size) for size in shape):
        raise damaged("has a shape that is not a short list of whole numbers from 0 on")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise damaged("has data_offsets that are not two whole numbers from 0 on")
    start, stop = offsets
    bits = prod(shape) * BITS[dtype]
    if bits % 8 or bits // 8 != stop - start:
        raise damaged(f"has {stop - start} bytes, but {dtype} of shape {str(shape)[:80]} takes {str(bits)[:40]} bits")
    return TensorRef(file=file, dtype=dtype, shape=tuple(shape), start=base + start, stop=base + stop)


def _check_layout(tensors: Mapping[str, TensorRef], *, file: str, base: int) -> int:
    """Check that the tensors lie side by side from `base` on; return the end of the last."""
    end, before = base, "the header"
    for name, ref in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if ref.start != end:
            what = "overlaps" if ref.start < end else "leaves a gap after"
            raise SafetensorsError(f"{file}: tensor {name[:100]!r} {what} {before}. {_REPAIR}")
        end, before = ref.stop, f"tensor {name[:100]!r}"
    return end


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a name occurs twice")
    return result


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
