"""What a GGUF file's metadata and names mean in terms of a repository on the hub: config.json, tensors, tokenizer."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from app.engine.errors import GgufError, TokenizerError, UnsupportedModelError
from app.engine.tokenizer_added import AddedToken
from app.engine.tokenizer_files import Vocabulary, build
from app.engine.tokenizer_patterns import PATTERNS
from app.engine.weights.blocks import to_float32
from app.engine.weights.gguf import Gguf
from app.engine.weights.safetensors import TensorRef

Renames = Mapping[str, str]

_LLAMA: Renames = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GPT2: Renames = {
    "token_embd": "wte",
    "position_embd": "wpe",
    "output_norm": "ln_f",
    "output": "lm_head",
    "attn_norm": "ln_1",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
_NAMES: Mapping[str, tuple[str, Renames]] = {
    "llama": ("layers", _LLAMA),
    "qwen2": ("layers", _LLAMA),
    "qwen3": ("layers", _LLAMA),
    "gpt2": ("h", _GPT2),
}
"""By architecture: how a layer's names begin, and what the parts of a name are called on the hub."""

_BLOCK = re.compile(r"blk\.(\d{1,4})\.(\w+)\.(weight|bias)", re.ASCII)
_OUTER = re.compile(r"(\w+)\.(weight|bias)", re.ASCII)
FREQUENCIES = "rope_freqs.weight"
"""Factors on the wavelengths of rotary embeddings [head_dim / 2]: llama3's scaling, worked out."""

_PATTERNS = {
    **dict.fromkeys(("gpt-2", "gpt2", "olmo", "phi-2", "dbrx"), "gpt2"),
    **dict.fromkeys(("smollm", "refact", "starcoder", "codeshell", "command-r"), "gpt2-digits"),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe"), "llama3"),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen"), "qwen2"),
}
"""By what `tokenizer.ggml.pre` may say."""
_CONTROL, _USER_DEFINED = 3, 4


def architecture(gguf: Gguf) -> str:
    """Return the architecture. Raises UnsupportedModelError if it is none of those that are read here."""
    name = gguf.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in _NAMES:
        raise UnsupportedModelError(
            f"This GGUF file's architecture is {str(name)[:60]!r}; tabgpt reads {', '.join(_NAMES)}. Choose another."
        )
    if gguf.metadata.get("split.count", 1) not in (0, 1):
        raise UnsupportedModelError(
            f"This model is split into {gguf.metadata['split.count']} GGUF files, and tabgpt reads one. Join them with "
            "llama.cpp's llama-gguf-split --merge, or choose a smaller quantisation."
        )
    return name


def tensors(gguf: Gguf) -> dict[str, TensorRef]:
    """Return the tensors by their names on the hub, without a `model.` or `transformer.` prefix.

    Matrices are [out, in] in every file, those of GPT-2's Conv1D layers too.
    """
    layers, names = _NAMES[architecture(gguf)]
    found: dict[str, TensorRef] = {}
    for name, ref in gguf.tensors.items():
        block, outer = _BLOCK.fullmatch(name), _OUTER.fullmatch(name)
        if block and block[2] in names:
            found[f"{layers}.{block[1]}.{names[block[2]]}.{block[3]}"] = ref
        elif outer and outer[1] in names:
            found[f"{names[outer[1]]}.{outer[2]}"] = ref
        elif name != FREQUENCIES:
            found[name] = ref
    return found


