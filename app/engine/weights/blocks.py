"""The block formats of ggml, in which GGUF files keep quantised weights, and what they stand for.

A row is a whole number of blocks. The layouts are those of ggml's ggml-common.h, the arithmetic that of its
dequantize_row_* functions, in f32. `wgsl/lib/source.wgsl` reads the same blocks on the GPU.
"""

from collections.abc import Callable
from math import prod

import numpy as np
from numpy.typing import NDArray

from app.engine.weights.safetensors import BITS

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

BLOCKS = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}
"""Weights and bytes of one block."""

KEPT = {"Q8_0": "q8", "Q4_0": "q4", "Q4_1": "q4"}
"""Formats that the GPU's own q8 and q4 can hold exactly."""


def nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of an array in C order. Its rows must be whole blocks (see `is_whole`)."""
    if dtype not in BLOCKS:
        return prod(shape) * BITS[dtype] // 8
    size, width = BLOCKS[dtype]
    return prod(shape) // size * width


def is_whole(dtype: str, columns: int) -> bool:
    """Tell whether a row of so many weights is a whole number of blocks."""
    return dtype not in BLOCKS or columns % BLOCKS[dtype][0] == 0


def to_float32(data: bytes, dtype: str) -> Floats:
    """Decode little-endian F32, F16, BF16 (the upper half of an f32), or blocks, into f32: one dimension."""
    if dtype in BLOCKS:
        blocks = np.frombuffer(data, np.uint8).reshape(-1, BLOCKS[dtype][1])
        return np.ascontiguousarray(_READERS[dtype](blocks), np.float32).reshape(-1)
    if dtype == "BF16":
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, {"F32": "<f4", "F16": "<f2"}[dtype]).astype(np.float32)


def _half(blocks: Bytes, start: int) -> Floats:
    """The f16 at byte `start` of each block [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """[n, ..., bytes] -> [n, ..., 2·bytes]: the lower halves of all bytes, then the upper ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _fifth_bits(blocks: Bytes, start: int) -> Bytes:
    """32 bits from byte `start` on, as bytes of 0 or 16 [n, 32]."""
    return np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little") * np.uint8(16)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * ((_nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)).astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _half(blocks, 0) * codes.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32)


def _scales_and_minima(blocks: Bytes) -> tuple[Floats, Floats]:
    """Factors and offsets [n, 8, 1] of the runs of 32 in a Q4_K or Q5_K block: 6 bits each in bytes 4 to 15."""
    low, high, rest = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate([low & 63, (rest & 15) | (low >> 6 << 4)], axis=1)
    minima = np.concatenate([high & 63, (rest >> 4) | (high >> 6 << 4)], axis=1)
    pair = _half(blocks, 0) * scales.astype(np.float32), _half(blocks, 2) * minima.astype(np.float32)
    return pair[0][..., None], pair[1][..., None]


def _q4_k(blocks: Bytes) -> Floats:
    scales, minima = _scales_and_minima(blocks)
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    return scales * codes.astype(np.float32) - minima


def _q5_k(blocks: Bytes) -> Floats:
    scales, minima = _scales_and_minima(blocks)
    codes = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    fifth = (blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    return scales * (codes | fifth << 4).astype(np.float32) - minima


def _q6_k(blocks: Bytes) -> Floats:
    scales = _half(blocks, 208) * np.ascontiguousarray(blocks[:, 192:208]).view(np.int8).astype(np.float32)
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 8, 32)
    shifts = np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = ((blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3).reshape(-1, 8, 32)
    codes = (low | high << 4).astype(np.float32) - 32
    return scales[..., None] * codes.reshape(-1, 16, 16)


_READERS: dict[str, Callable[[Bytes], Floats]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
