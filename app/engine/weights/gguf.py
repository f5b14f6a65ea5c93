"""The header of a GGUF file, read from untrusted bytes as far as it goes: metadata, and where each tensor lies.

A file (version 2 or 3, little-endian) is "GGUF", the version, the numbers of tensors and of entries; the entries
(name, type, value), which are the metadata; the tensors' names, dimensions, types and offsets; and, from the next
multiple of the alignment on, the tensors' bytes. The format is ggml's docs/gguf.md. Dimensions stand there with the
fastest one first; here, as everywhere, it is the last.
"""

import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from app.engine.errors import GgufError, UnsupportedModelError
from app.engine.weights.blocks import BLOCKS, is_whole, nbytes
from app.engine.weights.files import ModelFiles
from app.engine.weights.safetensors import TensorRef, check_kind

MAX_HEADER = 128 << 20
"""Bytes up to the tensors: a large vocabulary with its merges takes 8 MB."""
MAX_ENTRIES = 65_536
"""Metadata entries, and tensors."""
MAX_NAME = 512
MAX_ITEMS = 4_000_000
"""Of all arrays together: a vocabulary of 150,000 tokens with its merges and their kinds has half a million."""
MAX_DEPTH = 4
FIRST_BYTES, NEXT_BYTES = 1 << 16, 2 << 20
"""What is asked for at first, and each time that it turns out too little."""

