"""What a config.json may say, and what is refused by name."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.engine.errors import EngineError, ModelFileError, UnsupportedModelError
from app.engine.models.config import (
    GPT2Config,
    GPTNeoConfig,
    GPTNeoXConfig,
    LlamaConfig,
    config_from_dict,
    parse_config,
)
from app.engine.models.rope import Rope

GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_head": 3, "n_embd": 48, "vocab_size": 97, "n_positions": 64}
SIZES = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 48,
    "intermediate_size": 80,
    "vocab_size": 97,
    "max_position_embeddings": 64,
}
LLAMA = {"model_type": "llama", **SIZES}
QWEN2 = {"model_type": "qwen2", **SIZES}
QWEN3 = {"model_type": "qwen3", **SIZES, "head_dim": 16}
NEO = {
    "model_type": "gpt_neo",
    "num_layers": 2,
    "num_heads": 3,
    "hidden_size": 48,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "attention_types": [[["global", "local"], 1]],
    "window_size": 5,
}
NEOX = {"model_type": "gpt_neox", **SIZES, "rotary_pct": 0.5}
FAMILIES = {"gpt2": GPT2, "llama": LLAMA, "qwen2": QWEN2, "qwen3": QWEN3, "gpt_neo": NEO, "gpt_neox": NEOX}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def test_defaults_are_those_of_gpt2_small() -> None:
    config = parse_config("{}")
    assert isinstance(config, GPT2Config)
    assert (config.n_layer, config.n_head, config.n_embd, config.n_vocab) == (12, 12, 768, 50257)
    assert (config.n_ctx, config.n_inner, config.activation, config.eos_id) == (1024, 3072, "gelu_new", 50256)
    assert config.attention_scale(3) == pytest.approx(1 / 8)


def test_every_field_of_gpt2_is_read() -> None:
    config = config_from_dict(
        GPT2
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
    assert isinstance(config, GPT2Config)
    assert (config.n_inner, config.activation, config.layer_norm_epsilon) == (37, "silu", 1e-3)
    assert (config.tied, config.eos_id, config.head_dim) == (False, 5, 16)
    assert config.attention_scale(3) == pytest.approx(1 / 4)


def test_llama() -> None:
    """SmolLM2-135M's config.json, as published, and Llama-3.2-1B's rope."""
    config = config_from_dict(
        {
            "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
            "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
            "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192, "model_type": "llama",
            "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1,
            "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
            "tie_word_embeddings": True, "torch_dtype": "bfloat16", "use_cache": True, "vocab_size": 49152,
        }
    )  # fmt: skip
    assert config == LlamaConfig(
        n_layer=30, n_head=9, n_kv_head=3, head_dim=64, n_embd=576, n_inner=1536, n_vocab=49152, n_ctx=8192,
        rope=Rope(width=64, theta=100_000.0, original_context=8192), rms_norm_epsilon=1e-5, tied=True, eos_id=0,
    )  # fmt: skip
    config = config_from_dict(
        LLAMA | {"rope_theta": 5e5, "rope_scaling": LLAMA3, "head_dim": 20, "attention_bias": True, "mlp_bias": True}
    )
    assert isinstance(config, LlamaConfig)
    assert config.rope == Rope(width=20, theta=5e5, scaling="llama3", factor=8.0, original_context=32)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (True, True, True)


def test_qwen() -> None:
    config = config_from_dict(QWEN2 | {"eos_token_id": 3})
    assert isinstance(config, LlamaConfig)
    assert (config.family, config.head_dim, config.qkv_bias, config.output_bias) == ("qwen2", 12, True, False)
    assert (config.eos_id, config.tied, config.qk_norm) == (3, False, False)
    config = config_from_dict(QWEN3)
    assert isinstance(config, LlamaConfig)
    assert (config.family, config.head_dim, config.qkv_bias, config.qk_norm) == ("qwen3", 16, False, True)


def test_gpt_neo() -> None:
    config = config_from_dict(NEO)
    assert isinstance(config, GPTNeoConfig)
    assert (config.windows, config.n_inner, config.head_dim, config.tied) == ((0, 5), 192, 16, True)
    config = config_from_dict(NEO | {"attention_layers": ["local", "local"]})
    assert isinstance(config, GPTNeoConfig)
    assert config.windows == (5, 5)


def test_gpt_neox() -> None:
    config = config_from_dict(NEOX | {"rotary_emb_base": 5000, "use_parallel_residual": False, "head_dim": 99})
    assert isinstance(config, GPTNeoXConfig)
    assert config.rope == Rope(width=6, theta=5000.0, original_context=64)
    assert (config.parallel_residual, config.head_dim, config.n_kv_head, config.activation) == (False, 12, 4, "gelu")


@pytest.mark.parametrize(
    "change",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 2}},
        {"rope_parameters": {"rope_theta": 500000, "rope_type": "linear", "factor": 2.0}},
    ],
)
def test_every_spelling_of_rope_scaling(change: dict[str, Any]) -> None:
    config = config_from_dict(LLAMA | change)
    assert config.rope == Rope(width=12, theta=5e5, scaling="linear", factor=2.0, original_context=64)


def test_the_rotary_layout_of_other_formats_can_be_told() -> None:
    config = config_from_dict(LLAMA | {"rope_interleaved": True})
    plain = config_from_dict(LLAMA)
    assert plain.rope is not None
    assert config.rope == replace(plain.rope, interleaved=True)
    # transformers does not look at it in a config.json, where some trainers leave it
    assert parse_config(json.dumps(LLAMA | {"rope_interleaved": True})) == plain


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_what_the_engine_asks_for(family: str) -> None:
    config = config_from_dict(FAMILIES[family])
    assert (config.family, config.n_layer, config.n_embd, config.n_vocab) == (family, 2, 48, 97)
    assert config.n_ctx == 64
    assert config.n_head % config.n_kv_head == 0
    assert config.head_dim > 0
    assert (config.rope is None) == (family in ("gpt2", "gpt_neo"))


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        (GPT2 | {"model_type": "mamba"}, "mamba"),
        (GPT2 | {"model_type": ["gpt2"]}, "gpt2"),
        (GPT2 | {"activation_function": "mish"}, "mish"),
        (GPT2 | {"add_cross_attention": True}, "add_cross_attention"),
        (GPT2 | {"quantization_config": {}}, "quantization_config"),
        (LLAMA | {"hidden_act": "relu2"}, "relu2"),
        (LLAMA | {"num_local_experts": 8}, "num_local_experts"),
        (LLAMA | {"sliding_window": 32}, "sliding_window"),
        (LLAMA | {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        (LLAMA | {"head_dim": 7}, "7 features"),
        (LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        (LLAMA | {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        (LLAMA | {"rope_parameters": {"rope_type": "longrope"}}, "longrope"),
        (LLAMA | {"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "differ between its layers"),
        (QWEN2 | {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1}, "sliding_window"),
        (QWEN2 | {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 32}, "sliding_window"),
        (QWEN3 | {"layer_types": ["full_attention", "linear_attention"]}, "linear_attention"),
        (NEO | {"attention_types": [[["global", "sparse"], 1]]}, "sparse"),
        (NEOX | {"rotary_pct": 0.25}, "turns 3 features"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(raw: dict[str, Any], name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=name):
        config_from_dict(raw)


@pytest.mark.parametrize(
    "change",
    [
        {"use_sliding_window": False, "sliding_window": 32},
        {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 2},
        {"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 0},
    ],
)
def test_windows_that_do_nothing_are_no_obstacle(change: dict[str, Any]) -> None:
    assert config_from_dict(QWEN2 | change).family == "qwen2"


@pytest.mark.parametrize(
    "raw",
    [
        *(
            GPT2 | change
            for change in (
                {"n_head": 5},
                {"n_layer": 10**6},
                {"vocab_size": 10**9},
                {"n_embd": 0},
                {"n_embd": True},
                {"n_embd": "768"},
                {"n_positions": -1},
                {"layer_norm_epsilon": 0},
                {"layer_norm_epsilon": float("nan")},
            )
        ),
        LLAMA | {"num_key_value_heads": 3},
        LLAMA | {"num_key_value_heads": 0},
        LLAMA | {"hidden_size": 50},
        LLAMA | {"rope_theta": -1},
        LLAMA | {"rope_theta": float("inf")},
        LLAMA | {"rope_scaling": {"type": "linear"}},
        LLAMA | {"rope_scaling": {"type": "linear", "factor": 0}},
        LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
        LLAMA | {"rope_scaling": "linear"},
        QWEN2 | {"layer_types": ["full_attention"]},
        NEO | {"attention_types": [[["global", "local"], 2]]},
        NEO | {"attention_types": [["global", 10**12]]},
        NEO | {"attention_types": "global"},
        NEOX | {"num_attention_heads": 5},
    ],
)
def test_damaged_values_are_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json"):
        config_from_dict(raw)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, b"\xff\xfe"])
def test_damaged_files_are_refused(text: str | bytes) -> None:
    with pytest.raises(ModelFileError):
        parse_config(text)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "factor"]), inner, max_size=2),
)
NAMES = sorted(
    {name for raw in FAMILIES.values() for name in raw} - {"model_type"}
    | {"n_inner", "eos_token_id", "activation_function", "hidden_act", "head_dim", "sliding_window", "layer_types"}
    | {"rope_theta", "rope_scaling", "rope_parameters", "attention_layers"}
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no failure
@given(st.sampled_from(sorted(FAMILIES)), st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=4))
def test_no_config_crashes(family: str, values: dict[str, Any]) -> None:
    try:
        config = parse_config(json.dumps(FAMILIES[family] | values))
    except EngineError:
        return
    assert config.n_head % config.n_kv_head == 0
