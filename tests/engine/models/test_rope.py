"""Rotary angles: exact, to the end of the longest context."""

import math

import numpy as np
import pytest

from app.engine.models.rope import Rope, angle_table, frequencies


@pytest.mark.parametrize("scaling", ["default", "linear"])
def test_angles_are_exact_at_far_positions(scaling: str) -> None:
    rope = Rope(width=64, theta=500_000.0, scaling=scaling, factor=1.0 if scaling == "default" else 4.0)
    for position in (0, 1, 4095, 131_071):
        table = angle_table(rope, position, position + 1)[0]
        for pair in range(32):
            angle = position * 500_000.0 ** (-pair / 32) / rope.factor
            assert table[pair] == pytest.approx([math.cos(angle), math.sin(angle)], abs=1e-7)


def test_llama3_leaves_fast_pairs_and_slows_slow_ones() -> None:
    """The numbers of transformers' _compute_llama3_parameters for Llama-3.2-1B, in float64."""
    plain = frequencies(Rope(width=64, theta=500_000.0))
    rope = Rope(width=64, theta=500_000.0, scaling="llama3", factor=32.0, original_context=8192)
    ratio = frequencies(rope) / plain
    wavelengths = 2 * np.pi / plain
    assert (ratio[wavelengths < 8192 / 4] == 1).all()
    np.testing.assert_allclose(ratio[wavelengths > 8192], 1 / 32)
    middle = (wavelengths >= 8192 / 4) & (wavelengths <= 8192)
    assert middle.any()
    smooth = (8192 / wavelengths[middle] - 1) / 3
    np.testing.assert_allclose(ratio[middle], (1 - smooth) / 32 + smooth)


def test_a_part_of_a_table_is_the_table_from_there() -> None:
    rope = Rope(width=6, theta=100.0)
    whole = angle_table(rope, 0, 10)
    assert whole.shape == (10, 3, 2)
    np.testing.assert_array_equal(whole[4:7], angle_table(rope, 4, 7))
