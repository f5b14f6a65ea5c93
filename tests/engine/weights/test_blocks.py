import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from app.engine.weights.blocks import BLOCKS, is_whole, nbytes, to_float32
from tests.gguf_models import random_blocks


@pytest.mark.parametrize("dtype", BLOCKS)
def test_random_blocks_are_what_the_reference_makes_of_them(dtype: str) -> None:
    chance = np.random.default_rng(1)
    size, width = BLOCKS[dtype]
    # Any bytes at all: scales may be infinite or no number then, and so are the weights.
    wild = chance.integers(0, 256, (1000, width), dtype=np.uint8)
    with np.errstate(all="ignore"):
        for blocks in (wild, random_blocks(chance, dtype, 8, 4 * size)):
            expected = quants.dequantize(blocks, GGMLQuantizationType[dtype]).astype(np.float32)
            found = to_float32(blocks.tobytes(), dtype)
            np.testing.assert_array_equal(found, expected.reshape(-1))
    assert np.abs(found).max() > 0.01, "the tame ones are weights"


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_weights_are_what_the_reference_makes_of_them(dtype: str) -> None:
    weights = np.random.default_rng(2).normal(0, 0.1, (16, 256)).astype(np.float32)
    kind = GGMLQuantizationType[dtype]
    blocks = quants.quantize(weights, kind)
    found = to_float32(blocks.tobytes(), dtype).reshape(weights.shape)
    np.testing.assert_array_equal(found, quants.dequantize(blocks, kind))
    assert np.abs(found - weights).max() < 0.05


def test_sizes() -> None:
    assert nbytes("Q4_K", (3, 512)) == 3 * 2 * 144
    assert nbytes("F16", (3, 5)) == 30
    whole = [("Q6_K", 512), ("Q8_0", 96), ("F32", 7)]
    assert all(is_whole(dtype, columns) for dtype, columns in whole)
    assert not is_whole("Q6_K", 384)
