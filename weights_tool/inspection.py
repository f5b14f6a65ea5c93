"""`inspect`: what is in a model's folder, how the page would see it, and what is wrong with it."""

import argparse
import asyncio
import json
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

from app.engine.errors import EngineError
from app.engine.models.gpt2 import weight_specs
from app.engine.weights.loader import check_tensors, load_tokenizer, open_checkpoint
from weights_tool.folder import folder_source

HELP = """\
Read a folder's config, the headers of its weights and its tokenizer as the page would, without reading the weights.
Exit status 1 if something in it cannot be used.
"""


def add_inspect(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    parser = commands.add_parser(
        "inspect",
        help="say what is in a model's folder, and what is wrong with it",
        description=HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with config.json and safetensors")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Do what the command line asks; return the exit status."""
    if not options.folder.is_dir():
        raise NotADirectoryError(f"{str(options.folder)!r} is not a folder.")
    found = asyncio.run(inspect(options.folder))
    print(json.dumps(found, indent=2) if options.json else _text(found))
    return 1 if found["faults"] else 0


async def inspect(folder: Path) -> dict[str, Any]:
    """Return what is known of a model; `faults` lists, in words, what cannot be used."""
    source = folder_source(folder)
    found: dict[str, Any] = {"folder": str(folder), "faults": []}
    try:
        checkpoint = await open_checkpoint(source)
    except EngineError as error:
        found["faults"].append(f"{type(error).__name__}: {error}")
        return found
    specs = weight_specs(checkpoint.config)
    needed = {spec.name for spec in specs}
    found |= {
        "config": asdict(checkpoint.config),
        "parameters": sum(prod(spec.shape) for spec in specs),
        "files": {name: (folder / name).stat().st_size for name in checkpoint.files},
        "weights_bytes": checkpoint.total_bytes,
        "tensors": {
            name: {"dtype": ref.dtype, "shape": list(ref.shape), "bytes": ref.nbytes, "file": ref.file}
            for name, ref in checkpoint.tensors.items()
        },
        "unused": sorted(checkpoint.tensors.keys() - needed),
        "tokenizer": None,
    }
    try:
        check_tensors(checkpoint, specs)
    except EngineError as error:
        found["faults"].append(f"{type(error).__name__}: {error}")
    try:
        tokenizer = await load_tokenizer(source, checkpoint.config)
        found["tokenizer"] = {"tokens": tokenizer.n_vocab, "eos_id": tokenizer.eos_id}
    except EngineError as error:
        found["faults"].append(f"{type(error).__name__}: {error}")
    return found


def _text(found: dict[str, Any]) -> str:
    lines = [found["folder"]]
    if config := found.get("config"):
        lines.append(
            f"  GPT-2: {config['n_layer']} layers, {config['n_head']} heads, width {config['n_embd']} (inner "
            f"{config['n_inner']}), context {config['n_ctx']}, vocabulary {config['n_vocab']}, {config['activation']}, "
            f"lm_head {'tied' if config['tied'] else 'separate'}"
        )
        lines.append(f"  {found['parameters']:,} parameters, {found['weights_bytes']:,} bytes of weights")
        lines += [f"  {name}: {size:,} bytes" for name, size in found["files"].items()]
        if found["tokenizer"]:
            lines.append(
                f"  tokenizer: {found['tokenizer']['tokens']} tokens, end of text {found['tokenizer']['eos_id']}"
            )
        width = max(map(len, found["tensors"]))
        for name, tensor in found["tensors"].items():
            shape = " × ".join(map(str, tensor["shape"]))
            lines.append(f"    {name:{width}}  {tensor['dtype']:4}  {shape:>14}  {tensor['bytes']:>13,} bytes")
        lines += [f"  unused: {name}" for name in found["unused"]]
    lines += [f"  FAULT {fault}" for fault in found["faults"]] or ["  nothing is wrong with it"]
    return "\n".join(lines)
