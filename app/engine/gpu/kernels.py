"""Kernels as values: a WGSL file, the shared pieces before it, and its constants.

Constants are prepended as `const` declarations rather than given as `override`s, because the sizes of private arrays
must be constant expressions. Bindings are read off the source, so that a plan binds by name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import app

_BINDING = re.compile(
    r"@group\(0\)\s*@binding\((?P<number>\d+)\)\s*var<(?P<space>storage|uniform)(?:,\s*(?P<access>read_write|read))?>"
    r"\s*(?P<name>\w+)"
)

Constant = bool | int | float


@dataclass(frozen=True)
class Binding:
    """A declared resource: its number and its `GPUBufferBindingType`."""

    number: int
    type: str


@dataclass(frozen=True)
class Kernel:
    """One pipeline. Equal kernels share it, so that a model needs about ten."""

    name: str
    """wgsl/NAME.wgsl"""
    pieces: tuple[str, ...] = ()
    """wgsl/lib/PIECE.wgsl, in order; "enable_subgroups" must come first."""
    constants: tuple[tuple[str, Constant], ...] = ()

    def source(self) -> str:
        """The whole module."""
        return _source(self)

    def bindings(self) -> Mapping[str, Binding]:
        """Every buffer that the kernel declares, by name."""
        return _bindings(self)


# A plan asks for both several times a dispatch, and Python is slow in a browser.
@cache
def _source(kernel: Kernel) -> str:
    enable = [read_wgsl(f"lib/{piece}") for piece in kernel.pieces if piece.startswith("enable_")]
    constants = [_declare(name, value) for name, value in kernel.constants]
    pieces = [read_wgsl(f"lib/{piece}") for piece in kernel.pieces if not piece.startswith("enable_")]
    return "\n".join([*enable, *constants, *pieces, read_wgsl(kernel.name)])


@cache
def _bindings(kernel: Kernel) -> Mapping[str, Binding]:
    found = {}
    for match in _BINDING.finditer(_source(kernel)):
        read_only = match["space"] == "storage" and match["access"] != "read_write"
        kind = "uniform" if match["space"] == "uniform" else "read-only-storage" if read_only else "storage"
        found[match["name"]] = Binding(int(match["number"]), kind)
    return found


def kernel(name: str, *pieces: str, **constants: Constant) -> Kernel:
    """Build a Kernel; constants in upper case, as the file names them."""
    return Kernel(name, pieces, tuple(constants.items()))


def _declare(name: str, value: Constant) -> str:
    if isinstance(value, bool):
        return f"const {name}: bool = {str(value).lower()};"
    if isinstance(value, int):
        return f"const {name}: u32 = {value}u;"
    return f"const {name}: f32 = {value!r};"


@cache
def read_wgsl(name: str) -> str:
    """The text of wgsl/NAME.wgsl, from the package or, in a checkout, from the top level."""
    return (wgsl_folder() / f"{name}.wgsl").read_text(encoding="utf-8")


def wgsl_folder() -> Path:
    """Where the WGSL files are: inside an installed package, beside it in a checkout."""
    package = Path(app.__file__).parent
    inside = package / "wgsl"
    return inside if inside.is_dir() else package.parent / "wgsl"
