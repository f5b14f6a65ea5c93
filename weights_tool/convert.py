"""`convert`: a model from other layouts into the one that the page reads."""

import argparse
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.errors import ModelFileError
from app.engine.models import FAMILIES, Family, family_of, weight_specs
from app.engine.models.config import Config, config_from_dict
from app.engine.tokenizer import Tokenizer
from app.engine.weights.compact import CODES
from app.engine.weights.spec import WeightSpec
from weights_tool.folder import TOKENIZER_FILES
from weights_tool.from_gguf import read_model
from weights_tool.output import add_command, add_output, max_bytes, old_model
from weights_tool.pickled import read_plain
from weights_tool.progress import Progress
from weights_tool.random_model import read_tokenizer
from weights_tool.stored import FLOATS, MASK, PIECE, Stored, find_weights
from weights_tool.writing import Floats, Tensor, check_room, total_bytes, write_model

HELP = """\
Write a model as the page reads it: config.json, safetensors with transformers' names, and the tokenizer's files.

SRC is a folder or a file with
  safetensors, one or several files with an index
  pytorch_model.bin or another .bin or .pt with a state_dict, in either of PyTorch's formats; no PyTorch is needed, and
  nothing that a pickle may carry is run
  nanoGPT's ckpt.pt: the config comes from its model_args, Linear weights are transposed, biases that it goes without
  become zeros, and rows that pad the vocabulary beyond the tokenizer's tokens are dropped

  a GGUF file of a Llama, Qwen2, Qwen3 or GPT-2, dequantised, in F16 unless --dtype says otherwise; tokenizer and chat
  template come with it (this needs the extra: pip install 'tabgpt[tools]')

The tokenizer is taken from SRC, or from --vocab; for a character-level nanoGPT from its --meta meta.pkl.
"""

# What trainers wrap a model in.
_PREFIXES = re.compile(r"^(_orig_mod\.|module\.|model\.|transformer\.|gpt_neox\.)+")
_LINEAR = re.compile(r"h\.\d+\.(attn\.c_attn|attn\.c_proj|mlp\.c_fc|mlp\.c_proj)\.weight")


