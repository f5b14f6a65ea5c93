"""The forward pass of Llama and its relatives Qwen2 and Qwen3, in the manner of `gpt2.py`.

Formulas: Touvron et al., "LLaMA" (2023): RMSNorm before each half of a block, rotary positions, an MLP gated by SiLU,
and, since Llama 2, keys and values shared by groups of query heads (Ainslie et al., "GQA", 2023). Qwen2 adds biases to
queries, keys and values; Qwen3 norms each head's queries and keys. As implemented by transformers' `LlamaForCausalLM`,
`Qwen2ForCausalLM` and `Qwen3ForCausalLM`.

Shapes: n tokens of this step; n_embd features; n_head heads of head_dim, whose product may differ from n_embd;
n_kv_head heads of keys and values.
"""

from collections.abc import Mapping
from typing import Any

from app.engine.models.config import LlamaConfig
from app.engine.models.specs import linear, matrix, stacked, vector
from app.engine.ops import Ops
from app.engine.weights.spec import WeightSpec

Params = Mapping[str, Any]


def llama(ids: Any, params: Params, cache: Any, *, config: LlamaConfig, ops: Ops) -> Any:
    """Return the logits [1, n_vocab] after the last of `ids` [n], which continue what `cache` holds."""
    x = ops.embed(ids, params["embed_tokens"]["weight"])  # [n] -> [n, n_embd]
    for layer, block_params in enumerate(params["layers"]):
        x = block(x, **block_params, kv=cache[layer], config=config, ops=ops)
    x = ops.last(x)  # [n, n_embd] -> [1, n_embd]
    x = ops.rms_norm(x, **params["norm"], epsilon=config.rms_norm_epsilon)
    lm_head = params["embed_tokens"] if config.tied else params["lm_head"]
    return ops.logits(x, lm_head["weight"])  # [1, n_embd] -> [1, n_vocab]


def block(
    x: Any,
    input_layernorm: Params,
    self_attn: Params,
    post_attention_layernorm: Params,
    mlp: Params,
    *,
    kv: Any,
    config: LlamaConfig,
    ops: Ops,
) -> Any:
    """One transformer block: x + attention(norm(x)), then x + mlp(norm(x))."""
    normed = ops.rms_norm(x, **input_layernorm, epsilon=config.rms_norm_epsilon)
    x = ops.add(x, attention(normed, **self_attn, kv=kv, config=config, ops=ops))
    normed = ops.rms_norm(x, **post_attention_layernorm, epsilon=config.rms_norm_epsilon)
    return ops.add(x, feed_forward(normed, **mlp, config=config, ops=ops))


def attention(
    x: Any,
    qkv_proj: Params,
    o_proj: Params,
    q_norm: Params | None = None,
    k_norm: Params | None = None,
    *,
    kv: Any,
    config: LlamaConfig,
    ops: Ops,
) -> Any:
    """Causal self-attention of the new tokens over everything in the cache, themselves included."""
    qkv = ops.linear(x, **qkv_proj)  # [n, n_embd] -> [n, (n_head + 2·n_kv_head)·head_dim]
    # -> [n, n_head, head_dim] and 2 × [n, n_kv_head, head_dim]
    q, k, v = ops.split_heads(qkv, n_head=config.n_head, n_kv_head=config.n_kv_head)
    if q_norm is not None and k_norm is not None:
        q = ops.head_norm(q, **q_norm, epsilon=config.rms_norm_epsilon)
        k = ops.head_norm(k, **k_norm, epsilon=config.rms_norm_epsilon)
    q, k = ops.rotate(q, rope=config.rope), ops.rotate(k, rope=config.rope)
    kv = ops.append_cache(kv, k, v)  # [length, ...] -> [length + n, ...]
    out = ops.attend(q, kv, scale=config.head_dim**-0.5)  # -> [n, n_head·head_dim], heads side by side
    return ops.linear(out, **o_proj)  # -> [n, n_embd]


def feed_forward(x: Any, gate_up_proj: Params, down_proj: Params, *, config: LlamaConfig, ops: Ops) -> Any:
    """SwiGLU (Shazeer 2020): silu(gate(x))·up(x), then down."""
    gate_up = ops.linear(x, **gate_up_proj)  # [n, n_embd] -> [n, 2·n_inner]
    x = ops.gated(gate_up, kind=config.activation)  # -> [n, n_inner]
    return ops.linear(x, **down_proj)  # -> [n, n_embd]


def weight_specs(config: LlamaConfig) -> list[WeightSpec]:
    """Every tensor of the checkpoint in the order in which the forward pass needs it.

    Matrices that read the same input are stored one under the other: queries, keys and values as `qkv_proj`, the MLP's
    two as `gate_up_proj`.
    """
    n_embd, n_inner, head_dim = config.n_embd, config.n_inner, config.head_dim
    n_q, n_kv = config.n_head * head_dim, config.n_kv_head * head_dim
    specs = [matrix("embed_tokens", n_embd, config.n_vocab)]
    for layer in range(config.n_layer):
        attn, mlp = f"layers.{layer}.self_attn", f"layers.{layer}.mlp"
        qkv = {"q_proj": n_q, "k_proj": n_kv, "v_proj": n_kv}
        specs.append(vector(f"layers.{layer}.input_layernorm.weight", n_embd))
        specs += stacked(attn, qkv, into="qkv_proj", n_in=n_embd, bias=config.qkv_bias)
        if config.qk_norm:
            specs += [vector(f"{attn}.q_norm.weight", head_dim), vector(f"{attn}.k_norm.weight", head_dim)]
        specs += linear(f"{attn}.o_proj", n_q, n_embd, bias=config.output_bias)
        specs.append(vector(f"layers.{layer}.post_attention_layernorm.weight", n_embd))
        gate_up = {"gate_proj": n_inner, "up_proj": n_inner}
        specs += stacked(mlp, gate_up, into="gate_up_proj", n_in=n_embd, bias=config.mlp_bias)
        specs += linear(f"{mlp}.down_proj", n_inner, n_embd, bias=config.mlp_bias)
    specs.append(vector("norm.weight", n_embd))
    if not config.tied:
        specs.append(matrix("lm_head", n_embd, config.n_vocab))
    return specs