_OLD = ("F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1")
_K = (
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "Q8_K",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ3_XXS",
    "IQ1_S",
    "IQ4_NL",
    "IQ3_S",
    "IQ2_S",
)
_LATER = ("IQ4_XS", "I8", "I16", "I32", "I64", "F64", "IQ1_M", "BF16")
DTYPES = dict(enumerate((*_OLD, *_K, *_LATER))) | {34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"}
"""ggml's names of its types."""
READABLE = ("F32", "F16", "BF16", *BLOCKS)

_REPAIR = "The file is damaged or no GGUF file; get it again, or tell the repository's owner."
_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", _BOOL: "<?", 10: "<Q", 11: "<q", 12: "<d"}


@dataclass(frozen=True, kw_only=True)
class Gguf:
    """A validated header."""

    file: str
    metadata: dict[str, Any]
    """Strings, numbers, booleans, and lists of them."""
    tensors: dict[str, TensorRef]
    """By ggml's names, with the fastest dimension last."""


async def read_gguf(source: ModelFiles, file: str) -> Gguf:
    """Read the header of `file`.

    Raises GgufError for whatever the format does not allow, UnsupportedModelError for a version or a kind of tensor
    that is not read here, WrongContentError, or a HubError.
    """
    blob, size = await source.head(file, FIRST_BYTES)

    async def more(start: int) -> bytes:
        stop = start + NEXT_BYTES if size is None else min(start + NEXT_BYTES, size)
        return (await source.read_range(file, start, stop)).to_bytes() if stop > start else b""

    return await parse_gguf(blob.to_bytes(), more, file=file, label=source.label(file), size=size)


async def parse_gguf(
    data: bytes, more: Callable[[int], Awaitable[bytes]], *, file: str, label: str, size: int | None
) -> Gguf:
    """Parse the header of a file that begins with `data` and has `size` bytes, if that is known.

    `more` gives the bytes from an offset on, as many as it likes, and none at the end. Errors as in `read_gguf`.
    """
    check_kind(data, file=label)
    reader = _Reader(data, more, label)
    if await reader.take(4) != b"GGUF":
        raise GgufError(f"{label} does not begin like a GGUF file. {_REPAIR}")
    version = await reader.number("<I")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "big"), "little") in (2, 3)
        what = "big-endian" if swapped else f"of version {version}"
        raise UnsupportedModelError(
            f"{label} is a GGUF file {what}; tabgpt reads little-endian ones of version 2 and 3."
        )
    n_tensors, n_entries = await reader.number("<Q"), await reader.number("<Q")
    if n_tensors > MAX_ENTRIES or n_entries > MAX_ENTRIES:
        raise GgufError(f"{label} announces {n_tensors} tensors and {n_entries} entries, too many. {_REPAIR}")
    metadata: dict[str, Any] = {}
    for _ in range(n_entries):
        name = await reader.string(MAX_NAME)
        if name in metadata:
            raise GgufError(f"{label}: the entry {name[:100]!r} occurs twice. {_REPAIR}")
        metadata[name] = await reader.value(await reader.number("<I"), name)
    infos = [await reader.tensor() for _ in range(n_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment % 8:
        raise GgufError(f"{label}: general.alignment is {str(alignment)[:40]!r}. {_REPAIR}")
    base = -(-reader.position // alignment) * alignment
    return Gguf(file=file, metadata=metadata, tensors=_place(infos, base, alignment, file=file, label=label, size=size))


def _place(
    infos: list[tuple[str, tuple[int, ...], int, int]],
    base: int,
    alignment: int,
    *,
    file: str,
    label: str,
    size: int | None,
) -> dict[str, TensorRef]:
    """Check where the tensors say that they lie."""
    tensors: dict[str, TensorRef] = {}
    for name, shape, kind, offset in infos:
        dtype = DTYPES.get(kind, f"type {kind}")
        if name in tensors:
            raise GgufError(f"{label}: tensor {name[:100]!r} occurs twice. {_REPAIR}")
        if dtype not in READABLE:
            raise UnsupportedModelError(
                f"{label}: tensor {name[:100]!r} is stored as {dtype}; tabgpt reads {', '.join(READABLE)}. Choose "
                "another quantisation of this model, for example Q4_0, Q8_0 or Q4_K_M."
            )
        if not is_whole(dtype, shape[-1] if shape else 1):
            raise GgufError(f"{label}: tensor {name[:100]!r} has rows that are no whole blocks of {dtype}. {_REPAIR}")
        if offset % alignment:
            raise GgufError(f"{label}: tensor {name[:100]!r} is not aligned to {alignment} bytes. {_REPAIR}")
        stop = base + offset + nbytes(dtype, shape)
        if stop >= 1 << 53 or (size is not None and stop > size):
            raise GgufError(f"{label}: tensor {name[:100]!r} ends at byte {stop}, the file at {size}. {_REPAIR}")
        tensors[name] = TensorRef(file=file, dtype=dtype, shape=shape, start=base + offset, stop=stop)
    end, before = 0, ""
    for name, ref in sorted(tensors.items(), key=lambda item: (item[1].start, item[1].stop)):
        if ref.start < end:
            raise GgufError(f"{label}: tensors {before[:100]!r} and {name[:100]!r} overlap. {_REPAIR}")
        end, before = ref.stop, name
    return tensors


class _Reader:
    """Reads values one after the other, and fetches when the bytes run out. Lengths are checked before use."""

    def __init__(self, data: bytes, more: Callable[[int], Awaitable[bytes]], label: str) -> None:
        self._data, self._more, self._label = bytearray(data), more, label
        self.position = 0
        self._items = 0

    async def need(self, count: int) -> None:
        """Make sure that `count` bytes are there."""
        stop = self.position + count
        if stop > MAX_HEADER:
            raise GgufError(f"{self._label}: its header would be longer than {MAX_HEADER} bytes. {_REPAIR}")
        while len(self._data) < stop:
            found = await self._more(len(self._data))
            if not found:
                raise GgufError(f"{self._label} ends within its header, after {len(self._data)} bytes. {_REPAIR}")
            self._data += found

    async def take(self, count: int) -> bytes:
        """Return the next bytes."""
        if self.position + count > len(self._data):
            await self.need(count)
        start = self.position
        self.position += count
        return bytes(self._data[start : self.position])

    async def number(self, form: str) -> Any:
        """Return the next number, of a form that `struct` knows."""
        return struct.unpack(form, await self.take(struct.calcsize(form)))[0]

    async def string(self, most: int) -> str:
        """Return the next string."""
        length = await self.number("<Q")
        if length > most:
            raise GgufError(f"{self._label} has a name or text of {length} bytes, too long for what it is. {_REPAIR}")
        # Single tokens of a vocabulary may be no UTF-8 in themselves.
        return (await self.take(length)).decode("utf-8", "replace")

    async def value(self, kind: int, name: str, depth: int = 0) -> Any:
        """Return the next value of a kind."""
        if kind in _NUMBERS:
            return await self.number(_NUMBERS[kind])
        if kind == _STRING:
            return await self.string(MAX_HEADER)
        if kind != _ARRAY or depth >= MAX_DEPTH:
            raise GgufError(f"{self._label}: the entry {name[:100]!r} is of an unknown kind ({kind}). {_REPAIR}")
        item, count = await self.number("<I"), await self.number("<Q")
        self._items += count
        if self._items > MAX_ITEMS:
            raise GgufError(f"{self._label}: the entry {name[:100]!r} has {count} items, too many. {_REPAIR}")
        if item in _NUMBERS:
            width = struct.calcsize(_NUMBERS[item])
            return list(struct.unpack(f"<{count}{_NUMBERS[item][1]}", await self.take(count * width)))
        if item == _STRING:
            return await self._strings(count)
        return [await self.value(item, name, depth + 1) for _ in range(count)]

    async def _strings(self, count: int) -> list[str]:
        # Hundreds of thousands: no call for each.
        found: list[str] = []
        unpack = struct.Struct("<Q").unpack_from
        while len(found) < count:
            await self.need(8)
            data, position = self._data, self.position
            while len(found) < count and position + 8 <= len(data):
                stop = position + 8 + unpack(data, position)[0]
                if stop > len(data):
                    break
                found.append(data[position + 8 : stop].decode("utf-8", "replace"))
                position = stop
            self.position = position
            if len(found) < count and position + 8 <= len(data):
                await self.need(8 + unpack(data, position)[0])
        return found

    async def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Return the next tensor's name, shape, type and offset."""
        name, n_dims = await self.string(MAX_NAME), await self.number("<I")
        if n_dims > 4:
            raise GgufError(f"{self._label}: tensor {name[:100]!r} has {n_dims} dimensions. {_REPAIR}")
        shape = tuple([await self.number("<Q") for _ in range(n_dims)][::-1])
        elements = 1
        for dimension in shape:
            elements *= dimension
        if not 0 < elements < 1 << 48:
            raise GgufError(f"{self._label}: tensor {name[:100]!r} has the dimensions {str(shape)[:80]}. {_REPAIR}")
        return name, shape, await self.number("<I"), await self.number("<Q")
