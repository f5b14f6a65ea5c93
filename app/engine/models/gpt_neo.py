"""GPT-Neo's forward pass, in the manner of `gpt2.py`, from which it differs in its attention.

Every second layer sees only the last `window_size` positions, and scores are not divided by the root of head_dim. As
implemented by transformers' `GPTNeoForCausalLM`; Black et al., "GPT-Neo" (2021).
"""

from collections.abc import Mapping
from typing import Any

from app.engine.models.config import GPTNeoConfig
from app.engine.models.specs import linear, matrix, norm, stacked, table
from app.engine.ops import Ops
from app.engine.weights.spec import WeightSpec

Params = Mapping[str, Any]


def gpt_neo(ids: Any, params: Params, cache: Any, *, config: GPTNeoConfig, ops: Ops) -> Any:
    """Return the logits [1, n_vocab] after the last of `ids` [n], which continue what `cache` holds."""
    x = ops.embed(ids, params["wte"]["weight"], params["wpe"]["weight"])  # [n] -> [n, n_embd]
    for layer, block_params in enumerate(params["h"]):
        x = block(x, **block_params, kv=cache[layer], window=config.windows[layer], config=config, ops=ops)
    x = ops.last(x)  # [n, n_embd] -> [1, n_embd]
    x = ops.layer_norm(x, **params["ln_f"], epsilon=config.layer_norm_epsilon)
    lm_head = params["wte"] if config.tied else params["lm_head"]
    return ops.logits(x, lm_head["weight"])  # [1, n_embd] -> [1, n_vocab]


def block(
    x: Any,
    ln_1: Params,
    attn: Params,
    ln_2: Params,
    mlp: Params,
    *,
    kv: Any,
    window: int,
    config: GPTNeoConfig,
    ops: Ops,
) -> Any:
    """One transformer block: x + attention(norm(x)), then x + mlp(norm(x))."""
    normed = ops.layer_norm(x, **ln_1, epsilon=config.layer_norm_epsilon)
    x = ops.add(x, attention(normed, **attn["attention"], kv=kv, window=window, config=config, ops=ops))
    normed = ops.layer_norm(x, **ln_2, epsilon=config.layer_norm_epsilon)
    return ops.add(x, feed_forward(normed, **mlp, config=config, ops=ops))


def attention(
    x: Any, qkv_proj: Params, out_proj: Params, *, kv: Any, window: int, config: GPTNeoConfig, ops: Ops
) -> Any:
    """Causal self-attention of the new tokens over the cache, or (`window` > 0) over its last positions."""
    qkv = ops.linear(x, **qkv_proj)  # [n, n_embd] -> [n, 3·n_embd]
    q, k, v = ops.split_heads(qkv, n_head=config.n_head)  # -> 3 × [n, n_head, head_dim]
    kv = ops.append_cache(kv, k, v)  # [length, ...] -> [length + n, ...]
    out = ops.attend(q, kv, scale=1.0, window=window)  # -> [n, n_embd], heads side by side
    return ops.linear(out, **out_proj)


def feed_forward(x: Any, c_fc: Params, c_proj: Params, *, config: GPTNeoConfig, ops: Ops) -> Any:
    """Two linear layers around the activation."""
    x = ops.linear(x, **c_fc)  # [n, n_embd] -> [n, n_inner]
    x = ops.activation(x, kind=config.activation)
    return ops.linear(x, **c_proj)  # [n, n_inner] -> [n, n_embd]


def weight_specs(config: GPTNeoConfig) -> list[WeightSpec]:
    """Every tensor of the checkpoint in the order in which the forward pass needs it: q, k and v as one."""
    n_embd, n_inner = config.n_embd, config.n_inner
    specs = [matrix("wte", n_embd, config.n_vocab), table("wpe", config.n_ctx, n_embd)]
    for layer in range(config.n_layer):
        h = f"h.{layer}"
        qkv = dict.fromkeys(("q_proj", "k_proj", "v_proj"), n_embd)
        specs += norm(f"{h}.ln_1", n_embd)
        specs += stacked(f"{h}.attn.attention", qkv, into="qkv_proj", n_in=n_embd, bias=False)
        specs += linear(f"{h}.attn.attention.out_proj", n_embd, n_embd)
        specs += norm(f"{h}.ln_2", n_embd)
        specs += linear(f"{h}.mlp.c_fc", n_embd, n_inner) + linear(f"{h}.mlp.c_proj", n_inner, n_embd)
    specs += norm("ln_f", n_embd)
    if not config.tied:
        specs.append(matrix("lm_head", n_embd, config.n_vocab))
    return specs
