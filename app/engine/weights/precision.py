"""In which precision each matrix of a GGUF file is kept: as near to how it is stored as the kernels allow."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from app.engine.weights.blocks import BLOCKS, KEPT
from app.engine.weights.loader import Checkpoint
from app.engine.weights.spec import WeightSpec

_FINEST_FIRST = ("f32", "f16", "q8", "q4")


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """What a backend has to know of a GGUF file's tensors."""

    precisions: Mapping[str, str]
    """Of the quantised matrices that are kept as they are, by the name under which the model computes with them."""
    conversions: frozenset[tuple[str, str]]
    """Pairs of stored dtype and precision that occur among the matrices, with "" for what is not in `precisions`."""


def mixed(checkpoint: Checkpoint, specs: Sequence[WeightSpec], *, asked: str) -> Mixed | None:
    """Say how the matrices of `specs` are kept if `asked` is "auto", else only which dtypes they have.

    Q8_0 is q8, Q4_0 and Q4_1 are q4, all exactly; other blocks become q8. What several stored matrices make up takes
    the finest of their precisions. None if the checkpoint is no GGUF file.
    """
    if checkpoint.gguf is None:
        return None
    matrices = [spec for spec in checkpoint.stored(specs) if spec.kind == "matrix"]
    dtypes = {spec.name: checkpoint.tensors[spec.name].dtype for spec in matrices}
    natural: dict[str, str] = {}
    for spec in matrices:
        dtype = dtypes[spec.name]
        precision = KEPT.get(dtype, "q8") if dtype in BLOCKS else "f16"
        natural[spec.target] = min(precision, natural.get(spec.target, "q4"), key=_FINEST_FIRST.index)
    precisions = {name: kept for name, kept in natural.items() if kept != "f16" and asked == "auto"}
    tables = [spec for spec in specs if spec.kind == "table"]
    return Mixed(
        precisions=precisions,
        conversions=frozenset((dtypes[spec.name], precisions.get(spec.target, "")) for spec in matrices)
        | {(checkpoint.tensors[spec.name].dtype, "f32") for spec in tables},
    )


def main_precision(kept: Mixed | None, specs: Sequence[WeightSpec]) -> str | None:
    """Return the precision of most weights of `kept`, None if none is kept as it is."""
    return next(iter(counted(kept, specs, "")), None) or None


def counted(kept: Mixed | None, specs: Sequence[WeightSpec], precision: str) -> dict[str, int]:
    """Count the weights of matrices in each precision, the most first; `precision` is that of all that is not kept."""
    counts: Counter[str] = Counter()
    for spec in specs:
        if spec.kind in ("matrix", "conv1d"):
            counts[precision if kept is None else kept.precisions.get(spec.target, precision)] += prod(spec.shape)
    return dict(counts.most_common())
