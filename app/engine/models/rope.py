"""Rotary position embeddings (Su et al. 2021, "RoFormer"): which pairs of features turn, and how fast.

Pair i of a head's first `width` features is turned by position · frequency i. The cosines and sines come from a table
that is computed here in float64. WGSL promises sin and cos only within [-π, π], and an angle in f32 is off by 0.004 at
position 100,000; a table of 4,096 positions takes a megabyte.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.engine.errors import ModelFileError, UnsupportedModelError
from app.engine.models.fields import Fields


@dataclass(frozen=True, kw_only=True)
class Rope:
    """How queries and keys are turned."""

    width: int
    """Features of a head that are turned, an even number; the rest stay."""
    theta: float = 10_000.0
    interleaved: bool = False
    """Whether pair i is features (2i, 2i + 1), as in the paper and in GGUF files of llama; else (i, i + width / 2)."""
    scaling: str = "default"
    """"default", "linear" or "llama3"."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    """These three: of "llama3"."""


def read_rope(fields: Fields, head_dim: int, n_ctx: int, *, theta: str = "rope_theta", partial: float = 1.0) -> Rope:
    """Read what a config says about rotary embeddings, in the spellings of transformers 4 and 5.

    `theta` names the base in older configs, `partial` is the share of a head that turns unless `rope_parameters` says
    otherwise. Raises UnsupportedModelError or ModelFileError.
    """
    parameters, scaling = fields.get("rope_parameters"), fields.get("rope_scaling")
    place = "rope_parameters" if parameters is not None else "rope_scaling"
    given = parameters if parameters is not None else scaling if scaling is not None else {}
    if not isinstance(given, dict):
        raise ModelFileError(f"config.json: {place} must be an object, not {str(given)[:40]!r}.")
    if any(isinstance(value, dict) for value in given.values()):
        raise UnsupportedModelError(f"This model's {place} differ between its layers, which tabgpt does not support.")
    inner = Fields(given, f"config.json, {place}")
    kind = inner.get("rope_type", inner.get("type", "default"))
    if kind not in ("default", "linear", "llama3"):
        raise UnsupportedModelError(
            f"This model's {place} is of the type {str(kind)[:40]!r}; tabgpt has default, linear and llama3."
        )
    share = inner.number("partial_rotary_factor", partial, 0, 1 + 1e-9)
    width = int(head_dim * share)
    if width < 2 or width % 2 or head_dim % 2:
        raise UnsupportedModelError(
            f"This model turns {width} features of heads of {head_dim}; tabgpt turns even numbers of even ones."
        )
    base = Fields({theta: inner.get("rope_theta", fields.get(theta))})
    return Rope(
        width=width,
        theta=base.number(theta, 10_000.0, 1, 1e12),
        interleaved=fields.flag("rope_interleaved", False),
        scaling=str(kind),
        factor=1.0 if kind == "default" else inner.number("factor", None, 0, 1e6),
        low_freq_factor=inner.number("low_freq_factor", 1.0 if kind != "llama3" else None, 0, 1e6),
        high_freq_factor=inner.number("high_freq_factor", 4.0 if kind != "llama3" else None, 0, 1e6),
        original_context=inner.whole("original_max_position_embeddings", n_ctx, 1 << 30),
    )


def frequencies(rope: Rope) -> NDArray[np.float64]:
    """Radians by which each pair turns from one position to the next [width / 2].

    `llama3` is as in transformers' `_compute_llama3_parameters`: slow pairs are slowed down by `factor`, fast ones
    stay, those between are blended.
    """
    plain = rope.theta ** (-np.arange(0, rope.width, 2, dtype=np.float64) / rope.width)
    if rope.scaling != "llama3":
        return plain / rope.factor
    turns = rope.original_context * plain / (2 * np.pi)  # within the original context
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = np.where(turns < rope.low_freq_factor, 0.0, np.where(turns > rope.high_freq_factor, 1.0, blend))
    return np.asarray(plain * (blend + (1 - blend) / rope.factor))


def angle_table(rope: Rope, first: int, stop: int) -> NDArray[np.float32]:
    """Cosine and sine for positions [first, stop): [positions, width / 2, 2]."""
    angles = np.arange(first, stop, dtype=np.float64)[:, None] * frequencies(rope)
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)
