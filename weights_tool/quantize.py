"""`quantize`: the same model in fewer bits, with a report of what that costs."""

import argparse
import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.engine.errors import ModelFileError
from app.engine.models import weight_specs
from app.engine.weights.blocks import to_float32
from app.engine.weights.compact import CODE_BITS, metadata, stored_specs
from app.engine.weights.loader import Checkpoint, check_tensors, open_checkpoint
from app.engine.weights.quantize import BLOCK, Words, dequantize, quantize
from app.engine.weights.spec import WeightSpec
from weights_tool.convert import copy_tokenizer, read_config
from weights_tool.folder import folder_source
from weights_tool.measure import perplexity
from weights_tool.output import add_command, add_output, max_bytes, old_model
from weights_tool.progress import Progress
from weights_tool.stored import Stored, find_weights, stored_at, weights_only
from weights_tool.writing import Floats, Tensor, check_room, encode, total_bytes, write_model

DTYPES = {"f16": "F16"}
TARGETS = (*DTYPES, *CODE_BITS)
ROWS = 1024
"""Of a matrix, quantised at once."""
TOKENS = 256

HELP = """\
Write a model with smaller weights into another folder, and report the error of each tensor: the largest difference of
a value, and the root mean square of all differences, relative to that of the values. With --text, also the perplexity
before and after, computed on the CPU over the text's first --tokens tokens.

f16 halves F32 weights, and any program reads them. q8 and q4 are tabgpt's own format (app/engine/weights/compact.py):
9 and 5 bits a weight, copied onto the GPU as they are. --max-file-mb 24 stays below the 25 MB that many static hosts
allow a file, and cuts matrices by rows where they are larger.
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
    parser.add_argument("--to", choices=TARGETS, required=True, help="what weights become")
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
    scheme = options.to if options.to in CODE_BITS else None
    dtype = DTYPES.get(options.to, "F32")
    checkpoint = asyncio.run(open_checkpoint(folder_source(options.folder)))
    if checkpoint.scheme is not None:
        raise ModelFileError(f"{options.folder} is in {checkpoint.scheme} already. Quantise the original model.")
    if scheme is None:
        parts, errors = rounded(weights_only(find_weights(options.folder)[0]), dtype)
    else:
        parts, errors = compacted(options.folder, checkpoint, scheme, max_bytes(options))
    old = old_model(options.out, force=options.force)
    nbytes = total_bytes(parts, dtype)
    check_room(options.out, nbytes)
    for path in old:
        path.unlink()
    write_model(
        options.out,
        parts,
        dtype,
        max_bytes=max_bytes(options),
        tick=Progress(nbytes, "writing"),
        metadata=None if scheme is None else metadata(scheme),
    )
    (options.out / "config.json").write_text(json.dumps(raw, indent=2) + "\n")
    copy_tokenizer(options.folder, options.out)
    report = {
        "out": str(options.out),
        "to": options.to,
        "bytes": nbytes,
        "tensors": {name: {"largest": error.largest, "relative": error.relative} for name, error in errors.items()},
        "perplexity": None
        if text is None
        else {
            "before": perplexity(options.folder, text, options.tokens),
            "after": perplexity(options.out, text, options.tokens),
        },
    }
    print(json.dumps(report, indent=2) if options.json else _text(report))
    return 0


def rounded(found: dict[str, Stored], dtype: str) -> tuple[list[Tensor], dict[str, Error]]:
    """Return tensors in another dtype, and their errors, which are known once they are written."""
    errors = {name: Error() for name in found}
    parts = [
        Tensor(name=name, shape=stored.shape, pieces=partial(_watched, name, stored, dtype, errors[name]))
        for name, stored in found.items()
    ]
    return parts, errors


def compacted(
    folder: Path, checkpoint: Checkpoint, scheme: str, most: int | None
) -> tuple[list[Tensor], dict[str, Error]]:
    """Return a model's tensors in `compact`'s format, each of at most `most` bytes, and their errors, as `rounded`."""
    specs = weight_specs(checkpoint.config)
    check_tensors(checkpoint, specs)
    parts: list[Tensor] = []
    errors: dict[str, Error] = {}
    for spec in specs:
        ref = checkpoint.tensors[spec.name]
        stored, error = stored_at(folder / ref.file, ref), errors.setdefault(spec.name, Error())
        if spec.kind in ("vector", "table"):
            dtype = "F32" if spec.kind == "vector" and stored.dtype != "F16" else "F16"
            pieces = partial(_watched, spec.name, stored, dtype, error)
            parts.append(Tensor(name=spec.name, shape=spec.shape, pieces=pieces, dtype=dtype))
            continue
        matrix = _Matrix(spec, stored, scheme, error)
        for whole in stored_specs([spec], scheme, {}):
            rows, width = whole.shape
            step = rows if most is None else min(rows, max(1, most // (4 * width)))
            for number, row in enumerate(range(0, rows, step)):
                stop = min(row + step, rows)
                name = whole.name if step == rows else f"{whole.name}.{number}"
                pieces_of = matrix.codes if whole.kind == "codes" else matrix.scales
                parts.append(
                    Tensor(name=name, shape=(stop - row, width), pieces=partial(pieces_of, row, stop), dtype="U32")
                )
    return parts, errors


class _Matrix:
    """Quantises a matrix some rows at a time: codes at first, whose scales it keeps for when they are asked for."""

    def __init__(self, spec: WeightSpec, stored: Stored, scheme: str, error: Error) -> None:
        self._spec, self._stored, self._scheme, self._error = spec, stored, scheme, error
        self._scales: list[Words] = []

    def codes(self, start: int, stop: int) -> Iterator[Words]:
        """Yield the codes of rows [start, stop)."""
        for values in self._rows(start, stop):
            if not np.isfinite(values).all():
                raise ModelFileError(f"Tensor {self._spec.name!r}: a value is no finite number. The model is not kept.")
            columns = values.shape[1]
            padded = np.pad(values, ((0, 0), (0, -columns % BLOCK)))
            codes, scales = quantize(padded, self._scheme)
            after = dequantize(codes, scales, self._scheme)[:, :columns]
            self._error.add(values.reshape(-1), after.reshape(-1))
            self._scales.append(scales.copy())
            yield codes.reshape(-1)

    def scales(self, start: int, stop: int) -> Iterator[Words]:
        """Yield the scales of rows [start, stop), after the codes of all rows."""
        self._scales = [np.concatenate(self._scales)]
        yield self._scales[0][start:stop].reshape(-1)
        if stop == len(self._scales[0]):
            self._scales.clear()

    def _rows(self, start: int, stop: int) -> Iterator[Floats]:
        """Yield rows as [out, in]."""
        width = self._spec.shape[1]
        if self._spec.kind == "conv1d":  # a layer's: at most some tens of megabytes
            whole = self._stored.values().T
            for row in range(start, stop, ROWS):
                yield np.ascontiguousarray(whole[row : min(row + ROWS, stop)])
            return
        for row in range(start, stop, ROWS):
            end = min(row + ROWS, stop)
            data = self._stored.read(row * width, end * width)
            yield to_float32(data, self._stored.dtype).reshape(-1, width)


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
