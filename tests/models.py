"""Complete models in folders, for tests that load one: the story model, and tiny random ones with its vocabulary."""

import json
import shutil
from pathlib import Path

from weights_tool.__main__ import main

STORY = Path(__file__).parents[1] / "static" / "models" / "story"
TOKENIZER = ("tokenizer.json", "vocab.json", "merges.txt")

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
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TINY | config))
    for name in TOKENIZER:
        shutil.copyfile(STORY / name, folder / name)
    made = ["random", str(folder), "--out", str(folder), "--dtype", dtype, "--seed", str(seed), "--force"]
    assert main(made) == 0
