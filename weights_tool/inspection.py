"""`inspect`: what is in a model's folder, how the page would see it, and what is wrong with it."""

import argparse
import asyncio
import json
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

from app.engine.chat_files import read_chat_files
from app.engine.errors import EngineError, OptionError
from app.engine.models import weight_specs
from app.engine.weights.gguf import read_gguf
from app.engine.weights.hub import Source, open_source
from app.engine.weights.loader import check_tensors, load_tokenizer, open_checkpoint
from app.engine.weights.plan import plan
from weights_tool.folder import folder_source
from weights_tool.from_gguf import differences, gguf_source

HELP = """\
Read a model's config, the headers of its weights and its tokenizer as the page would, without reading the weights, and
say what the page would download. The model is a folder, a GGUF file, OWNER/NAME[@REVISION] on the hub (for GGUF also
OWNER/NAME:Q4_K_M or OWNER/NAME/FILE.gguf), or the address of a folder or of a GGUF file. All but a folder need the
extra: pip install 'tabgpt[tools]'.
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
    parser.add_argument("model", metavar="MODEL", help="folder, GGUF file, OWNER/NAME on the hub, or an address")
    parser.add_argument("--hub", metavar="URL", help="base address of another hub")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Do what the command line asks; return the exit status."""
    folder = Path(options.model)
    if folder.is_file() and folder.suffix.lower() == ".gguf":
        found = asyncio.run(inspect_gguf(folder))
    elif folder.is_dir():
        found = asyncio.run(inspect(folder))
    elif folder.is_absolute() or options.model.startswith(".") or "/" not in options.model:
        raise NotADirectoryError(f"{options.model!r} is not a folder, and no GGUF file.")
    else:
        found = asyncio.run(inspect_remote(options.model, options.hub))
    print(json.dumps(found, indent=2) if options.json else _text(found))
    return 1 if found["faults"] else 0


async def inspect(folder: Path) -> dict[str, Any]:
    """Return what is known of a model in a folder; `faults` lists, in words, what cannot be used."""
    found = await inspect_source(folder_source(folder), str(folder))
    if "files" in found:
        found["files"] = {name: (folder / name).stat().st_size for name in found["files"]}
    return found


async def inspect_gguf(path: Path) -> dict[str, Any]:
    """Return what is known of a GGUF file; what the `gguf` package reads otherwise is a fault, too."""
    source = gguf_source(path)
    found = await inspect_source(source, str(path))
    if "files" in found:
        found["files"] = {path.name: path.stat().st_size}
        found["faults"] += [
            f"the gguf package disagrees: {said}" for said in differences(path, await read_gguf(source, path.name))
        ]
    return found


async def inspect_remote(model: str, hub: str | None) -> dict[str, Any]:
    """Return what is known of a model on the hub or another host; the sizes of its files are None."""
    try:
        from weights_tool.remote import HttpTransport
    except ImportError as error:
        raise OptionError("To look at the hub it takes httpx: pip install 'tabgpt[tools]'") from error
    transport = HttpTransport(proxies=True)
    try:
        return await inspect_source(open_source(model, hub=hub, transport=transport), model)
    finally:
        await transport.client.aclose()


async def inspect_source(source: Source, name: str) -> dict[str, Any]:
    """Return what is known of a model's files."""
    found: dict[str, Any] = {"folder": name, "faults": []}
    try:
        checkpoint = await open_checkpoint(source)
    except EngineError as error:
        found["faults"].append(f"{type(error).__name__}: {error}")
        return found
    specs = weight_specs(checkpoint.config)
    needed = {spec.name for spec in checkpoint.stored(specs)}
    found |= {
        "family": checkpoint.config.family,
        "config": asdict(checkpoint.config),
        "format": checkpoint.scheme,
        "parameters": sum(prod(spec.shape) for spec in specs),
        "files": dict.fromkeys(checkpoint.files),
        "weights_bytes": checkpoint.total_bytes,
        "tensors": {
            name: {"dtype": ref.dtype, "shape": list(ref.shape), "bytes": ref.nbytes, "file": ref.file}
            for name, ref in checkpoint.tensors.items()
        },
        "unused": sorted(checkpoint.tensors.keys() - needed),
        "tokenizer": None,
        "chat": False,
        "page": None,
    }
    try:
        check_tensors(checkpoint, specs)
        windows = plan(checkpoint.tensors, checkpoint.stored(specs))
        requests = [request for window in windows for request in window.requests]
        found["page"] = {
            "requests": len(requests),
            "bytes": sum(request.stop - request.start for request in requests),
        }
    except EngineError as error:
        found["faults"].append(f"{type(error).__name__}: {error}")
    try:
        tokenizer = await load_tokenizer(source, checkpoint.config, checkpoint.gguf)
        found["tokenizer"] = {"tokens": tokenizer.n_vocab, "eos_id": tokenizer.eos_id}
        found["chat"] = (await read_chat_files(source, tokenizer, checkpoint.gguf)).template is not None
    except EngineError as error:
        found["faults"].append(f"{type(error).__name__}: {error}")
    return found


def _text(found: dict[str, Any]) -> str:
    lines = [found["folder"]]
    if config := found.get("config"):
        lines.append(
            f"  {found['family']}: {config['n_layer']} layers, {config['n_head']} heads, width {config['n_embd']} "
            f"(inner {config['n_inner']}), context {config['n_ctx']}, vocabulary {config['n_vocab']}, "
            f"{config['activation']}, lm_head {'tied' if config['tied'] else 'separate'}"
        )
        stored = f" in tabgpt's format {found['format']}" if found["format"] else ""
        lines.append(f"  {found['parameters']:,} parameters, {found['weights_bytes']:,} bytes of weights{stored}")
        lines += [f"  {name}" if size is None else f"  {name}: {size:,} bytes" for name, size in found["files"].items()]
        if found["page"]:
            page = found["page"]
            lines.append(f"  the page would download {page['bytes']:,} bytes of weights in {page['requests']} requests")
        if found["tokenizer"]:
            lines.append(
                f"  tokenizer: {found['tokenizer']['tokens']} tokens, end of text {found['tokenizer']['eos_id']}"
            )
        if found["chat"]:
            lines.append("  it has a chat template")
        width = max(map(len, found["tensors"]))
        for name, tensor in found["tensors"].items():
            shape = " × ".join(map(str, tensor["shape"]))
            lines.append(f"    {name:{width}}  {tensor['dtype']:4}  {shape:>14}  {tensor['bytes']:>13,} bytes")
        lines += [f"  unused: {name}" for name in found["unused"]]
    lines += [f"  FAULT {fault}" for fault in found["faults"]] or ["  nothing is wrong with it"]
    return "\n".join(lines)
