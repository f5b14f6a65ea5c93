"""Words for the tensors of a checkpoint, as the families' `weight_specs` use them."""

from collections.abc import Mapping

from app.engine.weights.spec import WeightSpec


def vector(name: str, size: int, *, into: str | None = None, at: int = 0) -> WeightSpec:
    """A bias or a norm's weight, by its full name."""
    return WeightSpec(name=name, shape=(size,), kind="vector", into=into, at=at)


def norm(name: str, size: int) -> list[WeightSpec]:
    """A layer norm."""
    return [vector(f"{name}.weight", size), vector(f"{name}.bias", size)]


def matrix(name: str, n_in: int, n_out: int, *, into: str | None = None, at: int = 0) -> WeightSpec:
    """`name.weight` [out, in]."""
    return WeightSpec(name=f"{name}.weight", shape=(n_out, n_in), kind="matrix", into=into, at=at)


def table(name: str, rows: int, width: int) -> WeightSpec:
    """A matrix of which single rows are looked up."""
    return WeightSpec(name=f"{name}.weight", shape=(rows, width), kind="table")


def linear(name: str, n_in: int, n_out: int, *, bias: bool = True) -> list[WeightSpec]:
    """A linear layer. The bias comes first, as small as it is."""
    return [*([vector(f"{name}.bias", n_out)] if bias else []), matrix(name, n_in, n_out)]


def conv1d(name: str, n_in: int, n_out: int) -> list[WeightSpec]:
    """GPT-2's linear layer, whose weight is stored as [in, out]."""
    return [vector(f"{name}.bias", n_out), WeightSpec(name=f"{name}.weight", shape=(n_in, n_out), kind="conv1d")]


def stacked(path: str, parts: Mapping[str, int], *, into: str, n_in: int, bias: bool) -> list[WeightSpec]:
    """Linear layers of one input, by name with their outputs, which the model computes with as one named `into`."""
    biases, matrices, at = [], [], 0
    for name, n_out in parts.items():
        biases.append(vector(f"{path}.{name}.bias", n_out, into=f"{path}.{into}.bias", at=at))
        matrices.append(matrix(f"{path}.{name}", n_in, n_out, into=f"{path}.{into}.weight", at=at))
        at += n_out
    return [*(biases if bias else []), *matrices]
