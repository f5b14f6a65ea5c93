"""tabgpt's own format for q8 and q4 weights on disk: plain safetensors, to be copied onto the GPU as it is.

`__metadata__` of each file holds {"tabgpt_format": "q8" or "q4", "tabgpt_version": "1"}. Names are the
checkpoint's own, with or without `transformer.`.

- A matrix NAME (wte.weight, lm_head.weight unless tied, and each layer's four weights) is two tensors, and NAME itself
  is not there. Rows are output features, so the weights of Conv1D layers lie transposed; `columns` input features are
  padded to k, the next multiple of 32, by zeros before they are quantised. A block is 32 weights along a row.
  - NAME.codes, U32 [rows, k·bits/32]: the weights' codes, bits 8 or 4 each, the first in a word's lowest bits.
  - NAME.scales, U32 [rows, k/32]: a word a block. q8: an f32; weight = scale · code, the code a signed byte.
    q4: two f16, the scale in the lower half, the minimum in the upper; weight = minimum + scale · code, 0 to 15.
  Where a host limits the size of files, either may be cut by rows into NAME.codes.0, NAME.codes.1 and so on.
- wpe.weight and all vectors (biases, norms) are F32, F16 or BF16 under their own names and in their own shapes.

`quantize.py` has the arithmetic. config.json and the tokenizer's files are as they always are.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from app.engine.errors import UnsupportedModelError
from app.engine.weights.quantize import BLOCK
from app.engine.weights.safetensors import TensorRef
from app.engine.weights.spec import WeightSpec

VERSION = "1"
CODE_BITS = {"q8": 8, "q4": 4}
CODES, SCALES = ".codes", ".scales"

_FORMAT_KEY, _VERSION_KEY = "tabgpt_format", "tabgpt_version"


def metadata(scheme: str) -> dict[str, str]:
    """Return what names a scheme in a file."""
    return {_FORMAT_KEY: scheme, _VERSION_KEY: VERSION}


def scheme_of(found: Mapping[str, str], *, file: str) -> str | None:
    """Return the scheme that a file's metadata names, None if its tensors are plain.

    Raises UnsupportedModelError for one that this version does not know.
    """
    scheme = found.get(_FORMAT_KEY)
    if scheme is None:
        return None
    version = found.get(_VERSION_KEY)
    if scheme not in CODE_BITS or version != VERSION:
        raise UnsupportedModelError(
            f"{file} is in tabgpt's format {scheme[:40]!r}, version {str(version)[:40]!r}; this tabgpt reads "
            f"{' and '.join(CODE_BITS)} of version {VERSION}. Use a newer tabgpt, or quantise the original again."
        )
    return scheme


def stored_specs(specs: Iterable[WeightSpec], scheme: str | None, tensors: Mapping[str, TensorRef]) -> list[WeightSpec]:
    """Return what of `tensors` is to be read for `specs`: themselves, but codes and scales for a matrix in a `scheme`.

    What is missing, or has a wrong shape, is in the list as it should be.
    """
    if scheme is None:
        return list(specs)
    stored = []
    for spec in specs:
        if spec.kind not in ("matrix", "conv1d"):
            stored.append(spec)
            continue
        rows, columns = spec.shape[::-1] if spec.kind == "conv1d" else spec.shape
        blocks = -(-columns // BLOCK)
        for suffix, width in ((CODES, blocks * CODE_BITS[scheme]), (SCALES, blocks)):
            whole = WeightSpec(name=spec.name + suffix, shape=(rows, width), kind=suffix[1:], of=spec)
            stored += _parts(whole, tensors) if f"{whole.name}.0" in tensors else [whole]
    return stored


def _parts(whole: WeightSpec, tensors: Mapping[str, TensorRef]) -> list[WeightSpec]:
    """Return the tensors that codes or scales are cut into."""
    rows, width = whole.shape
    parts: list[WeightSpec] = []
    first = 0
    while first < rows:
        name = f"{whole.name}.{len(parts)}"
        ref = tensors.get(name)
        fits = ref is not None and len(ref.shape) == 2 and 0 < ref.shape[0] <= rows - first
        count = ref.shape[0] if ref is not None and fits else rows - first
        parts.append(replace(whole, name=name, shape=(count, width), first=first))
        first += count
    return parts


def check_precision(asked: str, scheme: str | None, *, model: str) -> None:
    """Raise UnsupportedModelError if another precision is asked for than the one that a model is stored in."""
    if scheme is not None and asked not in ("auto", scheme):
        raise UnsupportedModelError(
            f"{model} is stored in {scheme}, and its weights stay so; precision {asked} cannot be had from them. "
            f"Choose precision auto or {scheme}, or load the original model."
        )
