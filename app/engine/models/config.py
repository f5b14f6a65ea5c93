"""`config.json`, validated: what the engine cannot do is refused by name, before anything is allocated.

Each family has a dataclass. All have the attributes that the rest of the engine asks for: `family`, n_layer, n_head,
n_kv_head, head_dim, n_embd, n_inner, n_vocab, n_ctx, activation, tied, eos_id and rope.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from app.engine.errors import ModelFileError, UnsupportedModelError
from app.engine.json_text import parse_json
from app.engine.models.fields import ACTIVATIONS as ACTIVATIONS
from app.engine.models.fields import Fields
from app.engine.models.rope import Rope, read_rope

# Far above any published model, and small enough that a hostile config cannot make us allocate the machine away.
_LAYERS, _HEADS, _WIDTH, _VOCAB, _POSITIONS, _INNER = 512, 1024, 65_536, 4_000_000, 1_048_576, 1_048_576
_LONG = 16_777_216
"""Positions where nothing is stored for each of them."""


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
    family: ClassVar[str] = "gpt2"
    rope: ClassVar[Rope | None] = None

    @property
    def n_kv_head(self) -> int:
        """Every query head has its own keys and values."""
        return self.n_head

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head

    def attention_scale(self, layer: int) -> float:
        """Factor on q·k in `layer` (transformers' GPT2Attention: 1/sqrt(head_dim), 1/(layer+1) if asked)."""
        scale = self.head_dim**-0.5 if self.scale_attn_weights else 1.0
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale


@dataclass(frozen=True, kw_only=True)
class GPTNeoConfig:
    """The shape of a GPT-Neo."""

    n_layer: int
    n_head: int
    n_embd: int
    n_vocab: int
    n_ctx: int
    n_inner: int
    windows: tuple[int, ...]
    """How many positions each layer's attention sees, itself included; 0: all before it."""
    activation: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    tied: bool = True
    eos_id: int | None = None
    family: ClassVar[str] = "gpt_neo"
    rope: ClassVar[Rope | None] = None

    @property
    def n_kv_head(self) -> int:
        """Every query head has its own keys and values."""
        return self.n_head

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head


@dataclass(frozen=True, kw_only=True)
class GPTNeoXConfig:
    """The shape of a GPT-NeoX."""

    n_layer: int
    n_head: int
    n_embd: int
    n_vocab: int
    n_ctx: int
    n_inner: int
    rope: Rope
    activation: str = "gelu"
    layer_norm_epsilon: float = 1e-5
    attention_bias: bool = True
    parallel_residual: bool = True
    """Attention and MLP both read the block's input, rather than the second the first's result."""
    tied: bool = False
    eos_id: int | None = None
    family: ClassVar[str] = "gpt_neox"

    @property
    def n_kv_head(self) -> int:
        """Every query head has its own keys and values."""
        return self.n_head

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.n_embd // self.n_head


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """The shape of a Llama, and of its relatives Qwen2 and Qwen3."""

    family: str = "llama"
    """"llama", "qwen2" or "qwen3"."""
    n_layer: int
    n_head: int
    n_kv_head: int
    """Heads of keys and values, each shared by n_head / n_kv_head query heads."""
    head_dim: int
    n_embd: int
    n_vocab: int
    n_ctx: int
    n_inner: int
    rope: Rope
    activation: str = "silu"
    rms_norm_epsilon: float = 1e-6
    qkv_bias: bool = False
    output_bias: bool = False
    """Of the projection after attention."""
    mlp_bias: bool = False
    qk_norm: bool = False
    """Each head's queries and keys are normed before they are turned."""
    tied: bool = False
    eos_id: int | None = None


Config = GPT2Config | GPTNeoConfig | GPTNeoXConfig | LlamaConfig


def parse_config(data: bytes | str) -> Config:
    """Read the text of a `config.json`.

    Raises ModelFileError if it is damaged, UnsupportedModelError if it asks for what the engine lacks.
    """
    try:
        raw = parse_json(data)
    except ValueError as error:
        raise ModelFileError(f"config.json is not valid JSON ({error}). The repository may be damaged.") from error
    if not isinstance(raw, dict):
        raise ModelFileError("config.json must hold an object. The repository may be damaged.")
    # Trainers leave this in the file for a layout that the checkpoint no longer has; transformers does not look at it.
    return config_from_dict({name: value for name, value in raw.items() if name != "rope_interleaved"})


def config_from_dict(raw: Mapping[str, Any]) -> Config:
    """Validate the contents of a `config.json`, or what another format says in its words; errors as in `parse_config`.

    `rope_interleaved`, from a format whose rows are so: see `Rope.interleaved`.
    """
    model_type = raw.get("model_type", "gpt2")
    read = _READERS.get(model_type) if isinstance(model_type, str) else None
    if read is None:
        raise UnsupportedModelError(
            f"This model's architecture is {str(model_type)[:60]!r}; tabgpt runs {', '.join(_READERS)}. "
            "Choose a repository whose config.json names one of them as its model_type."
        )
    fields = Fields(raw)
    fields.refuse("add_cross_attention", "num_experts", "num_local_experts")
    if raw.get("quantization_config") is not None:
        raise UnsupportedModelError("This model is stored with a quantization_config, which tabgpt does not read.")
    return read(fields)


def _gpt2(fields: Fields) -> GPT2Config:
    n_embd, n_head = fields.whole("n_embd", 768, _WIDTH), fields.whole("n_head", 12, _HEADS)
    _check_multiple("n_embd", n_embd, "n_head", n_head)
    n_vocab = fields.whole("vocab_size", 50257, _VOCAB)
    return GPT2Config(
        n_layer=fields.whole("n_layer", 12, _LAYERS),
        n_head=n_head,
        n_embd=n_embd,
        n_vocab=n_vocab,
        n_ctx=fields.whole("n_positions", fields.get("n_ctx") or 1024, _POSITIONS),
        n_inner=fields.whole("n_inner", 4 * n_embd, _INNER),
        activation=fields.activation("activation_function", "gelu_new"),
        layer_norm_epsilon=fields.number("layer_norm_epsilon", 1e-5, 0, 1),
        scale_attn_weights=fields.flag("scale_attn_weights", True),
        scale_attn_by_inverse_layer_idx=fields.flag("scale_attn_by_inverse_layer_idx", False),
        tied=fields.flag("tie_word_embeddings", True),
        eos_id=fields.token("eos_token_id", 50256, n_vocab),
    )


def _gpt_neo(fields: Fields) -> GPTNeoConfig:
    n_embd, n_head = fields.whole("hidden_size", 2048, _WIDTH), fields.whole("num_heads", 16, _HEADS)
    _check_multiple("hidden_size", n_embd, "num_heads", n_head)
    n_vocab, n_layer = fields.whole("vocab_size", 50257, _VOCAB), fields.whole("num_layers", 24, _LAYERS)
    window = fields.whole("window_size", 256, _POSITIONS)
    return GPTNeoConfig(
        n_layer=n_layer,
        n_head=n_head,
        n_embd=n_embd,
        n_vocab=n_vocab,
        n_ctx=fields.whole("max_position_embeddings", 2048, _POSITIONS),
        n_inner=fields.whole("intermediate_size", 4 * n_embd, _INNER),
        windows=tuple(window if kind == "local" else 0 for kind in _attention_layers(fields, n_layer)),
        activation=fields.activation("activation_function", "gelu_new"),
        layer_norm_epsilon=fields.number("layer_norm_epsilon", 1e-5, 0, 1),
        tied=fields.flag("tie_word_embeddings", True),
        eos_id=fields.token("eos_token_id", 50256, n_vocab),
    )


def _attention_layers(fields: Fields, n_layer: int) -> list[str]:
    """Return each layer's kind, "global" or "local": `attention_layers`, or [[["global", "local"], 12]] written out."""
    kinds = fields.get("attention_layers")
    if kinds is None:
        kinds = []
        groups = fields.get("attention_types", [[["global", "local"], n_layer // 2]])
        if not isinstance(groups, list) or len(groups) > _LAYERS:
            raise ModelFileError(f"config.json: attention_types is {str(groups)[:40]!r}, no list of groups.")
        for group in groups:
            match group:
                case [list(names), int(times)] if 0 <= times <= _LAYERS and len(names) <= _LAYERS:
                    kinds += names * times
                case _:
                    raise ModelFileError(f"config.json: attention_types holds {str(group)[:40]!r}.")
    if not isinstance(kinds, list) or len(kinds) != n_layer:
        raise ModelFileError(f"config.json: num_layers is {n_layer}, but the attention's kinds are for another number.")
    for kind in kinds:
        if kind not in ("global", "local"):
            raise UnsupportedModelError(
                f"This model has attention of the kind {str(kind)[:40]!r}; tabgpt has global and local."
            )
    return kinds


def _gpt_neox(fields: Fields) -> GPTNeoXConfig:
    n_embd, n_head = fields.whole("hidden_size", 6144, _WIDTH), fields.whole("num_attention_heads", 64, _HEADS)
    _check_multiple("hidden_size", n_embd, "num_attention_heads", n_head)
    n_vocab, n_ctx = fields.whole("vocab_size", 50432, _VOCAB), fields.whole("max_position_embeddings", 2048, _LONG)
    partial = fields.number("rotary_pct", 0.25, 0, 1 + 1e-9)
    return GPTNeoXConfig(
        n_layer=fields.whole("num_hidden_layers", 44, _LAYERS),
        n_head=n_head,
        n_embd=n_embd,
        n_vocab=n_vocab,
        n_ctx=n_ctx,
        n_inner=fields.whole("intermediate_size", 24576, _INNER),
        rope=read_rope(fields, n_embd // n_head, n_ctx, theta="rotary_emb_base", partial=partial),
        activation=fields.activation("hidden_act", "gelu"),
        layer_norm_epsilon=fields.number("layer_norm_eps", 1e-5, 0, 1),
        attention_bias=fields.flag("attention_bias", True),
        parallel_residual=fields.flag("use_parallel_residual", True),
        tied=fields.flag("tie_word_embeddings", False),
        eos_id=fields.token("eos_token_id", 2, n_vocab),
    )


@dataclass(frozen=True)
class _LlamaDefaults:
    """What transformers takes for what a config leaves out."""

    family: str
    vocab: int
    inner: int
    context: int
    head_dim: int | None = None
    eos: int | None = None


def _llama_like(defaults: _LlamaDefaults) -> Callable[[Fields], LlamaConfig]:
    """Return the reader of a family."""
    family = defaults.family

    def read(fields: Fields) -> LlamaConfig:
        n_layer = fields.whole("num_hidden_layers", 32, _LAYERS)
        n_embd, n_head = fields.whole("hidden_size", 4096, _WIDTH), fields.whole("num_attention_heads", 32, _HEADS)
        n_kv_head = fields.whole("num_key_value_heads", n_head if family == "llama" else 32, _HEADS)
        _check_multiple("num_attention_heads", n_head, "num_key_value_heads", n_kv_head)
        if fields.get("head_dim", defaults.head_dim) is None:
            _check_multiple("hidden_size", n_embd, "num_attention_heads", n_head)
        head_dim = fields.whole("head_dim", defaults.head_dim or n_embd // n_head, _WIDTH)
        n_vocab = fields.whole("vocab_size", defaults.vocab, _VOCAB)
        n_ctx = fields.whole("max_position_embeddings", defaults.context, _LONG)
        _refuse_windows(fields, n_layer, n_ctx, switch=family != "llama")
        if fields.number("partial_rotary_factor", 1.0, 0, 1 + 1e-9) != 1:
            raise UnsupportedModelError(f"This model asks for a partial_rotary_factor, which {family} does not have.")
        attention_bias = fields.flag("attention_bias", False) and family != "qwen2"
        return LlamaConfig(
            family=family,
            n_layer=n_layer,
            n_head=n_head,
            n_kv_head=n_kv_head,
            head_dim=head_dim,
            n_embd=n_embd,
            n_vocab=n_vocab,
            n_ctx=n_ctx,
            n_inner=fields.whole("intermediate_size", defaults.inner, _INNER),
            rope=read_rope(fields, head_dim, n_ctx),
            activation=fields.activation("hidden_act", "silu"),
            rms_norm_epsilon=fields.number("rms_norm_eps", 1e-6, 0, 1),
            qkv_bias=attention_bias or family == "qwen2",
            output_bias=attention_bias,
            mlp_bias=fields.flag("mlp_bias", False) and family == "llama",
            qk_norm=family == "qwen3",
            tied=fields.flag("tie_word_embeddings", False),
            eos_id=fields.token("eos_token_id", defaults.eos, n_vocab),
        )

    return read


def _refuse_windows(fields: Fields, n_layer: int, n_ctx: int, *, switch: bool) -> None:
    """UnsupportedModelError if a layer sees only a part of the context. `switch`: only with use_sliding_window."""
    window = fields.get("sliding_window")
    if window is None and switch:
        window = 4096  # Qwen's default
    narrow = window is not None and fields.whole("sliding_window", window, _LONG) < n_ctx
    kinds = fields.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != n_layer:
            raise ModelFileError(f"config.json: layer_types must name the kinds of {n_layer} layers.")
        for kind in kinds:
            if kind not in ("full_attention", "sliding_attention"):
                raise UnsupportedModelError(
                    f"This model has layers of the type {str(kind)[:40]!r}; tabgpt has full_attention."
                )
        used = "sliding_attention" in kinds
    elif switch:
        full = fields.whole("max_window_layers", 28, _LAYERS, least=0)
        used = fields.flag("use_sliding_window", False) and full < n_layer
    else:
        used = window is not None
    if used and narrow:
        raise UnsupportedModelError(
            f"This model's layers see only a sliding_window of {window} positions, which tabgpt does not "
            "support for it."
        )


def _check_multiple(name: str, value: int, divisor_name: str, divisor: int) -> None:
    if value % divisor:
        raise ModelFileError(f"config.json: {name} {value} is no multiple of {divisor_name} {divisor}.")


_READERS: dict[str, Callable[[Fields], Config]] = {
    "gpt2": _gpt2,
    "llama": _llama_like(_LlamaDefaults("llama", vocab=32000, inner=11008, context=2048, eos=2)),
    "qwen2": _llama_like(_LlamaDefaults("qwen2", vocab=151936, inner=22016, context=32768)),
    "qwen3": _llama_like(_LlamaDefaults("qwen3", vocab=151936, inner=22016, context=32768, head_dim=128)),
    "gpt_neo": _gpt_neo,
    "gpt_neox": _gpt_neox,
}
"""By `model_type`."""
