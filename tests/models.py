"""Complete models in folders, for tests that load one: the story model, and tiny random ones with its vocabulary."""

import json
import shutil
from pathlib import Path

from weights_tool.__main__ import main

STORY = Path(__file__).parents[1] / "static" / "models" / "story"
TOKENIZER = ("tokenizer.json", "vocab.json", "merges.txt")

_RELATIVE: dict[str, object] = {
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_size": 40,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "vocab_size": 8192,
    "bos_token_id": 8191,
    "eos_token_id": 8191,
    "tie_word_embeddings": True,
}
FAMILIES: dict[str, dict[str, object]] = {
    "llama": _RELATIVE | {"rope_theta": 500.0},
    "qwen2": _RELATIVE,
    "qwen3": _RELATIVE | {"head_dim": 16},
    "gpt_neo": {
        "num_layers": 2,
        "num_heads": 4,
        "hidden_size": 40,
        "attention_types": [[["global", "local"], 1]],
        "window_size": 8,
        "max_position_embeddings": 64,
        "vocab_size": 8192,
        "eos_token_id": 8191,
    },
    "gpt_neox": _RELATIVE | {"rotary_pct": 0.4, "tie_word_embeddings": False},
}
"""By model type, what the config.json of a tiny model says."""

TINY = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 32,
    "n_positions": 64,
    "vocab_size": 8192,
    "bos_token_id": 8191,
    "eos_token_id": 8191,
}


def write_story(folder: Path) -> None:
    """Copy the embedded model."""
    shutil.copytree(STORY, folder)


def write_tiny(folder: Path, *, dtype: str = "F32", seed: int = 0, **config: object) -> None:
    """Write a GPT-2 of 280,000 parameters with random weights; `config` changes its config.json."""
    _write_random(folder, TINY | config, dtype=dtype, seed=seed)


def write_family(folder: Path, family: str, *, dtype: str = "F32", seed: int = 0, **config: object) -> None:
    """Write a model of another family, about as small."""
    _write_random(folder, {"model_type": family} | FAMILIES[family] | config, dtype=dtype, seed=seed)


def _write_random(folder: Path, config: dict[str, object], *, dtype: str, seed: int) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    for name in TOKENIZER:
        shutil.copyfile(STORY / name, folder / name)
    made = ["random", str(folder), "--out", str(folder), "--dtype", dtype, "--seed", str(seed), "--force"]
    assert main(made) == 0
