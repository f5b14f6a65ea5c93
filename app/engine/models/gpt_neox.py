"""GPT-NeoX's forward pass (Pythia's too), in the manner of `gpt2.py`.

Attention and MLP read the block's input side by side, unless `parallel_residual` is off; a part of each head is turned
by its position; queries, keys and values of a head lie together in one matrix. As implemented by transformers'
`GPTNeoXForCausalLM`; Black et al., "GPT-NeoX-20B" (2022).
"""

from collections.abc import Mapping
from typing import Any

from app.engine.models.config import GPTNeoXConfig
from app.engine.models.specs import linear, matrix, norm
from app.engine.ops import Ops
from app.engine.weights.spec import WeightSpec

Params = Mapping[str, Any]


def gpt_neox(ids: Any, params: Params, cache: Any, *, config: GPTNeoXConfig, ops: Ops) -> Any:
    """Return the logits [1, n_vocab] after the last of `ids` [n], which continue what `cache` holds."""
    x = ops.embed(ids, params["embed_in"]["weight"])  # [n] -> [n, n_embd]
    for layer, block_params in enumerate(params["layers"]):
        x = block(x, **block_params, kv=cache[layer], config=config, ops=ops)
    x = ops.last(x)  # [n, n_embd] -> [1, n_embd]
    x = ops.layer_norm(x, **params["final_layer_norm"], epsilon=config.layer_norm_epsilon)
    lm_head = params["embed_in"] if config.tied else params["lm_head"]
    return ops.logits(x, lm_head["weight"])  # [1, n_embd] -> [1, n_vocab]


def block(
    x: Any,
    input_layernorm: Params,
    attention: Params,
    post_attention_layernorm: Params,
    mlp: Params,
    *,
    kv: Any,
    config: GPTNeoXConfig,
    ops: Ops,
) -> Any:
    """One transformer block: x + attention(norm(x)) + mlp(norm'(x)), or the two one after the other."""
    normed = ops.layer_norm(x, **input_layernorm, epsilon=config.layer_norm_epsilon)
    attended = ops.add(x, self_attention(normed, **attention, kv=kv, config=config, ops=ops))
    source = x if config.parallel_residual else attended
    normed = ops.layer_norm(source, **post_attention_layernorm, epsilon=config.layer_norm_epsilon)
    return ops.add(attended, feed_forward(normed, **mlp, config=config, ops=ops))


def self_attention(x: Any, query_key_value: Params, dense: Params, *, kv: Any, config: GPTNeoXConfig, ops: Ops) -> Any:
    """Causal self-attention of the new tokens over everything in the cache, themselves included."""
    qkv = ops.linear(x, **query_key_value)  # [n, n_embd] -> [n, n_head·3·head_dim]
    q, k, v = ops.split_heads(qkv, n_head=config.n_head, interleaved=True)  # -> 3 × [n, n_head, head_dim]
    q, k = ops.rotate(q, rope=config.rope), ops.rotate(k, rope=config.rope)
    kv = ops.append_cache(kv, k, v)  # [length, ...] -> [length + n, ...]
    out = ops.attend(q, kv, scale=config.head_dim**-0.5)  # -> [n, n_embd], heads side by side
    return ops.linear(out, **dense)


def feed_forward(x: Any, dense_h_to_4h: Params, dense_4h_to_h: Params, *, config: GPTNeoXConfig, ops: Ops) -> Any:
    """Two linear layers around the activation."""
    x = ops.linear(x, **dense_h_to_4h)  # [n, n_embd] -> [n, n_inner]
    x = ops.activation(x, kind=config.activation)
    return ops.linear(x, **dense_4h_to_h)  # [n, n_inner] -> [n, n_embd]


def weight_specs(config: GPTNeoXConfig) -> list[WeightSpec]:
    """Every tensor of the checkpoint in the order in which the forward pass needs it."""
    n_embd, n_inner, bias = config.n_embd, config.n_inner, config.attention_bias
    specs = [matrix("embed_in", n_embd, config.n_vocab)]
    for layer in range(config.n_layer):
        path = f"layers.{layer}"
        specs += norm(f"{path}.input_layernorm", n_embd)
        specs += linear(f"{path}.attention.query_key_value", n_embd, 3 * n_embd, bias=bias)
        specs += linear(f"{path}.attention.dense", n_embd, n_embd, bias=bias)
        specs += norm(f"{path}.post_attention_layernorm", n_embd)
        specs += linear(f"{path}.mlp.dense_h_to_4h", n_embd, n_inner)
        specs += linear(f"{path}.mlp.dense_4h_to_h", n_inner, n_embd)
    specs += norm("final_layer_norm", n_embd)
    if not config.tied:
        specs.append(matrix("lm_head", n_embd, config.n_vocab))
    return specs
