"""Model families: their configs and forward passes. What differs between them, the rest of the engine asks for here."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from app.engine.models.config import Config
from app.engine.models.gpt2 import gpt2
from app.engine.models.gpt2 import weight_specs as gpt2_specs
from app.engine.models.gpt_neo import gpt_neo
from app.engine.models.gpt_neo import weight_specs as gpt_neo_specs
from app.engine.models.gpt_neox import gpt_neox
from app.engine.models.gpt_neox import weight_specs as gpt_neox_specs
from app.engine.models.llama import llama
from app.engine.models.llama import weight_specs as llama_specs
from app.engine.weights.spec import WeightSpec


@dataclass(frozen=True, kw_only=True)
class Family:
    """What the engine needs to know of a family."""

    forward: Callable[..., Any]
    """(ids, params, cache, *, config, ops) -> logits."""
    weight_specs: Callable[..., list[WeightSpec]]
    prefix: str
    """What transformers puts before the names of all tensors but the head's."""
    embedding: str = "embed_tokens"
    """The module whose weight is the token embeddings."""
    old_head: str = "lm_head"
    """What older checkpoints call `lm_head`, the module whose weight gives the logits unless it is the embedding's."""


_LLAMA = Family(forward=llama, weight_specs=llama_specs, prefix="model.")
FAMILIES: dict[str, Family] = {
    "gpt2": Family(forward=gpt2, weight_specs=gpt2_specs, prefix="transformer.", embedding="wte"),
    "llama": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gpt_neo": Family(forward=gpt_neo, weight_specs=gpt_neo_specs, prefix="transformer.", embedding="wte"),
    "gpt_neox": Family(
        forward=gpt_neox, weight_specs=gpt_neox_specs, prefix="gpt_neox.", embedding="embed_in", old_head="embed_out"
    ),
}


def family_of(config: Config) -> Family:
    """Return the family of a model."""
    return FAMILIES[config.family]


def forward(config: Config) -> Callable[..., Any]:
    """Return the forward pass of a model's family."""
    return family_of(config).forward


def weight_specs(config: Config) -> list[WeightSpec]:
    """Every tensor of a model's checkpoint, in the order in which its forward pass needs them."""
    return family_of(config).weight_specs(config)


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Turn {"h.0.ln_1.weight": w, ...} into the nested arguments of a forward pass, with the layers as a list."""
    root: dict[str, Any] = {}
    for name, value in flat.items():
        *path, leaf = name.split(".")
        node = root
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = value
    for name, node in root.items():
        if name in ("h", "layers"):
            root[name] = [node[str(layer)] for layer in range(len(node))]
    return root
