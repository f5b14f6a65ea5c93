"""The quantised formats in NumPy."""

import numpy as np
import pytest

from app.engine.weights.quantize import dequantize, quantize


@pytest.mark.parametrize(("precision", "steps"), [("q8", 127 * 2), ("q4", 15)])
def test_no_weight_is_off_by_more_than_half_a_step(precision: str, steps: int) -> None:
    weight = np.random.default_rng(0).normal(size=(7, 96)).astype(np.float32)
    codes, scales = quantize(weight, precision)
    bits = int(precision[1])
    assert codes.shape == (7, 96 * bits // 32)
    assert scales.shape == (7, 3)
    blocks = weight.reshape(7, 3, 32)
    span = 2 * np.abs(blocks).max(axis=2) if precision == "q8" else np.ptp(blocks, axis=2)
    error = np.abs(dequantize(codes, scales, precision) - weight).reshape(7, 3, 32).max(axis=2)
    assert (error <= 0.52 * span / steps + 2e-3 * (precision == "q4")).all()


@pytest.mark.parametrize("precision", ["q8", "q4"])
def test_zeros_and_constants(precision: str) -> None:
    weight = np.zeros((2, 64), np.float32)
    weight[1] = 0.5
    restored = dequantize(*quantize(weight, precision), precision)
    np.testing.assert_allclose(restored, weight, atol=1e-6)


def test_quantising_twice_changes_nothing() -> None:
    weight = np.random.default_rng(1).normal(size=(3, 64)).astype(np.float32)
    once = dequantize(*quantize(weight, "q8"), "q8")
    np.testing.assert_allclose(dequantize(*quantize(once, "q8"), "q8"), once, atol=1e-6)
