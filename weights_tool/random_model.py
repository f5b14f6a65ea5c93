"""`random`: a model with random weights, of any family and shape, to test loading and speed with."""

import argparse
import json
import shutil
from collections.abc import Iterator
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.errors import ModelFileError
from app.engine.models import family_of, weight_specs
from app.engine.models.config import config_from_dict, parse_config
from app.engine.tokenizer import Tokenizer
from weights_tool.folder import TOKENIZER_FILES
from weights_tool.presets import PRESETS
from weights_tool.progress import Progress
from weights_tool.writing import Floats, Tensor, check_room, total_bytes, write_model

PIECE = 1 << 20
"""Values made at once."""
# Matrices whose results are added to the residual stream, in every family.
_RESIDUAL = tuple(
    f"{name}.weight" for name in ("c_proj", "out_proj", "o_proj", "down_proj", "attention.dense", "dense_4h_to_h")
)

HELP = """\
Write config.json and safetensors weights with transformers' names. The weights are drawn as GPT-2's were before its
training (residual projections scaled by the depth), with embeddings such that logits have about unit scale. The same
seed gives the same file. With --vocab, the tokenizer's files are copied along, so that the folder is a complete model.
"""


def add_random(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    parser = commands.add_parser(
        "random",
        help="write a model with random weights",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="CONFIG", help=f"{', '.join(PRESETS)}, or the path of a config.json")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to write; made if need be")
    parser.add_argument("--dtype", choices=["F32", "F16", "BF16"], default="F32", help="of the weights (F32)")
    parser.add_argument("--seed", type=_seed, default=0, help="of the random numbers (0)")
    parser.add_argument("--max-shard-mb", type=_positive, metavar="MB", help="share the weights out to several files")
    parser.add_argument(
        "--vocab", type=Path, metavar="DIR", help="folder with tokenizer.json, or vocab.json + merges.txt"
    )
    parser.add_argument("--force", action="store_true", help="replace a model that is already in DIR")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Do what the command line asks; return the exit status."""
    raw = read_config(options.config)
    tokenizer = {} if options.vocab is None else read_tokenizer(options.vocab, raw)
    tensors = random_tensors(raw, seed=options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    old = [path for path in options.out.iterdir() if path.name == "config.json" or ".safetensors" in path.name]
    if old and not options.force:
        raise ModelFileError(
            f"{options.out} already holds a model ({old[0].name}). Choose another --out, or add --force."
        )
    nbytes = total_bytes(tensors, options.dtype)
    check_room(options.out, nbytes)
    for path in old:
        path.unlink()
    max_bytes = None if options.max_shard_mb is None else int(options.max_shard_mb * 1e6)
    tick = Progress(nbytes, "writing")
    paths = write_model(options.out, tensors, options.dtype, max_bytes=max_bytes, tick=tick)
    (options.out / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    for name in tokenizer:
        shutil.copyfile(options.vocab / name, options.out / name)
    parameters = sum(prod(tensor.shape) for tensor in tensors)
    files = ", ".join(["config.json", *(path.name for path in paths), *tokenizer])
    print(f"{options.out}: {parameters:,} parameters in {options.dtype}, {nbytes:,} bytes of weights ({files})")
    return 0


def read_config(name: str) -> dict[str, Any]:
    """Return a preset's config.json, or that of a file; validated."""
    if name in PRESETS:
        return dict(PRESETS[name])
    path = Path(name)
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        raise ModelFileError(f"{name!r} is neither a file nor one of {', '.join(PRESETS)}.")
    text = path.read_bytes()
    parse_config(text)
    raw: dict[str, Any] = json.loads(text)
    return raw


def read_tokenizer(folder: Path, raw: dict[str, Any]) -> dict[str, bytes]:
    """Return the tokenizer's files in a folder, having checked that they work and fit the config."""
    files = {name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()}
    tokenizer = Tokenizer.from_files(files)
    n_vocab = config_from_dict(raw).n_vocab
    if tokenizer.n_vocab > n_vocab:
        raise ModelFileError(f"{folder} has {tokenizer.n_vocab} tokens, but the config's vocab_size is only {n_vocab}.")
    return files


def random_tensors(raw: dict[str, Any], *, seed: int) -> list[Tensor]:
    """Describe every tensor of a model, in the order of `weight_specs`, with transformers' names."""
    config = config_from_dict(raw)
    family = family_of(config)
    tensors = []
    for number, spec in enumerate(weight_specs(config)):
        mean, scale = 0.0, 0.02
        if spec.name in (f"{family.embedding}.weight", "lm_head.weight"):
            scale = config.n_embd**-0.5
        elif spec.kind == "table":
            scale = 0.5 * config.n_embd**-0.5
        elif spec.name.endswith(_RESIDUAL):
            scale = 0.02 / (2 * config.n_layer) ** 0.5
        elif spec.kind == "vector" and spec.name.endswith("weight"):
            mean = 1.0
        name = spec.name if spec.name.startswith("lm_head") else family.prefix + spec.name
        pieces = partial(_normal, prod(spec.shape), mean, scale, (seed, number))
        tensors.append(Tensor(name=name, shape=spec.shape, pieces=pieces))
    return tensors


def _normal(count: int, mean: float, scale: float, seed: tuple[int, int]) -> Iterator[Floats]:
    random = np.random.default_rng(seed)
    for start in range(0, count, PIECE):
        values = random.standard_normal(min(PIECE, count - start), dtype=np.float32)
        yield values * np.float32(scale) + np.float32(mean)


def _seed(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 on")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of megabytes above 0")
    return value
