"""Shapes of published models, as the `config.json` of each has them."""

from typing import Any


def _gpt2(n_layer: int, n_head: int, n_embd: int) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_layer": n_layer,
        "n_head": n_head,
        "n_embd": n_embd,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    }


def _llama(
    family: str, layers: int, width: int, inner: int, heads: int, kv_heads: int, *, vocab: int, eos: int, **more: Any
) -> dict[str, Any]:
    names = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
    return {
        "architectures": [names[family]],
        "model_type": family,
        "vocab_size": vocab,
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": inner,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": eos,
        "eos_token_id": eos,
        **more,
    }


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_QWEN: dict[str, Any] = {"vocab": 151936, "eos": 151643, "rope_theta": 1e6, "rms_norm_eps": 1e-6}
PRESETS: dict[str, dict[str, Any]] = {
    "gpt2": _gpt2(12, 12, 768),
    "gpt2-medium": _gpt2(24, 16, 1024),
    "gpt2-large": _gpt2(36, 20, 1280),
    "gpt2-xl": _gpt2(48, 25, 1600),
    "distilgpt2": _gpt2(6, 12, 768),
    "smollm2-135m": _llama(
        "llama", 30, 576, 1536, 9, 3,
        vocab=49152, eos=0, rope_theta=100000.0, rms_norm_eps=1e-5, max_position_embeddings=8192,
    ),
    "llama-3.2-1b": _llama(
        "llama", 16, 2048, 8192, 32, 8,
        vocab=128256, eos=128001, head_dim=64, rope_theta=500000.0, rope_scaling=_LLAMA3, rms_norm_eps=1e-5,
        max_position_embeddings=131072,
    ),
    "qwen2.5-0.5b": _llama("qwen2", 24, 896, 4864, 14, 2, **_QWEN, max_position_embeddings=32768),
    "qwen3-0.6b": _llama("qwen3", 28, 1024, 3072, 16, 8, **_QWEN, head_dim=128, max_position_embeddings=40960),
    "tinystories-33m": {
        "architectures": ["GPTNeoForCausalLM"],
        "model_type": "gpt_neo",
        "vocab_size": 50257,
        "max_position_embeddings": 2048,
        "hidden_size": 768,
        "num_layers": 4,
        "num_heads": 16,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 256,
        "activation_function": "gelu_new",
        "bos_token_id": 50256,
        "eos_token_id": 50256,
    },
    "pythia-70m": {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "vocab_size": 50304,
        "max_position_embeddings": 2048,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "rotary_pct": 0.25,
        "rotary_emb_base": 10000,
        "hidden_act": "gelu",
        "use_parallel_residual": True,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 0,
    },
}  # fmt: skip
