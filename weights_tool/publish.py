"""`publish`: a folder that can be put on a static host or on the hub as it is."""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

from app.engine.errors import ModelFileError
from app.engine.weights.compact import metadata
from weights_tool.convert import copy_tokenizer, read_config
from weights_tool.inspection import inspect
from weights_tool.output import add_command, add_output, max_bytes, old_model
from weights_tool.progress import Progress
from weights_tool.stored import find_weights, weights_only
from weights_tool.verify import SUMS, file_sha256, verify
from weights_tool.writing import Tensor, check_room, total_bytes, write_model

CARD = "README.md"

HELP = """\
Write a model into a folder as a static host or the hub takes it: the files that the page reads and no others, checksums
(SHA256SUMS), and a model card (README.md; one that is already in DIR is kept). The model is verified before and after.
Many static hosts limit the size of a file: --max-file-mb 24 stays below the common 25 MB.

Then, for a static host, copy the folder there; it must answer range requests and allow other sites to read (CORS).
For the hub:  huggingface-cli upload OWNER/NAME OUT .
"""


def add_publish(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    parser = add_command(commands, "publish", short="make a folder ready for a static host or the hub", long=HELP)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with config.json and safetensors")
    add_output(parser)
    parser.add_argument("--title", help="of the model card (the folder's name)")
    parser.add_argument("--license", help="for the model card, as the hub spells it: mit, apache-2.0, ...")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Do what the command line asks; return the exit status."""
    folder, out = options.folder, options.out
    if out.resolve() == folder.resolve():
        raise ModelFileError("--out is the folder itself. Choose another.")
    if faults := verify(folder)["faults"]:
        raise ModelFileError(f"{folder} is not fit to be published: {faults[0]}")
    raw = read_config(folder)
    scheme: str | None = asyncio.run(inspect(folder))["format"]
    found, _ = find_weights(folder)
    if scheme is None:
        found = weights_only(found)
        dtypes = {stored.dtype for stored in found.values()}
        dtype = dtypes.pop() if len(dtypes) == 1 else "F32"
        parts = [Tensor(name=name, shape=stored.shape, pieces=stored.pieces) for name, stored in found.items()]
    else:  # as it is
        dtype = scheme
        parts = [
            Tensor(
                name=name,
                shape=stored.shape,
                pieces=stored.words if stored.dtype == "U32" else stored.pieces,
                dtype=stored.dtype,
            )
            for name, stored in found.items()
        ]
    old = old_model(out, force=options.force)
    nbytes = total_bytes(parts, dtype)
    check_room(out, nbytes)
    for path in [*old, out / SUMS]:
        path.unlink(missing_ok=True)
    paths = write_model(
        out,
        parts,
        dtype,
        max_bytes=max_bytes(options),
        tick=Progress(nbytes, "writing"),
        metadata=None if scheme is None else metadata(scheme),
    )
    (out / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    names = ["config.json", *copy_tokenizer(folder, out), *(path.name for path in paths), CARD]
    kept = folder / CARD
    title = options.title or folder.resolve().name
    card = kept.read_text(encoding="utf-8") if kept.is_file() else model_card(folder, title, options.license, dtype)
    (out / CARD).write_text(card, encoding="utf-8")
    (out / SUMS).write_text("".join(f"{file_sha256(out / name)}  {name}\n" for name in sorted(names)))
    if faults := verify(out)["faults"]:
        raise ModelFileError(f"What was written does not verify: {faults[0]}")
    largest = max((out / name).stat().st_size for name in names)
    total = sum((out / name).stat().st_size for name in names)
    print(f"{out}: {len(names) + 1} files, {total:,} bytes, the largest {largest:,}; all verified")
    return 0


def model_card(folder: Path, title: str, license_: str | None, dtype: str) -> str:
    """Return a card with what is known of a model, and nothing that is not."""
    found = asyncio.run(inspect(folder))
    config = found["config"]
    library = "tabgpt" if found["format"] else "transformers"
    head = ["---", f"library_name: {library}", "pipeline_tag: text-generation", f"tags: [{found['family']}, tabgpt]"]
    head += [f"license: {license_}"] if license_ else []
    return "\n".join(
        [
            *head,
            "---",
            "",
            f"# {title}",
            "",
            f"A {found['family']} model of {found['parameters']:,} parameters in {dtype}: {config['n_layer']} layers, "
            f"{config['n_head']} heads, width {config['n_embd']}, context {config['n_ctx']}, "
            f"{config['n_vocab']:,} tokens.",
            "",
            "It runs in a browser tab with tabgpt: give this repository's name, or the address of this folder, as the",
            "model. `SHA256SUMS` has the files' checksums.",
            "",
        ]
    )
