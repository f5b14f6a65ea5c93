"""GPT-2's forward pass, written once, over whichever `ops` it is given.

With `ops.eager` it computes at once, in NumPy. With `ops.record` it draws the graph that becomes a plan of WebGPU
dispatches. Arguments carry the checkpoint's own names. Formulas: Radford et al., "Language Models are Unsupervised
Multitask Learners" (2019), as implemented by transformers' `GPT2LMHeadModel`.

Shapes: n tokens of this step; n_embd features; n_head heads of head_dim = n_embd / n_head.
"""

from collections.abc import Mapping
from typing import Any

from app.engine.models.config import GPT2Config
from app.engine.models.specs import conv1d, matrix, norm, table
from app.engine.ops import Ops
from app.engine.weights.spec import WeightSpec

Params = Mapping[str, Any]


def gpt2(ids: Any, params: Params, cache: Any, *, config: GPT2Config, ops: Ops) -> Any:
    """Return the logits [1, n_vocab] after the last of `ids` [n], which continue what `cache` holds."""
    x = ops.embed(ids, params["wte"]["weight"], params["wpe"]["weight"])  # [n] -> [n, n_embd]
    for layer, block_params in enumerate(params["h"]):
        x = block(x, **block_params, kv=cache[layer], layer=layer, config=config, ops=ops)
    x = ops.last(x)  # [n, n_embd] -> [1, n_embd]
    x = ops.layer_norm(x, **params["ln_f"], epsilon=config.layer_norm_epsilon)
    lm_head = params["wte"] if config.tied else params["lm_head"]
    return ops.logits(x, lm_head["weight"])  # [1, n_embd] -> [1, n_vocab]


def block(
    x: Any, ln_1: Params, attn: Params, ln_2: Params, mlp: Params, *, kv: Any, layer: int, config: GPT2Config, ops: Ops
) -> Any:
    """One transformer block: x + attention(norm(x)), then x + mlp(norm(x))."""
    normed = ops.layer_norm(x, **ln_1, epsilon=config.layer_norm_epsilon)
    x = ops.add(x, attention(normed, **attn, kv=kv, layer=layer, config=config, ops=ops))
    normed = ops.layer_norm(x, **ln_2, epsilon=config.layer_norm_epsilon)
    return ops.add(x, feed_forward(normed, **mlp, config=config, ops=ops))


def attention(x: Any, c_attn: Params, c_proj: Params, *, kv: Any, layer: int, config: GPT2Config, ops: Ops) -> Any:
    """Causal self-attention of the new tokens over everything in the cache, themselves included."""
    qkv = ops.linear(x, **c_attn)  # [n, n_embd] -> [n, 3·n_embd]
    q, k, v = ops.split_heads(qkv, n_head=config.n_head)  # -> 3 × [n, n_head, head_dim]
    kv = ops.append_cache(kv, k, v)  # [length, ...] -> [length + n, ...]
    out = ops.attend(q, kv, scale=config.attention_scale(layer))  # -> [n, n_embd], heads side by side
    return ops.linear(out, **c_proj)


def feed_forward(x: Any, c_fc: Params, c_proj: Params, *, config: GPT2Config, ops: Ops) -> Any:
    """Two linear layers around the activation."""
    x = ops.linear(x, **c_fc)  # [n, n_embd] -> [n, n_inner]
    x = ops.activation(x, kind=config.activation)
    return ops.linear(x, **c_proj)  # [n, n_inner] -> [n, n_embd]


def weight_specs(config: GPT2Config) -> list[WeightSpec]:
    """Every tensor of the checkpoint in the order in which the forward pass needs it.

    GPT-2's `Conv1D` layers store their weights as [in, out]; the loader transposes them, so that everywhere in the
    engine a row is an output feature.
    """
    n_embd, n_inner = config.n_embd, config.n_inner
    specs = [matrix("wte", n_embd, config.n_vocab), table("wpe", config.n_ctx, n_embd)]
    for layer in range(config.n_layer):
        h = f"h.{layer}"
        specs += norm(f"{h}.ln_1", n_embd)
        specs += conv1d(f"{h}.attn.c_attn", n_embd, 3 * n_embd) + conv1d(f"{h}.attn.c_proj", n_embd, n_embd)
        specs += norm(f"{h}.ln_2", n_embd)
        specs += conv1d(f"{h}.mlp.c_fc", n_embd, n_inner) + conv1d(f"{h}.mlp.c_proj", n_inner, n_embd)
    specs += norm("ln_f", n_embd)
    if not config.tied:
        specs.append(matrix("lm_head", n_embd, config.n_vocab))
    return specs