def config(gguf: Gguf, frequencies: bytes | None) -> dict[str, Any]:
    """Return what a config.json would say. `frequencies` are the bytes of the tensor of that name, if there is one."""
    arch = architecture(gguf)
    meta = gguf.metadata
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise GgufError(f"{gguf.file} has no token_embd.weight. The file is damaged, or only a part of a model.")

    def get(name: str, default: Any = None) -> Any:
        value = meta.get(f"{arch}.{name}", default)
        return value[0] if isinstance(value, list) and value and all(item == value[0] for item in value) else value

    raw: dict[str, Any] = {
        "model_type": arch,
        # Some files have more rows than the vocabulary has tokens, as some checkpoints have.
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
    }
    if arch == "gpt2":
        return raw | {
            "n_layer": get("block_count"),
            "n_head": get("attention.head_count"),
            "n_embd": get("embedding_length"),
            "n_positions": get("context_length"),
            "n_inner": get("feed_forward_length"),
            "layer_norm_epsilon": get("attention.layer_norm_epsilon"),
        }
    if get("expert_count", 0):
        raise UnsupportedModelError("This GGUF file holds a mixture of experts, which tabgpt does not support.")
    heads, width = get("attention.head_count"), get("embedding_length")
    head_dim = get("attention.key_length", get("rope.dimension_count"))
    raw |= {
        "num_hidden_layers": get("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "hidden_size": width,
        "intermediate_size": get("feed_forward_length"),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": get("attention.layer_norm_rms_epsilon"),
        "rope_theta": get("rope.freq_base", 10_000.0),
        "head_dim": head_dim,
        "rope_interleaved": arch == "llama",
        "attention_bias": arch == "llama" and "blk.0.attn_q.bias" in gguf.tensors,
    }
    raw = {name: value for name, value in raw.items() if value is not None}
    if (turned := get("rope.dimension_count")) not in (None, head_dim):
        raise UnsupportedModelError(
            f"This GGUF file turns {turned} of {head_dim} features, which tabgpt cannot do for it."
        )
    kind, factor = get("rope.scaling.type", "none"), get("rope.scaling.factor", get("rope.scale_linear"))
    if kind == "linear" and factor is not None:
        raw["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif kind not in ("none", "linear"):
        raise UnsupportedModelError(f"This GGUF file's rope.scaling.type is {str(kind)[:40]!r}; tabgpt has linear.")
    if frequencies is not None:
        raw["rope_scaling"] = _llama3_scaling(to_float32(frequencies, "F32"), float(raw["rope_theta"]))
    return raw


def _llama3_scaling(factors: Any, theta: float) -> dict[str, Any]:
    """Find the scaling that gives these factors: converters write them instead of its parameters."""
    scaling = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    largest = float(np.max(factors, initial=1.0))
    if len(factors) and np.isfinite(factors).all() and 1 <= largest < 1e4:
        plain = theta ** (-np.arange(len(factors)) / len(factors))
        turns = 8192 * plain / (2 * np.pi)
        blend = np.clip((turns - 1) / 3, 0, 1)
        if np.allclose(1 / (blend + (1 - blend) / largest), factors, rtol=1e-3):
            return scaling | {"rope_type": "llama3", "factor": largest}
    raise UnsupportedModelError(f"This GGUF file's {FREQUENCIES} are not those of Llama 3, which alone tabgpt knows.")


def vocabulary(gguf: Gguf) -> Vocabulary:
    """Return the tokenizer's vocabulary. Raises TokenizerError if it is damaged, or none of the known kinds."""
    meta, file = gguf.metadata, gguf.file
    kind, pre = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    if kind != "gpt2":
        raise TokenizerError(
            f"{file} has a tokenizer of the kind {str(kind)[:40]!r}; tabgpt reads byte-level BPE ('gpt2'), and no "
            "SentencePiece. Choose another model."
        )
    if pre is None and gguf.metadata.get("general.architecture") == "gpt2":
        pre = "gpt-2"
    pattern = _PATTERNS.get(pre) if isinstance(pre, str) else None
    if pattern is None:
        raise TokenizerError(
            f"{file} cuts text in the way {str(pre)[:40]!r}, which tabgpt does not know; it knows "
            f"{', '.join(_PATTERNS)}. Choose another model."
        )
    tokens, kinds, merges = (_list(meta, name) for name in ("tokens", "token_type", "merges"))
    if not tokens or len(kinds) != len(tokens) or not all(isinstance(item, str) for item in (*tokens, *merges)):
        raise TokenizerError(f"{file} has no whole vocabulary: tokens, their types, and merges. The file is damaged.")
    vocab: dict[str, int] = {}
    added = []
    for id_, (token, token_kind) in enumerate(zip(tokens, kinds, strict=True)):
        if token_kind in (_CONTROL, _USER_DEFINED) and token:
            added.append(AddedToken(text=token, id=id_, special=token_kind == _CONTROL))
        if vocab.setdefault(token, id_) != id_:
            raise TokenizerError(f"{file}: tokens {vocab[token]} and {id_} are both {token[:40]!r}. It is damaged.")
    begin = meta.get("tokenizer.ggml.bos_token_id")
    begins = meta.get("tokenizer.ggml.add_bos_token", pattern == "llama3") is True
    prefix = (begin,) if begins and isinstance(begin, int) and 0 <= begin < len(tokens) else ()
    return Vocabulary(
        **build(file, vocab, merges, added),
        pattern=PATTERNS[pattern],
        # llama.cpp leaves this out; Qwen's own tokenizer has it.
        normal_form="NFC" if pattern == "qwen2" else None,
        whole_pieces=pattern == "llama3",
        prefix=prefix,
    )


def _list(metadata: Mapping[str, Any], name: str) -> list[Any]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    return value if isinstance(value, list) else []
