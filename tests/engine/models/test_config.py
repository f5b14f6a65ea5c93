"""What a config.json may say, and what is refused by name."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.engine.errors import EngineError, ModelFileError, UnsupportedModelError
from app.engine.models.config import config_from_dict, parse_config

SMALL = {"model_type": "gpt2", "n_layer": 2, "n_head": 3, "n_embd": 48, "vocab_size": 97, "n_positions": 64}


def test_defaults_are_those_of_gpt2_small() -> None:
    config = parse_config("{}")
    assert (config.n_layer, config.n_head, config.n_embd, config.n_vocab) == (12, 12, 768, 50257)
    assert (config.n_ctx, config.n_inner, config.activation, config.eos_id) == (1024, 3072, "gelu_new", 50256)
    assert config.attention_scale(3) == pytest.approx(1 / 8)


def test_every_field_is_read() -> None:
    config = config_from_dict(
        SMALL
        | {
            "n_inner": 37,
            "activation_function": "swish",
            "layer_norm_epsilon": 1e-3,
            "scale_attn_weights": False,
            "scale_attn_by_inverse_layer_idx": True,
            "tie_word_embeddings": False,
            "eos_token_id": [5, 6],
        }
    )
    assert (config.n_inner, config.activation, config.layer_norm_epsilon) == (37, "silu", 1e-3)
    assert (config.tied, config.eos_id, config.head_dim) == (False, 5, 16)
    assert config.attention_scale(3) == pytest.approx(1 / 4)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"model_type": "llama"}, "llama"),
        ({"activation_function": "mish"}, "mish"),
        ({"add_cross_attention": True}, "add_cross_attention"),
        ({"quantization_config": {}}, "quantization_config"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        config_from_dict(SMALL | change)


@pytest.mark.parametrize(
    "change",
    [
        {"n_head": 5},
        {"n_layer": 10**6},
        {"vocab_size": 10**9},
        {"n_embd": 0},
        {"n_embd": True},
        {"n_embd": "768"},
        {"n_positions": -1},
        {"layer_norm_epsilon": 0},
        {"layer_norm_epsilon": float("nan")},
    ],
)
def test_damaged_values_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json"):
        config_from_dict(SMALL | change)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, b"\xff\xfe"])
def test_damaged_files_are_refused(text: str | bytes) -> None:
    with pytest.raises(ModelFileError):
        parse_config(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
@given(st.dictionaries(st.sampled_from([*SMALL, "n_inner", "eos_token_id", "activation_function"]), VALUES))
def test_no_config_crashes(values: dict[str, Any]) -> None:
    try:
        config = parse_config(json.dumps(values))
    except EngineError:
        return
    assert config.n_embd % config.n_head == 0
