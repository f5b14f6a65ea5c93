"""q8 and q4 in NumPy: the formats that wgsl/quantize.wgsl writes and the kernels read.

Blocks of 32 weights along a row (an output feature). q8: code = round(w / scale), a signed byte, scale = max |w| / 127
in f32. q4: code = round((w - minimum) / scale), 4 bits, scale = (max - min) / 15, both kept in f16. Codes and scales
lie in separate arrays, the rows padded to whole blocks by zeros.
"""

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
Floats = NDArray[np.float32]

BLOCK = 32


def quantize(weight: Floats, precision: str) -> tuple[Words, Words]:
    """weight [rows, k], k a multiple of 32 -> codes [rows, k·bits/32] and scales [rows, k/32], as words."""
    rows, k = weight.shape
    blocks = weight.reshape(rows, k // BLOCK, BLOCK).astype(np.float32)
    if precision == "q8":
        scale = np.abs(blocks).max(axis=2) / np.float32(127)
        codes = _divided(blocks, scale[..., None]).clip(-127, 127).astype(np.int8)
        return codes.reshape(rows, k).view(np.uint32), scale.view(np.uint32)
    low, high = blocks.min(axis=2), blocks.max(axis=2)
    pairs = np.stack([(high - low) / np.float32(15), low], axis=2).clip(-65504, 65504).astype(np.float16)
    scale, low = pairs[..., 0].astype(np.float32), pairs[..., 1].astype(np.float32)
    nibbles = _divided(blocks - low[..., None], scale[..., None]).clip(0, 15).astype(np.uint8).reshape(rows, k // 2, 2)
    codes = nibbles[..., 0] | nibbles[..., 1] << 4
    return np.ascontiguousarray(codes).view(np.uint32), pairs.view(np.uint32)[..., 0]


def dequantize(codes: Words, scales: Words, precision: str) -> Floats:
    """The weights [rows, k] that codes and scales stand for."""
    rows, blocks = scales.shape
    if precision == "q8":
        values = codes.view(np.int8).reshape(rows, blocks, BLOCK).astype(np.float32)
        return (values * scales.view(np.float32)[..., None]).reshape(rows, -1)
    packed = codes.view(np.uint8)
    values = np.stack([packed & 15, packed >> 4], axis=2).reshape(rows, blocks, BLOCK).astype(np.float32)
    pairs = np.ascontiguousarray(scales).view(np.float16).reshape(rows, blocks, 2).astype(np.float32)
    return (pairs[..., 1:] + pairs[..., :1] * values).reshape(rows, -1)


def _divided(values: Floats, scale: Floats) -> Floats:
    """round(values / scale), 0 where the scale is."""
    safe = np.where(scale > 0, scale, 1)
    return np.where(scale > 0, np.round(values / safe), 0).astype(np.float32)
