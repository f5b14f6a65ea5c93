"""GGUF files for the tools: opened as the page opens them, and turned into a folder as the hub has it.

Weights are read through the `gguf` package, which is llama.cpp's own: pip install 'tabgpt[tools]'.
"""

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.errors import OptionError
from app.engine.models import FAMILIES, weight_specs
from app.engine.models.config import config_from_dict
from app.engine.weights import gguf_model
from app.engine.weights.blocks import BLOCKS, nbytes
from app.engine.weights.gguf import Gguf
from app.engine.weights.hub import Source
from app.engine.weights.loader import Checkpoint, check_tensors, open_checkpoint
from app.engine.weights.safetensors import TensorRef
from app.engine.weights.spec import WeightSpec
from weights_tool.folder import FolderTransport
from weights_tool.writing import Floats, Tensor

PIECE = 1 << 22
"""Weights read at once."""

_SPLITS = {
    "llama3": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "qwen2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}


def gguf_source(path: Path) -> Source:
    """Open a file as the loader wants it."""
    return Source(path.name, None, "", FolderTransport(path.parent), gguf=path.name, host=str(path.parent))


def differences(path: Path, gguf: Gguf) -> list[str]:
    """Say where the `gguf` package reads the header of a file otherwise than `gguf` has it. Raises OptionError."""
    reader = _package().GGUFReader(path)
    theirs = {
        tensor.name: (tensor.tensor_type.name, tuple(map(int, tensor.shape[::-1])), int(tensor.data_offset))
        for tensor in reader.tensors
    }
    ours = {name: (ref.dtype, ref.shape, ref.start) for name, ref in gguf.tensors.items()}
    unlike = [name for name in sorted(ours.keys() | theirs) if ours.get(name) != theirs.get(name)]
    found = [f"tensor {name!r}: {ours.get(name)} here, {theirs.get(name)} there" for name in unlike]
    names = {name for name in reader.fields if not name.startswith("GGUF.")}
    return found + [f"the entry {name!r} is read by one of them only" for name in sorted(names ^ gguf.metadata.keys())]


def read_model(path: Path) -> tuple[dict[str, Any], list[Tensor], dict[str, bytes]]:
    """Return what a model's folder holds: config.json's contents, the tensors, and the tokenizer's files by name.

    Rows of queries and keys that llama.cpp has reordered are put back. Raises ModelFileError, UnsupportedModelError or
    OptionError.
    """
    _package()
    checkpoint = asyncio.run(open_checkpoint(gguf_source(path)))
    assert checkpoint.gguf is not None
    raw = gguf_model.config(checkpoint.gguf, _bytes_of(path, checkpoint.gguf.tensors.get(gguf_model.FREQUENCIES)))
    raw = {name: value for name, value in raw.items() if value is not None}
    reordered = bool(raw.pop("rope_interleaved", False))
    specs = weight_specs(config_from_dict(raw))
    check_tensors(checkpoint, specs)
    family = FAMILIES[raw["model_type"]]
    parts = []
    for spec in specs:
        heads = None
        if reordered and ".self_attn.q_proj." in spec.name:
            heads = raw["num_attention_heads"]
        elif reordered and ".self_attn.k_proj." in spec.name:
            heads = raw["num_key_value_heads"]
        name = spec.name if spec.name.startswith("lm_head") else f"{family.prefix}{spec.name}"
        pieces = partial(_pieces, path, checkpoint, spec, heads)
        parts.append(Tensor(name=name, shape=spec.shape, pieces=pieces))
    return raw, parts, tokenizer_files(checkpoint.gguf)


def _pieces(path: Path, checkpoint: Checkpoint, spec: WeightSpec, heads: int | None) -> Iterator[Floats]:
    ref = checkpoint.tensors[spec.name]
    columns = ref.shape[-1]
    rows = 1 if len(ref.shape) == 1 else ref.shape[0]
    whole = heads is not None or spec.kind == "conv1d"
    step = rows if whole else max(1, PIECE // columns)
    width = nbytes(ref.dtype, (columns,))
    with path.open("rb") as file:
        for row in range(0, rows, step):
            count = min(step, rows - row)
            file.seek(ref.start + row * width)
            values = _values(file.read(count * width), ref.dtype, count)
            if heads is not None:
                half = rows // heads // 2
                values = values.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(rows, -1)
            yield np.ascontiguousarray(values.T if spec.kind == "conv1d" else values).reshape(-1)


def _values(data: bytes, dtype: str, rows: int) -> Floats:
    """[rows, columns] of what stands in a file."""
    package = _package()
    kind = package.GGMLQuantizationType[dtype]
    raw: Any = np.frombuffer(data, np.uint8).reshape(rows, -1)
    if dtype not in BLOCKS and dtype != "BF16":
        raw = raw.view({"F32": np.float32, "F16": np.float16}[dtype])
    return np.asarray(package.quants.dequantize(raw, kind), np.float32).reshape(rows, -1)


def _bytes_of(path: Path, ref: TensorRef | None) -> bytes | None:
    if ref is None:
        return None
    with path.open("rb") as file:
        file.seek(ref.start)
        return file.read(ref.nbytes)


def tokenizer_files(gguf: Gguf) -> dict[str, bytes]:
    """Return tokenizer.json and tokenizer_config.json for the tokenizer in a file's metadata. Raises TokenizerError."""
    vocabulary = gguf_model.vocabulary(gguf)
    tokens: list[str] = gguf.metadata["tokenizer.ggml.tokens"]
    name = vocabulary.pattern.name
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": name not in _SPLITS}
    steps: list[dict[str, Any]] = []
    if name in _SPLITS:
        steps = [{"type": "Split", "pattern": {"Regex": _SPLITS[name]}, "behavior": "Isolated", "invert": False}]
    elif name == "gpt2-digits":
        steps = [{"type": "Digits", "individual_digits": True}]
    added = [
        {"id": token.id, "content": token.text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": token.special}
        for token in vocabulary.added
    ]  # fmt: skip
    begin = [{"SpecialToken": {"id": tokens[id_], "type_id": 0}} for id_ in vocabulary.prefix]
    processor = {
        "type": "TemplateProcessing",
        "single": [*begin, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [*begin, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            tokens[id_]: {"id": tokens[id_], "ids": [id_], "tokens": [tokens[id_]]} for id_ in vocabulary.prefix
        },
    }
    made = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None if vocabulary.normal_form is None else {"type": vocabulary.normal_form},
        "pre_tokenizer": level if not steps else {"type": "Sequence", "pretokenizers": [*steps, level]},
        "post_processor": processor if begin else level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "ignore_merges": vocabulary.whole_pieces,
            "vocab": {token: id_ for id_, token in enumerate(tokens)},
            "merges": gguf.metadata["tokenizer.ggml.merges"],
        },
    }
    settings: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for ours, theirs in (
        ("bos", "bos_token"),
        ("eos", "eos_token"),
        ("unknown", "unk_token"),
        ("padding", "pad_token"),
    ):
        id_ = gguf.metadata.get(f"tokenizer.ggml.{ours}_token_id")
        if isinstance(id_, int) and 0 <= id_ < len(tokens):
            settings[theirs] = tokens[id_]
    if isinstance(template := gguf.metadata.get("tokenizer.chat_template"), str):
        settings["chat_template"] = template
    return {
        "tokenizer.json": json.dumps(made, ensure_ascii=False).encode(),
        "tokenizer_config.json": json.dumps(settings, ensure_ascii=False, indent=2).encode(),
    }


def _package() -> Any:
    try:
        import gguf
        import gguf.quants
    except ImportError as error:
        raise OptionError("To read GGUF files it takes the gguf package: pip install 'tabgpt[tools]'") from error
    return gguf
