"""GGUF's blocks on the GPU: what `convert`, `quantize` and "repack" make of them, against NumPy."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.weights.blocks import BLOCKS, to_float32
from app.engine.weights.quantize import dequantize
from tests.browser.lab_page import Lab
from tests.gguf_models import random_blocks

pytestmark = pytest.mark.browser

GUARD = 64
SOURCES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
ROWS, COLUMNS, CUT, FIRST, STOP = 13, 512, 6, 4, 11
"""The matrix arrives in two pieces, cut at a row; its rows FIRST to STOP are the part of the target that is made."""


def blank(words: int) -> NDArray[np.uint32]:
    return np.full(words + GUARD, 0x12345678, np.uint32)


def run(
    lab: Lab, kernel: str, dtype: str, data: NDArray[np.uint8], outputs: dict[str, NDArray[Any]], **constants: int
) -> None:
    """Run a kernel over both pieces; `outputs` are changed."""
    per_thread = constants["PER_WORD"] if kernel == "convert" else 32
    for row, end in ((0, CUT), (CUT, ROWS)):
        raw = data[row:end].tobytes()
        lines = min(end, STOP) - max(row, FIRST)
        result = lab.run_kernel(
            kernel,
            "source",
            constants={"WG": 64, "SOURCE": SOURCES.index(dtype), "TRANSPOSED": False, **constants},
            bindings={"source": np.frombuffer(raw + bytes(-len(raw) % 4), np.uint32), **outputs},
            uniforms={"piece": [row, end - row, COLUMNS, FIRST, STOP - FIRST, COLUMNS, COLUMNS, 0]},
            grid=(-(-lines * COLUMNS // per_thread // 64), 1),
            outputs=tuple(outputs),
        )
        outputs |= dict(zip(outputs, result, strict=True))
    for output in outputs.values():
        assert (output[-GUARD:] == 0x12345678).all()


@pytest.mark.parametrize("dtype", BLOCKS)
def test_blocks_are_weights(lab: Lab, dtype: str) -> None:
    data = random_blocks(np.random.default_rng(3), dtype, ROWS, COLUMNS)
    expected = to_float32(data.tobytes(), dtype).reshape(ROWS, COLUMNS)[FIRST:STOP]
    plain: dict[str, NDArray[Any]] = {"destination": blank(expected.size)}
    run(lab, "convert", dtype, data, plain, PER_WORD=1)
    # A GPU may fuse a product and a sum, which rounds once less.
    found = plain["destination"][:-GUARD].view(np.float32).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)

    q8: dict[str, NDArray[Any]] = {"destination": blank(expected.size // 4), "scales": blank(expected.size // 32)}
    run(lab, "quantize", dtype, data, q8, BITS=8)
    shape = (STOP - FIRST, -1)
    again = dequantize(q8["destination"][:-GUARD].reshape(shape), q8["scales"][:-GUARD].reshape(shape), "q8")
    np.testing.assert_allclose(again, expected, atol=0.51 * np.abs(expected).max() / 127)


@pytest.mark.parametrize(("dtype", "bits"), [("Q8_0", 8), ("Q4_0", 4), ("Q4_1", 4)])
def test_blocks_are_repacked_without_a_change(lab: Lab, dtype: str, bits: int) -> None:
    data = random_blocks(np.random.default_rng(4), dtype, ROWS, COLUMNS)
    expected = to_float32(data.tobytes(), dtype).reshape(ROWS, COLUMNS)[FIRST:STOP]
    size = expected.size
    packed: dict[str, NDArray[Any]] = {"destination": blank(size * bits // 32), "scales": blank(size // 32)}
    run(lab, "repack", dtype, data, packed, BITS=bits)
    shape = (STOP - FIRST, -1)
    codes, scales = (packed[name][:-GUARD].reshape(shape) for name in ("destination", "scales"))
    np.testing.assert_array_equal(dequantize(codes, scales, f"q{bits}"), expected)
