"""GPT-2's `config.json`, validated: what the engine cannot do is refused by name, before anything is allocated."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.engine.errors import ModelFileError, UnsupportedModelError

ACTIVATIONS = ("gelu_new", "gelu", "relu", "silu")
"""As transformers names them; `gelu_new` is the tanh approximation, `gelu` the exact one."""

_ACTIVATION_ALIASES = {"gelu_pytorch_tanh": "gelu_new", "swish": "silu"}


@dataclass(frozen=True, kw_only=True)
class GPT2Config:
    """The shape of a GPT-2, with the names that transformers gives them."""

    n_layer: int
    n_head: int
    n_embd: int
    n_vocab: int
    n_ctx: int
    n_inner: int
    activation: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tied: bool = True
    """lm_head shares wte's weights."""
    eos_id: int | None = None

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head

    def attention_scale(self, layer: int) -> float:
        """Factor on q·k in `layer` (transformers' GPT2Attention: 1/sqrt(head_dim), 1/(layer+1) if asked)."""
        scale = self.head_dim**-0.5 if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale


# Far above any published GPT-2, and small enough that a hostile config cannot make us allocate the machine away.
_BOUNDS = {
    "n_layer": 512,
    "n_head": 1024,
    "n_embd": 65_536,
    "vocab_size": 4_000_000,
    "n_positions": 1_048_576,
    "n_inner": 1_048_576,
}


def parse_config(data: bytes | str) -> GPT2Config:
    """Read the text of a `config.json`.

    Raises ModelFileError if it is damaged, UnsupportedModelError if it asks for what the engine lacks.
    """
    try:
        raw = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"config.json is not valid JSON ({error}). The repository may be damaged.") from error
    if not isinstance(raw, dict):
        raise ModelFileError("config.json must hold an object. The repository may be damaged.")
    return config_from_dict(raw)


def config_from_dict(raw: Mapping[str, Any]) -> GPT2Config:
    """Validate the contents of a `config.json`; errors as in `parse_config`."""
    model_type = raw.get("model_type", "gpt2")
    if model_type != "gpt2":
        raise UnsupportedModelError(
            f"This model's architecture is {str(model_type)[:60]!r}; tabgpt runs GPT-2 models ('gpt2'). "
            "Choose a repository whose config.json says model_type gpt2."
        )
    if raw.get("add_cross_attention"):
        raise UnsupportedModelError("This model asks for add_cross_attention, which tabgpt does not support.")
    if raw.get("quantization_config") is not None:
        raise UnsupportedModelError("This model is stored with a quantization_config, which tabgpt does not read.")

    def whole(name: str, default: int | None = None) -> int:
        value = raw.get(name)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _BOUNDS[name]:
            raise ModelFileError(
                f"config.json: {name} must be a whole number from 1 to {_BOUNDS[name]}, not {str(value)[:40]!r}."
            )
        return value

    n_embd, n_head = whole("n_embd", 768), whole("n_head", 12)
    if n_embd % n_head:
        raise ModelFileError(f"config.json: n_embd {n_embd} is no multiple of n_head {n_head}.")
    activation = raw.get("activation_function", "gelu_new")
    activation = _ACTIVATION_ALIASES.get(activation, activation) if isinstance(activation, str) else activation
    if activation not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"This model's activation_function is {str(activation)[:60]!r}; tabgpt has {', '.join(ACTIVATIONS)}."
        )
    epsilon = raw.get("layer_norm_epsilon", 1e-5)
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 < epsilon < 1:
        raise ModelFileError(f"config.json: layer_norm_epsilon must lie between 0 and 1, not {str(epsilon)[:40]!r}.")
    n_vocab = whole("vocab_size", 50257)
    eos = raw.get("eos_token_id", 50256)
    eos = eos[0] if isinstance(eos, list) and eos else eos
    valid_eos = isinstance(eos, int) and not isinstance(eos, bool) and 0 <= eos < n_vocab
    return GPT2Config(
        n_layer=whole("n_layer", 12),
        n_head=n_head,
        n_embd=n_embd,
        n_vocab=n_vocab,
        n_ctx=whole("n_positions", raw.get("n_ctx") or 1024),
        n_inner=whole("n_inner", 4 * n_embd),
        activation=activation,
        layer_norm_epsilon=float(epsilon),
        scale_attn_weights=bool(raw.get("scale_attn_weights", True)),
        scale_attn_by_inverse_layer_idx=bool(raw.get("scale_attn_by_inverse_layer_idx", False)),
        tied=bool(raw.get("tie_word_embeddings", True)),
        eos_id=eos if valid_eos else None,
    )