def add_convert(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    parser = add_command(commands, "convert", short="write another layout as the page reads it", long=HELP)
    parser.add_argument("source", type=Path, metavar="SRC", help="folder, or file with the weights")
    add_output(parser)
    parser.add_argument("--dtype", choices=FLOATS, help="of the weights (as they are, if they are all the same)")
    parser.add_argument("--vocab", type=Path, metavar="DIR", help="folder with the tokenizer's files")
    parser.add_argument("--meta", type=Path, metavar="FILE", help="nanoGPT's meta.pkl of a character-level model")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Do what the command line asks; return the exit status."""
    source: Path = options.source
    if not source.exists():
        raise FileNotFoundError(f"{source} does not exist.")
    if source.is_file() and source.suffix.lower() == ".gguf":
        raw, parts, tokenizer = read_model(source)
        return write(options, raw, parts, options.dtype or "F16", tokenizer)
    folder = source if source.is_dir() else source.parent
    found, extra = find_weights(source)
    nano = isinstance(extra.get("model_args"), dict)
    family = FAMILIES["gpt2"] if nano else family_of(config_from_dict(read_config(folder)))
    tensors = canonical(found, family)
    if any(name.endswith(CODES) or f"{CODES}." in name for name in tensors):
        raise ModelFileError(f"{source} is quantised, in tabgpt's own format. Convert the original model.")
    raw = nano_config(extra["model_args"], tensors) if nano else read_config(folder)
    tokenizer = find_tokenizer(options, folder, raw)
    if nano and (count := len_of(tokenizer)) is not None:
        raw |= {"vocab_size": min(raw["vocab_size"], count)}
    config = config_from_dict(raw)
    specs = weight_specs(tie(config, tensors))
    parts = [fitted(spec, tensors, linear=nano, prefix=family.prefix) for spec in specs]
    raw["tie_word_embeddings"] = "lm_head.weight" not in {part.name for part in parts}
    return write(options, raw, parts, options.dtype or common_dtype(tensors, specs), tokenizer)


def write(
    options: argparse.Namespace, raw: dict[str, Any], parts: list[Tensor], dtype: str, tokenizer: dict[str, bytes]
) -> int:
    """Write a model's folder; return the exit status."""
    old = old_model(options.out, force=options.force)
    nbytes = total_bytes(parts, dtype)
    check_room(options.out, nbytes)
    for path in old:
        path.unlink()
    paths = write_model(options.out, parts, dtype, max_bytes=max_bytes(options), tick=Progress(nbytes, "writing"))
    (options.out / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    for name, data in tokenizer.items():
        (options.out / name).write_bytes(data)
    files = ", ".join(["config.json", *(path.name for path in paths), *tokenizer])
    print(f"{options.out}: {nbytes:,} bytes of weights in {dtype} ({files})")
    if not tokenizer:
        print("There is no tokenizer with it; add one with --vocab, or the page cannot use it.")
    return 0


def canonical(found: dict[str, Stored], family: Family) -> dict[str, Stored]:
    """Return tensors by the names of `weight_specs`, without mask buffers."""
    tensors: dict[str, Stored] = {}
    for name, stored in found.items():
        short = _PREFIXES.sub("", name)
        if short.startswith(f"{family.old_head}."):
            short = "lm_head" + short.removeprefix(family.old_head)
        if MASK.fullmatch(short):
            continue
        if short in tensors:
            raise ModelFileError(f"Two tensors would be named {short!r}; the file is no plain model.")
        tensors[short] = stored
    embedding = f"{family.embedding}.weight"
    if embedding not in tensors and "lm_head.weight" in tensors:
        tensors[embedding] = tensors["lm_head.weight"]
    return tensors


def read_config(folder: Path) -> dict[str, Any]:
    """Return a folder's config.json, validated."""
    path = folder / "config.json"
    if not path.is_file():
        raise ModelFileError(f"{folder} has no config.json, which says what shape the model has.")
    try:
        raw = json.loads(path.read_bytes())
    except ValueError as error:
        raise ModelFileError(f"{path} is not valid JSON ({error}).") from error
    if not isinstance(raw, dict):
        raise ModelFileError(f"{path} holds no object.")
    config_from_dict(raw)
    return raw


def nano_config(arguments: dict[str, Any], tensors: dict[str, Stored]) -> dict[str, Any]:
    """Make a config.json from nanoGPT's model_args."""
    try:
        sizes = {key: int(arguments[key]) for key in ("n_layer", "n_head", "n_embd", "block_size")}
        vocab_size = tensors["wte.weight"].shape[0]
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise ModelFileError(f"The checkpoint's model_args are not those of nanoGPT ({error}).") from error
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_layer": sizes["n_layer"],
        "n_head": sizes["n_head"],
        "n_embd": sizes["n_embd"],
        "n_positions": sizes["block_size"],
        "vocab_size": vocab_size,
        "activation_function": "gelu",  # nn.GELU(): by erf
        "layer_norm_epsilon": 1e-5,
    }


def find_tokenizer(options: argparse.Namespace, folder: Path, raw: dict[str, Any]) -> dict[str, bytes]:
    """Return the tokenizer's files by name; none if there are none."""
    if options.meta is not None:
        return character_tokenizer(options.meta)
    where: Path = options.vocab or folder
    if options.vocab is None and not any((folder / name).is_file() for name in TOKENIZER_FILES[:2]):
        return {}
    return read_tokenizer(where, raw)


def character_tokenizer(path: Path) -> dict[str, bytes]:
    """Make vocab.json and merges.txt from nanoGPT's meta.pkl: one token a character, no merges."""
    meta = read_plain(path)
    stoi = meta.get("stoi") if isinstance(meta, dict) else None
    if not isinstance(stoi, dict) or not all(isinstance(i, int) and isinstance(c, str) for c, i in stoi.items()):
        raise ModelFileError(f"{path} has no stoi, which maps characters to numbers.")
    strange = sorted(character for character in stoi if len(character) != 1 or not character.isascii())
    if strange:
        raise ModelFileError(
            f"{path}: {''.join(strange)[:20]!r} are not ASCII; a character-level vocabulary can only be carried over "
            "where a character is a byte."
        )
    vocabulary = {BYTES[ord(character)]: number for character, number in stoi.items()}
    return {"vocab.json": json.dumps(vocabulary).encode(), "merges.txt": b"#version: 0.2\n"}


def len_of(tokenizer: dict[str, bytes]) -> int | None:
    """Return how many tokens a tokenizer has, None if there is none."""
    return Tokenizer.from_files(tokenizer).n_vocab if tokenizer else None


def tie(config: Config, tensors: dict[str, Stored]) -> Config:
    """Say whether lm_head is the embedding again."""
    head, table = tensors.get("lm_head.weight"), tensors.get(f"{family_of(config).embedding}.weight")
    tied = head is None or (table is not None and same(head, table))
    return replace(config, tied=tied)


def same(one: Stored, other: Stored) -> bool:
    """Tell whether two tensors hold the same values."""
    if one is other:
        return True
    if one.shape != other.shape:
        return False
    return all(np.array_equal(a, b) for a, b in zip(one.pieces(), other.pieces(), strict=True))


def fitted(spec: WeightSpec, tensors: dict[str, Stored], *, linear: bool, prefix: str) -> Tensor:
    """Return a tensor as `spec` wants it, named with `prefix`. `linear`: [out, in] matrices are to be transposed."""
    stored = tensors.get(spec.name)
    name = spec.name if spec.name.startswith("lm_head") else prefix + spec.name
    if stored is None and spec.name.endswith(".bias") and linear:
        return Tensor(name=name, shape=spec.shape, pieces=partial(_zeros, spec.shape[0]))
    if stored is None:
        raise ModelFileError(f"The weights have no tensor {spec.name!r}, which the config asks for.")
    if stored.dtype not in FLOATS:
        raise ModelFileError(f"Tensor {spec.name!r} is stored as {stored.dtype}; F32, F16 and BF16 can be converted.")
    flipped = linear and _LINEAR.fullmatch(spec.name) is not None
    shape = stored.shape[::-1] if flipped else stored.shape
    padded = linear and spec.name in ("wte.weight", "lm_head.weight") and shape[0] >= spec.shape[0]
    if shape != spec.shape and not (padded and shape[1:] == spec.shape[1:]):
        raise ModelFileError(f"Tensor {spec.name!r} has the shape {list(shape)}, but {list(spec.shape)} is wanted.")
    if flipped:
        return Tensor(name=name, shape=spec.shape, pieces=partial(_transposed, stored))
    count = spec.shape[0] * (spec.shape[1] if len(spec.shape) > 1 else 1)
    return Tensor(name=name, shape=spec.shape, pieces=partial(_first, stored, count))


def common_dtype(tensors: dict[str, Stored], specs: list[WeightSpec]) -> str:
    """Return the dtype that all wanted tensors have, else F32."""
    wanted = {spec.name for spec in specs}
    dtypes = {stored.dtype for name, stored in tensors.items() if name in wanted}
    return dtypes.pop() if len(dtypes) == 1 else "F32"


def copy_tokenizer(source: Path, out: Path) -> list[str]:
    """Copy a tokenizer's files; return their names."""
    names = [name for name in TOKENIZER_FILES if (source / name).is_file()]
    for name in names:
        if source.resolve() != out.resolve():
            shutil.copyfile(source / name, out / name)
    return names


def _zeros(count: int) -> Iterator[Floats]:
    yield np.zeros(count, np.float32)


def _transposed(stored: Stored) -> Iterator[Floats]:
    yield np.ascontiguousarray(stored.values().T).reshape(-1)


def _first(stored: Stored, count: int) -> Iterator[Floats]:
    done = 0
    for piece in stored.pieces():
        yield piece[: count - done]
        done += PIECE
        if done >= count:
            return


def _byte_names() -> list[str]:
    """Return GPT-2's printable stand-in for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(256 + others.index(byte)) for byte in range(256)]


BYTES = _byte_names()
