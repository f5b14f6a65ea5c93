"""`quantize`: the same model in fewer bits, with a report of what that costs."""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.errors import ModelFileError
from app.engine.ops.eager import to_float32
from weights_tool.convert import copy_tokenizer, read_config
from weights_tool.measure import perplexity
from weights_tool.output import add_command, add_output, max_bytes, old_model
from weights_tool.progress import Progress
from weights_tool.stored import Stored, find_weights, weights_only
from weights_tool.writing import Floats, Tensor, check_room, encode, total_bytes, write_model

DTYPES = {"f16": "F16"}
TOKENS = 256

HELP = """\
Write a model with smaller weights into another folder, and report the error of each tensor: the largest difference of
a value, and the root mean square of all differences, relative to that of the values. With --text, also the perplexity
before and after, computed on the CPU over the text's first --tokens tokens.
"""


@dataclass
class Error:
    """What rounding did to a tensor."""

    largest: float = 0.0
    squares: float = 0.0
    total: float = 0.0

    @property
    def relative(self) -> float:
        """Root mean square of the differences, relative to that of the values."""
        return float(np.sqrt(self.squares / self.total)) if self.total else 0.0

    def add(self, before: Floats, after: Floats) -> None:
        """Take a piece of the tensor into account."""
        difference = after.astype(np.float64) - before
        self.largest = max(self.largest, float(np.abs(difference).max(initial=0.0)))
        self.squares += float(difference @ difference)
        self.total += float(before.astype(np.float64) @ before)


def add_quantize(commands: Any) -> None:
    """Add the command to argparse's `commands`."""
    parser = add_command(commands, "quantize", short="write a model in fewer bits, and say what it costs", long=HELP)
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder with config.json and safetensors")
    parser.add_argument("--to", choices=list(DTYPES), required=True, help="what weights become")
    add_output(parser)
    parser.add_argument("--text", type=Path, metavar="FILE", help="UTF-8 text to measure the perplexity on")
    parser.add_argument("--tokens", type=int, default=TOKENS, metavar="N", help=f"of the text at most ({TOKENS})")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Do what the command line asks; return the exit status."""
    if options.out.resolve() == options.folder.resolve():
        raise ModelFileError("--out is the folder itself. Choose another, so that the original stays.")
    text = None if options.text is None else options.text.read_text(encoding="utf-8")
    raw = read_config(options.folder)
    found = weights_only(find_weights(options.folder)[0])
    errors = {name: Error() for name in found}
    dtype = DTYPES[options.to]
    parts = [
        Tensor(name=name, shape=stored.shape, pieces=partial(_watched, name, stored, dtype, errors[name]))
        for name, stored in found.items()
    ]
    old = old_model(options.out, force=options.force)
    nbytes = total_bytes(parts, dtype)
    check_room(options.out, nbytes)
    for path in old:
        path.unlink()
    write_model(options.out, parts, dtype, max_bytes=max_bytes(options), tick=Progress(nbytes, "writing"))
    (options.out / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    copy_tokenizer(options.folder, options.out)
    report = {
        "out": str(options.out),
        "to": options.to,
        "bytes": nbytes,
        "tensors": {
            part.name: {"largest": errors[part.name].largest, "relative": errors[part.name].relative} for part in parts
        },
        "perplexity": None
        if text is None
        else {
            "before": perplexity(options.folder, text, options.tokens),
            "after": perplexity(options.out, text, options.tokens),
        },
    }
    print(json.dumps(report, indent=2) if options.json else _text(report))
    return 0


def _watched(name: str, stored: Stored, dtype: str, error: Error) -> Iterator[Floats]:
    for piece in stored.pieces():
        with np.errstate(over="ignore"):  # looked for below
            after = to_float32(encode(piece, dtype), dtype)
        if not np.isfinite(after).all():
            what = "is too large for" if np.isfinite(piece).all() else "is no finite number, also before"
            raise ModelFileError(f"Tensor {name!r}: a value {what} {dtype}. The model is not written.")
        error.add(piece, after)
        yield piece


def _text(report: dict[str, Any]) -> str:
    width = max(map(len, report["tensors"]))
    lines = [f"{report['out']}: {report['bytes']:,} bytes of weights in {report['to']}"]
    lines += [f"    {'tensor':{width}}  largest error  relative error"]
    for name, error in report["tensors"].items():
        lines.append(f"    {name:{width}}  {error['largest']:13.3g}  {error['relative']:14.3%}")
    if report["perplexity"]:
        before, after = report["perplexity"]["before"], report["perplexity"]["after"]
        lines.append(f"  perplexity {before:.4f} before, {after:.4f} after ({after / before - 1:+.3%})")
    return "\n".join(lines)
