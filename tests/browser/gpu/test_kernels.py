"""Each WGSL file against NumPy, over odd sizes. What lies past the end of an output must stay as it was."""

import itertools
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.gpu.kernels import wgsl_folder
from app.engine.gpu.select import ACTIVATION_NUMBERS
from app.engine.models.rope import Rope, angle_table
from app.engine.ops.eager import EagerOps, KVCache
from app.engine.ops.record import padded
from app.engine.ops.tap import attention_weights
from app.engine.weights.quantize import dequantize, quantize
from tests.browser.lab_page import Lab

pytestmark = pytest.mark.browser

Array = NDArray[np.float32]
UNTOUCHED = np.float32(7.25)
GUARD = 64
TOLERANCE = 2e-5
"""Relative to the largest value, for sums in another order in f32."""

PRECISIONS = ["f32", "f16", "q8", "q4"]
REDUCE: dict[str, tuple[tuple[str, ...], dict[str, int]]] = {
    "shared": (("reduce_shared",), {}),
    "subgroup": (("enable_subgroups", "reduce_subgroup"), {"SUBGROUP_SIZE": 4}),
    "any subgroup": (("enable_subgroups", "reduce_subgroup"), {"SUBGROUP_SIZE": 0}),
}


def rng(*seed: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(seed).encode()))


def pad(x: Array, width: int | None = None) -> Array:
    """Pad the last axis with zeros to `width`, or to a whole block."""
    width = padded(x.shape[-1]) if width is None else width
    return np.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, width - x.shape[-1])])


def blank(size: int) -> Array:
    return np.full(size + GUARD, UNTOUCHED, np.float32)


def compare(out: Array, expected: Array, *, tolerance: float = TOLERANCE) -> None:
    """`out` must begin with `expected` and be untouched behind it."""
    flat = expected.astype(np.float32).ravel()
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out[: flat.size], flat, rtol=0, atol=tolerance * max(1.0, float(np.abs(flat).max())))
    assert (out[flat.size :] == UNTOUCHED).all(), "the kernel wrote past the end of its output"


def stored(weight: Array, precision: str) -> tuple[dict[str, NDArray[Any]], Array]:
    """A matrix as the kernels bind it, and the values that it then has."""
    data = pad(weight)
    width = weight.shape[1]
    if precision == "f32":
        return {"weights": data}, weight
    if precision == "f16":
        half = data.astype(np.float16)
        return {"weights": half}, half.astype(np.float32)[:, :width]
    codes, scales = quantize(data, precision)
    return {"weights": codes, "scales": scales}, dequantize(codes, scales, precision)[:, :width]


def test_every_kernel_has_a_test() -> None:
    source = Path(__file__).read_text()
    for path in wgsl_folder().glob("*.wgsl"):
        if path.stem.startswith("sample_"):
            continue  # they only make sense together: see test_sampler.py
        if path.stem == "repack":
            continue  # see test_blocks.py
        assert f'"{path.stem}"' in source, f"{path.name} is not tested"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("n_vocab", "n_embd", "parts", "positions"), [(11, 5, 1, True), (97, 48, 1, False), (50, 100, 3, True)]
)
def test_embed(lab: Lab, precision: str, n_vocab: int, n_embd: int, parts: int, positions: bool) -> None:
    random = rng(n_vocab, n_embd)
    table, wte = stored(random.normal(size=(n_vocab, n_embd)).astype(np.float32), precision)
    wpe = random.normal(size=(20, n_embd)).astype(np.float32)
    ids = random.integers(n_vocab, size=7).astype(np.uint32)
    ids[0], ids[1] = 0, n_vocab - 1
    k = padded(n_embd)
    out = blank(7 * k)
    edges = np.linspace(0, n_vocab, parts + 1).astype(int)
    for first, stop in itertools.pairwise(edges):
        constants = {"WG": 64, "K": k, "K_TRUE": n_embd, "ROW_BASE": int(first), "PART": int(stop - first)}
        constants["POSITIONS"] = positions
        part = {name: values[first:stop] for name, values in table.items()}
        bindings = {"ids": ids, "out": out, "wpe": pad(wpe), **part}
        pieces = ("step", f"weights_{precision}")
        (out,) = lab.run_kernel("embed", *pieces, constants=constants, bindings=bindings, step=(3, 7), grid=(1, 7))
    compare(out, pad(wte[ids] + wpe[3:10] if positions else wte[ids]))


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize(("n", "width", "last"), [(1, 7, False), (5, 48, False), (3, 300, False), (6, 33, True)])
def test_layer_norm(lab: Lab, reduce: str, n: int, width: int, last: bool) -> None:
    random = rng(n, width)
    x = (random.normal(size=(n, width)) * 3 + 50).astype(np.float32)  # far from zero: a naive variance fails
    weight, bias = random.normal(size=(2, width)).astype(np.float32)
    pieces, extra = REDUCE[reduce]
    constants = {
        "WG": 64, "LANES": 64, "K": padded(width), "K_TRUE": width,
        "NORM_STRIDE": padded(width, 64), "EPSILON": 1e-5, "LAST": last, **extra,
    }  # fmt: skip
    norm = np.stack([pad(weight, padded(width, 64)), pad(bias, padded(width, 64))])
    rows = 1 if last else n
    bindings = {"x": pad(x), "out": blank(rows * padded(width)), "norm": norm}
    (out,) = lab.run_kernel(
        "layer_norm", *pieces, "step", constants=constants, bindings=bindings, step=(0, n), grid=(1, rows)
    )
    expected = EagerOps().layer_norm(x[-1:] if last else x, weight, bias, epsilon=1e-5)
    compare(out, pad(expected), tolerance=1e-4)


@pytest.mark.parametrize("reduce", REDUCE)
@pytest.mark.parametrize(("n", "width", "last"), [(1, 7, False), (3, 300, False), (6, 33, True)])
def test_rms_norm(lab: Lab, reduce: str, n: int, width: int, last: bool) -> None:
    random = rng(n, width)
    x = (random.normal(size=(n, width)) * 3 + 5).astype(np.float32)
    weight = random.normal(size=width).astype(np.float32)
    pieces, extra = REDUCE[reduce]
    constants = {"WG": 64, "LANES": 64, "K": padded(width), "K_TRUE": width, "EPSILON": 1e-5, "LAST": last, **extra}
    rows = 1 if last else n
    bindings = {"x": pad(x), "out": blank(rows * padded(width)), "norm": pad(weight, padded(width, 64))}
    (out,) = lab.run_kernel(
        "rms_norm", *pieces, "step", constants=constants, bindings=bindings, step=(0, n), grid=(1, rows)
    )
    compare(out, pad(EagerOps().rms_norm(x[-1:] if last else x, weight, epsilon=1e-5)))


def linear_constants(n_in: int, n_out: int, **changes: Any) -> dict[str, Any]:
    return {
        "N_HEAD": 1, "N_KV_HEAD": 1, "D": 4, "D_PAD": 4, "N_CTX": 8,
        "K": padded(n_in), "N": n_out, "OUT_STRIDE": padded(n_out), "BIAS": False, "RESIDUAL": False,
        "ACTIVATION": 0, "ROW_BASE": 0, "ROWS": padded(n_out), "PART": n_out,
    } | changes  # fmt: skip


def matvec_constants(n_in: int, reduce: dict[str, int], **changes: Any) -> dict[str, Any]:
    return {
        "WG": 64, "LANES": 32, "K_TRUE": n_in, "NORM_STRIDE": padded(n_in, 64), "EPSILON": 1e-5, "LAST": False,
        "PROLOGUE": 0, "STAGED": 1, "SPLIT": 32, "EARLY": 0, "REPEAT": 1, **reduce,
    } | changes  # fmt: skip


NOTHING = np.zeros(4, np.float32)
LINEAR_PIECES = ("step", "activation", "epilogue")
PROLOGUES = {None: 0, "layer_norm": 1, "rms_norm": 3}


@pytest.mark.parametrize("kind", [None, "gelu_new", "gelu", "relu", "silu"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("n_in", "n_out"), [(5, 3), (48, 37), (300, 129)])
def test_matmul_with_its_epilogue(lab: Lab, precision: str, n_in: int, n_out: int, kind: str | None) -> None:
    n = 9 if n_in != 300 else 70
    random = rng(n_in, n_out, kind)
    x = random.normal(size=(n, n_in)).astype(np.float32)
    weights, w = stored((random.normal(size=(n_out, n_in)) / np.sqrt(n_in)).astype(np.float32), precision)
    bias, residual = random.normal(size=n_out).astype(np.float32), random.normal(size=(n, n_out)).astype(np.float32)
    changes = {"BIAS": True, "RESIDUAL": True, "ACTIVATION": ACTIVATION_NUMBERS[kind], "TILE": 32, "SIDE": 8}
    bindings = {
        "x": pad(x), "out": blank(n * padded(n_out)), "bias": pad(bias), "residual": pad(residual), **weights,
    }  # fmt: skip
    grid = (-(-padded(n_out) // 32), -(-n // 32))
    pieces = (f"weights_{precision}", *LINEAR_PIECES)
    constants = linear_constants(n_in, n_out, **changes)
    (out,) = lab.run_kernel("matmul", *pieces, constants=constants, bindings=bindings, step=(0, n), grid=grid)
    sums = x @ w.T + bias
    expected = (EagerOps().activation(sums, kind=kind) if kind else sums) + residual
    compare(out, pad(expected))


@pytest.mark.parametrize("reduce", REDUCE)
# The second prologue knows nothing of precisions: f32 and q4 have the shortest and the longest chunks.
@pytest.mark.parametrize(
    ("norm", "precision"),
    [*itertools.product((None, "layer_norm"), PRECISIONS), ("rms_norm", "f32"), ("rms_norm", "q4")],
)
@pytest.mark.parametrize(("n_in", "n_out"), [(5, 3), (48, 37), (1000, 70)])
def test_matvec_with_norm_and_residual(
    lab: Lab, precision: str, n_in: int, n_out: int, norm: str | None, reduce: str
) -> None:
    random = rng(n_in, n_out)
    x = (random.normal(size=(1, n_in)) + 5).astype(np.float32)
    weights, w = stored((random.normal(size=(n_out, n_in)) / np.sqrt(n_in)).astype(np.float32), precision)
    bias, residual = random.normal(size=(2, n_out)).astype(np.float32)
    scale, shift = random.normal(size=(2, n_in)).astype(np.float32)
    pieces, extra = REDUCE[reduce]
    stride = padded(n_in, 64)
    constants = linear_constants(n_in, n_out, BIAS=True, RESIDUAL=True, ACTIVATION=1) | matvec_constants(
        n_in, extra, PROLOGUE=PROLOGUES[norm], STAGED=padded(n_in) // 4 if norm else 1, EARLY=3 if norm else 0, REPEAT=3
    )
    bindings = {
        "x": pad(x), "out": blank(padded(n_out)), "bias": pad(bias), "residual": pad(residual),
        **weights, "norm": np.stack([pad(scale, stride), pad(shift, stride)]),
    }  # fmt: skip
    all_pieces = (*pieces, f"weights_{precision}", *LINEAR_PIECES)
    grid = (-(-padded(n_out) // 6), 1)
    (out,) = lab.run_kernel("matvec", *all_pieces, constants=constants, bindings=bindings, step=(0, 1), grid=grid)
    normed = x
    if norm == "layer_norm":
        normed = EagerOps().layer_norm(x, scale, shift, epsilon=1e-5)
    elif norm == "rms_norm":
        normed = EagerOps().rms_norm(x, scale, epsilon=1e-5)
    expected = EagerOps().activation(normed @ w.T + bias, kind="gelu_new") + residual
    compare(out, pad(expected), tolerance=1e-4)


def cache_with(random: np.random.Generator, n_ctx: int, n_head: int, d: int, filled: int) -> tuple[Array, Array]:
    """A cache [2, n_ctx, n_head, d] as NumPy has it, and as the kernels do: [2, n_head, n_ctx, d padded to 4]."""
    data = np.zeros((2, n_ctx, n_head, d), np.float32)
    data[:, :filled] = random.normal(size=(2, filled, n_head, d))
    return data, np.ascontiguousarray(pad(np.swapaxes(data, 1, 2), padded(d, 4)))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kernel", ["matvec", "matmul"])
@pytest.mark.parametrize(("n_in", "n_out"), [(5, 3), (100, 70)])
def test_gates_and_what_they_let_through(lab: Lab, kernel: str, precision: str, n_in: int, n_out: int) -> None:
    n = 1 if kernel == "matvec" else 9
    random = rng(n_in, n_out, n)
    x = random.normal(size=(n, n_in)).astype(np.float32)
    weights, w = stored((random.normal(size=(2 * n_out, n_in)) / np.sqrt(n_in)).astype(np.float32), precision)
    bias, scale = random.normal(size=2 * n_out).astype(np.float32), random.normal(size=n_in).astype(np.float32)
    changes = {"N": n_out, "OUT_STRIDE": padded(n_out), "ROWS": padded(n_out), "PART": 2 * n_out}
    constants = linear_constants(n_in, n_out, BIAS=True, ACTIVATION=ACTIVATION_NUMBERS["silu"], **changes)
    bindings = {"x": pad(x), "out": blank(n * padded(n_out)), "bias": pad(bias), **weights}
    pieces: tuple[str, ...] = (f"weights_{precision}", "step", "activation", "epilogue_gated")
    grid = (-(-2 * padded(n_out) // 32), 1)
    if kernel == "matvec":
        pieces = (*pieces, "reduce_shared")
        constants |= matvec_constants(n_in, {}, PROLOGUE=3, STAGED=padded(n_in) // 4, EARLY=2, REPEAT=2)
        bindings["norm"] = pad(scale, padded(n_in, 64))
        grid = (-(-padded(n_out) // 4), 1)
    else:
        constants |= {"TILE": 32, "SIDE": 8}
    (out,) = lab.run_kernel(kernel, *pieces, constants=constants, bindings=bindings, step=(0, n), grid=grid)
    normed = EagerOps().rms_norm(x, scale, epsilon=1e-5) if kernel == "matvec" else x
    expected = EagerOps().gated(normed @ w.T + bias, kind="silu")
    compare(out, pad(expected), tolerance=1e-4)
    stride = padded(2 * n_out)
    (out,) = lab.run_kernel(
        "gated", "activation",
        constants={
            "WG": 64, "STRIDE": padded(n_out), "X_STRIDE": stride, "N": n_out, "ACTIVATION": ACTIVATION_NUMBERS["silu"],
        },
        bindings={"x": pad(normed @ w.T + bias), "out": blank(n * padded(n_out))}, grid=(-(-padded(n_out) // 64), n),
    )  # fmt: skip
    compare(out, pad(expected))


# Queries' and keys' heads, features; features that turn, neighbours or halves, and whether q, k and v of a head lie
# together.
HEADS = [
    (3, 3, 16, 0, False, False),
    (2, 2, 7, 0, False, False),
    (3, 3, 5, 0, False, True),
    (4, 2, 20, 20, False, False),
    (3, 1, 10, 10, True, False),
    (3, 3, 14, 4, False, True),
    (1, 1, 80, 80, False, False),
]
Heads = tuple[int, int, int, int, bool, bool]


def head_constants(heads: Heads, n_ctx: int) -> dict[str, Any]:
    n_head, n_kv_head, d, rotary, rope_interleaved, qkv_interleaved = heads
    return {
        "N_HEAD": n_head, "N_KV_HEAD": n_kv_head, "D": d, "D_PAD": padded(d, 4), "N_CTX": n_ctx, "ROTARY": rotary,
        "ROPE_INTERLEAVED": rope_interleaved, "QKV_INTERLEAVED": qkv_interleaved,
    }  # fmt: skip


def expected_heads(
    qkv: Array, heads: Heads, position: int, norms: tuple[Array, Array] | None = None
) -> tuple[Array, Array, Array, Array]:
    """q, k and v as NumPy has them, and the table of angles."""
    n_head, n_kv_head, _, rotary, rope_interleaved, qkv_interleaved = heads
    ops = EagerOps(position)
    q, k, v = ops.split_heads(qkv, n_head=n_head, n_kv_head=n_kv_head, interleaved=qkv_interleaved)
    if norms is not None:
        q, k = (ops.head_norm(x, weight, epsilon=1e-5) for x, weight in zip((q, k), norms, strict=True))
    if not rotary:
        return q, k, v, NOTHING
    rope = Rope(width=rotary, theta=100.0, interleaved=rope_interleaved)
    return ops.rotate(q, rope=rope), ops.rotate(k, rope=rope), v, angle_table(rope, 0, 10)


@pytest.mark.parametrize("kernel", ["matvec", "matmul"])
@pytest.mark.parametrize("heads", HEADS, ids=str)
def test_queries_keys_and_values_are_stored_where_attention_reads_them(lab: Lab, kernel: str, heads: Heads) -> None:
    n, position, n_ctx, n_embd = (1 if kernel == "matvec" else 5), 3, 10, 40
    n_head, n_kv_head, d, rotary, *_ = heads
    random = rng(kernel, heads)
    rows, d_pad = (n_head + 2 * n_kv_head) * d, padded(d, 4)
    x = random.normal(size=(n, n_embd)).astype(np.float32)
    w = (random.normal(size=(rows, n_embd)) / np.sqrt(n_embd)).astype(np.float32)
    bias = random.normal(size=rows).astype(np.float32)
    data, kv = cache_with(random, n_ctx, n_kv_head, d, n_ctx)
    q, k, v, angles = expected_heads(x @ w.T + bias, heads, position)
    items = rows // 2 if rotary else rows
    changes = head_constants(heads, n_ctx) | {"BIAS": True, "ROWS": items, "PART": rows}
    constants = linear_constants(n_embd, rows, **changes)
    bindings = {
        "x": pad(x), "out": np.zeros(n * n_head * d_pad, np.float32), "bias": pad(bias), "kv": kv, "angles": angles,
        "weights": pad(w),
    }  # fmt: skip
    pieces: tuple[str, ...] = ("weights_f32", "step", "heads", "epilogue_heads")
    grid: tuple[int, int] = (-(-rows // 32), 1)
    if kernel == "matvec":
        pieces = (*pieces, "reduce_shared")
        constants |= matvec_constants(n_embd, {})
        bindings["norm"] = NOTHING
        grid = (-(-items // 2), 1)
    else:
        constants |= {"TILE": 32, "SIDE": 16}
    out, stored_kv = lab.run_kernel(
        kernel, *pieces, constants=constants, bindings=bindings, step=(position, n), grid=grid, outputs=("out", "kv")
    )
    data[0, position : position + n], data[1, position : position + n] = k, v
    np.testing.assert_allclose(out, pad(q, d_pad).ravel(), atol=1e-5)
    np.testing.assert_allclose(stored_kv, pad(np.swapaxes(data, 1, 2), d_pad), atol=1e-5)


@pytest.mark.parametrize("reduce", ["shared", "subgroup"])
@pytest.mark.parametrize(
    ("heads", "normed"),
    # no family norms heads that it does not turn
    [*((heads, False) for heads in HEADS), *((heads, True) for heads in HEADS if heads[3])],
    ids=str,
)
def test_heads(lab: Lab, heads: Heads, normed: bool, reduce: str) -> None:
    """All at once, and by the kernels of unfused plans."""
    n, position, n_ctx = 3, 2, 10
    n_head, n_kv_head, d, rotary, *_ = heads
    random = rng(heads, normed)
    width, d_pad = (n_head + 2 * n_kv_head) * d, padded(d, 4)
    qkv = random.normal(size=(n, width)).astype(np.float32)
    norms = random.normal(size=(2, d)).astype(np.float32)
    data, kv = cache_with(random, n_ctx, n_kv_head, d, n_ctx)
    q, k, v, angles = expected_heads(qkv, heads, position, (norms[0], norms[1]) if normed else None)
    pieces, extra = REDUCE[reduce]
    sums: dict[str, Any] = {"WG": 32, "LANES": 32, "EPSILON": 1e-5, **extra}
    constants = head_constants(heads, n_ctx) | sums | {"STRIDE": padded(width), "NORMED": normed, "NORM_STRIDE": 128}
    bindings = {
        "qkv": pad(qkv), "out": np.zeros((n, n_head, d_pad), np.float32), "kv": kv, "norm": pad(norms, 128),
        "angles": angles,
    }  # fmt: skip
    out, stored_kv = lab.run_kernel(
        "heads", *pieces, "step", "heads",
        constants=constants, bindings=bindings, step=(position, n), grid=(n_head + 2 * n_kv_head, n),
        outputs=("out", "kv"),
    )  # fmt: skip
    data[0, position : position + n], data[1, position : position + n] = k, v
    np.testing.assert_allclose(out, pad(q, d_pad), atol=1e-5)
    np.testing.assert_allclose(stored_kv, pad(np.swapaxes(data, 1, 2), d_pad), atol=1e-5)

    some = {key: constants[key] for key in ("N_HEAD", "N_KV_HEAD", "D", "D_PAD", "QKV_INTERLEAVED")} | {"WG": 64}
    blanks = {
        name: np.zeros((n, count, d_pad), np.float32)
        for name, count in (("q", n_head), ("k", n_kv_head), ("v", n_kv_head))
    }
    split = lab.run_kernel(
        "split_heads", constants=some | {"STRIDE": padded(width)}, bindings={"qkv": pad(qkv), **blanks},
        grid=(-(-width // 64), n), outputs=("q", "k", "v"),
    )  # fmt: skip
    for index, (wanted, count) in enumerate(((q, n_head), (k, n_kv_head))):
        result = split[index]
        if normed:
            (result,) = lab.run_kernel(
                "head_norm", *pieces,
                constants=sums | {"HEADS": count, "D": d, "D_PAD": d_pad},
                bindings={"x": result, "out": np.zeros_like(result), "norm": norms[index]}, grid=(count, n),
            )  # fmt: skip
        if rotary:
            (result,) = lab.run_kernel(
                "rotate", "step", "heads",
                constants=head_constants(heads, n_ctx) | {"HEADS": count, "WG": 64},
                bindings={"x": result, "out": np.zeros_like(result), "angles": angles},
                step=(position, n), grid=(-(-count * d // 2 // 64), n),
            )  # fmt: skip
        np.testing.assert_allclose(result, pad(wanted, d_pad), atol=1e-5)


def attention_case(
    n: int, position: int, n_head: int, d: int, *, group: int = 1, window: int = 0
) -> tuple[dict[str, Any], dict[str, NDArray[Any]], Array]:
    """`group`: query heads that share a key's."""
    random = rng(n, position, n_head, d)
    n_ctx = position + n + 3
    data, kv = cache_with(random, n_ctx, n_head // group, d, position + n)
    q = random.normal(size=(n, n_head, d)).astype(np.float32) * 2
    q_stored = np.full((n, n_head, padded(d, 4)), np.nan, np.float32)  # a buffer's padding may hold anything
    q_stored[..., :d] = q
    scale = 1 / np.sqrt(d)
    expected = EagerOps(position).attend(q, KVCache(data, position + n), scale=scale, window=window)
    constants = {
        "N_HEAD": n_head, "N_KV_HEAD": n_head // group, "D": d, "D_PAD": padded(d, 4), "N_CTX": n_ctx,
        "SCALE": float(scale), "WINDOW": window,
    }  # fmt: skip
    return constants, {"q": q_stored, "kv": kv}, expected


@pytest.mark.parametrize(
    ("n", "position", "n_head", "d", "group", "window"),
    [
        (1, 0, 1, 16, 1, 0),
        (7, 0, 2, 6, 2, 0),
        (40, 0, 3, 64, 3, 0),
        (5, 61, 2, 80, 1, 0),
        (17, 16, 1, 128, 1, 0),
        (40, 70, 2, 6, 2, 33),
        (19, 100, 2, 16, 1, 5),
        (3, 2, 1, 16, 1, 99),
    ],
)
def test_attend_tile(lab: Lab, n: int, position: int, n_head: int, d: int, group: int, window: int) -> None:
    constants, bindings, expected = attention_case(n, position, n_head, d, group=group, window=window)
    stride = padded(n_head * d)
    (out,) = lab.run_kernel(
        "attend_tile", "step",
        constants=constants | {"STRIDE": stride},
        bindings=bindings | {"out": blank(n * stride)},
        step=(position, n), grid=(n_head, -(-n // 16)),
    )  # fmt: skip
    compare(out, pad(expected))


@pytest.mark.parametrize(
    ("n", "position", "heads", "kv_heads", "d", "window", "cell"),
    [(1, 0, 1, 1, 16, 0, 1), (7, 0, 2, 2, 6, 0, 3), (5, 61, 4, 2, 80, 0, 1), (3, 70, 6, 2, 10, 9, 7)],
)
def test_attention_map(
    lab: Lab, n: int, position: int, heads: int, kv_heads: int, d: int, window: int, cell: int
) -> None:
    random = rng(n, position, heads, d)
    wide, n_ctx, length = padded(d, 4), position + n + 3, position + n
    q = np.full((n, heads, wide), np.nan, np.float32)  # the padding may hold anything
    q[..., :d] = random.normal(size=(n, heads, d))
    kv = np.zeros((2, kv_heads, n_ctx, wide), np.float32)
    kv[..., :length, :d] = random.normal(size=(2, kv_heads, length, d))
    chosen, first = [heads - 1, 0], n // 2  # some heads, in another order, from some query on
    keys = np.moveaxis(kv[0, :, :length, :d], 0, 1)
    weights = attention_weights(q[..., :d], keys, position=position, scale=0.3, window=window)[chosen, first:]
    cells = -(-length // cell)
    expected = np.add.reduceat(weights, np.arange(0, length, cell), axis=2)
    constants = {
        "WG": 16, "N_HEAD": heads, "N_KV_HEAD": kv_heads, "D": d, "D_PAD": wide, "N_CTX": n_ctx,
        "SCALE": 0.3, "WINDOW": window,
    }  # fmt: skip
    view = np.array([first, n - first, cell, cells, *chosen], np.uint32)
    (out,) = lab.run_kernel(
        "attention_map", "step",
        constants=constants, bindings={"q": q, "kv": kv, "view": view, "out": blank(expected.size)},
        step=(position, n), grid=(2, n - first),
    )  # fmt: skip
    compare(out, expected)


@pytest.mark.parametrize(("split", "threads"), [(32, 32), (64, 256), (64, 64)])
@pytest.mark.parametrize(
    ("position", "n_head", "d", "group", "window"),
    [
        (0, 1, 16, 1, 0),
        (5, 3, 6, 3, 0),
        (63, 2, 64, 1, 0),
        (64, 2, 64, 2, 0),
        (150, 1, 80, 1, 0),
        (200, 2, 16, 1, 70),
        (200, 2, 16, 2, 1),
        (20, 2, 16, 1, 64),
    ],
)
def test_attend_split_and_combine(
    lab: Lab, position: int, n_head: int, d: int, group: int, window: int, split: int, threads: int
) -> None:
    constants, bindings, expected = attention_case(1, position, n_head, d, group=group, window=window)
    splits = -(-(position + 1) // split)
    parts = blank(splits * n_head * (padded(d, 4) + 4))
    (parts,) = lab.run_kernel(
        "attend_split", "step",
        constants=constants | {"SPLIT": split, "WG": threads}, bindings=bindings | {"out": parts},
        step=(position, 1), grid=(n_head, splits),
    )  # fmt: skip
    assert (parts[-GUARD:] == UNTOUCHED).all()
    stride = padded(n_head * d)
    combine = {key: constants[key] for key in ("N_HEAD", "D", "D_PAD")} | {"WG": 64, "STRIDE": stride, "SPLIT": split}
    (out,) = lab.run_kernel(
        "attend_combine", "step",
        constants=combine, bindings={"x": parts, "out": blank(stride)},
        step=(position, 1), grid=(-(-stride // 64), 1),
    )  # fmt: skip
    compare(out, pad(expected))
    if d % 4 == 0:  # the fused form: the next matvec, here by the identity, combines on the way in
        width = n_head * d
        linear = linear_constants(width, width) | matvec_constants(
            width, {}, PROLOGUE=2, STAGED=stride // 4, SPLIT=split, EARLY=2
        )
        fused = linear | {key: constants[key] for key in ("N_HEAD", "N_KV_HEAD", "D", "D_PAD", "N_CTX")}
        pieces = ("weights_f32", *LINEAR_PIECES, "reduce_shared")
        bound = {
            "x": parts, "out": blank(stride), "bias": NOTHING, "residual": NOTHING, "norm": NOTHING,
            "weights": pad(np.eye(width, dtype=np.float32)),
        }  # fmt: skip
        grid = (-(-stride // 2), 1)
        (out,) = lab.run_kernel("matvec", *pieces, constants=fused, bindings=bound, step=(position, 1), grid=grid)
        compare(out, pad(expected))


@pytest.mark.parametrize(("n", "width"), [(1, 3), (4, 100)])
def test_add_and_last(lab: Lab, n: int, width: int) -> None:
    random = rng(n, width)
    a, b = random.normal(size=(2, n, width)).astype(np.float32)
    stride = padded(width)
    constants = {"WG": 64, "STRIDE": stride}
    grid = (-(-stride // 64), n)
    bindings = {"a": pad(a), "b": pad(b), "out": blank(n * stride)}
    (out,) = lab.run_kernel("add", constants=constants, bindings=bindings, grid=grid)
    compare(out, pad(a + b))
    bindings = {"x": pad(a), "out": blank(stride)}
    (out,) = lab.run_kernel("last", "step", constants=constants, bindings=bindings, step=(0, n), grid=(grid[0], 1))
    compare(out, pad(a[-1:]))


@pytest.mark.parametrize("kind", ["gelu_new", "gelu", "relu", "silu"])
def test_activation(lab: Lab, kind: str) -> None:
    values = [-1e4, -100.0, -88.5, -20.0, -5.0, -1.0, -1e-3, 0.0, 1e-3, 0.5, 3.0, 20.0, 88.5, 100.0, 1e4]
    x = np.array([values], np.float32)
    stride = padded(x.shape[1])
    constants = {"WG": 64, "STRIDE": stride, "ACTIVATION": ACTIVATION_NUMBERS[kind]}
    bindings = {"x": pad(x), "out": blank(stride)}
    (out,) = lab.run_kernel("activation", "activation", constants=constants, bindings=bindings, grid=(1, 1))
    expected = pad(EagerOps().activation(x, kind=kind))
    assert (out[stride:] == UNTOUCHED).all()
    np.testing.assert_allclose(out[:stride], expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("n", "n_head", "d"), [(1, 2, 6), (4, 3, 16)])
def test_split_heads_and_append_cache(lab: Lab, n: int, n_head: int, d: int) -> None:
    random = rng(n, n_head, d)
    n_embd, d_pad, position, n_ctx = n_head * d, padded(d, 4), 2, 9
    qkv = random.normal(size=(n, 3 * n_embd)).astype(np.float32)
    heads = {"N_KV_HEAD": n_head, "D": d, "D_PAD": d_pad, "WG": 64, "QKV_INTERLEAVED": False}
    blanks = {name: np.zeros((n, n_head, d_pad), np.float32) for name in "qkv"}
    q, k, v = lab.run_kernel(
        "split_heads",
        constants=heads | {"N_HEAD": n_head, "STRIDE": padded(3 * n_embd)},
        bindings={"qkv": pad(qkv), **blanks}, grid=(-(-3 * n_embd // 64), n), outputs=("q", "k", "v"),
    )  # fmt: skip
    expected = EagerOps().split_heads(qkv, n_head=n_head)
    for result, want in zip((q, k, v), expected, strict=True):
        np.testing.assert_array_equal(result, pad(want, d_pad))
    data, kv = cache_with(random, n_ctx, n_head, d, n_ctx)
    (kv,) = lab.run_kernel(
        "append_cache", "step",
        constants=heads | {"N_CTX": n_ctx}, bindings={"k": k, "v": v, "kv": kv},
        step=(position, n), grid=(-(-2 * n_embd // 64), n), outputs=("kv",),
    )  # fmt: skip
    data[0, position : position + n], data[1, position : position + n] = expected[1:]
    np.testing.assert_array_equal(kv, pad(np.swapaxes(data, 1, 2), d_pad))


def raw_rows(values: Array, dtype: str) -> tuple[NDArray[Any], Array]:
    """Rows as a checkpoint stores them, padded to whole words, and the values that they stand for."""
    if dtype == "F32":
        return values.ravel(), values
    if dtype == "F16":
        halves = values.astype(np.float16)
        raw, exact = halves.view(np.uint16).ravel(), halves.astype(np.float32)
    else:
        raw = (values.view(np.uint32) >> 16).astype(np.uint16)
        exact, raw = (raw.astype(np.uint32) << 16).view(np.float32), raw.ravel()
    return np.pad(raw, (0, raw.size % 2)).view(np.uint32), exact


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize(("rows", "columns"), [(37, 5), (64, 33), (70, 96)])
def test_convert(lab: Lab, rows: int, columns: int, precision: str, dtype: str, transposed: bool) -> None:
    """A whole matrix arrives in two pieces, for two parts of the target."""
    random = rng(rows, columns)
    source = random.normal(size=(rows, columns)).astype(np.float32)
    source[0, 0] = 1e6 if dtype != "F16" else 6e4  # past f16: clamped, not infinite
    n, k_true = (columns, rows) if transposed else (rows, columns)
    k = padded(k_true)
    per_word = 1 if precision == "f32" else 2
    _, exact = raw_rows(source, dtype)
    edges = [0, n // 2, n]
    cut = 32
    for first, stop in itertools.pairwise(edges):
        part = stop - first
        target: NDArray[Any] = np.full(part * k // per_word + GUARD, 0x12345678, np.uint32)
        for row, end in ((0, cut), (cut, rows)):
            raw, _ = raw_rows(source[row:end], dtype)
            if transposed:
                k_count, lines = (k if end == rows else end) - row, part
            else:
                k_count, lines = k, min(end, stop) - max(row, first)
                if lines <= 0:
                    continue
            words = lines * k_count // per_word
            (target,) = lab.run_kernel(
                "convert", "source",
                constants={
                    "WG": 64, "SOURCE": ["F32", "F16", "BF16"].index(dtype), "TRANSPOSED": transposed,
                    "PER_WORD": per_word,
                },
                bindings={"source": raw, "destination": target},
                uniforms={"piece": [row, end - row, columns, first, part, k, k_count, 0]},
                grid=(-(-words // 64), 1),
                outputs=("destination",),
            )  # fmt: skip
        assert (target[-GUARD:] == 0x12345678).all()
        values = target[:-GUARD].view(np.float32 if precision == "f32" else np.float16).astype(np.float32)
        expected = pad((exact.T if transposed else exact)[first:stop])
        if precision == "f16":
            expected = np.clip(expected, -65504, 65504)
        np.testing.assert_allclose(values.reshape(part, k), expected, rtol=0 if precision == "f32" else 1e-3, atol=6e-8)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("precision", ["q8", "q4"])
@pytest.mark.parametrize(("rows", "columns"), [(37, 5), (70, 96)])
def test_quantize(lab: Lab, rows: int, columns: int, precision: str, dtype: str, transposed: bool) -> None:
    """As test_convert; codes may differ by one where a quotient lies between two."""
    random = rng(rows, columns, precision)
    source = random.normal(size=(rows, columns)).astype(np.float32)
    source[:, 0] = 0.0
    n, k_true = (columns, rows) if transposed else (rows, columns)
    k, bits, cut = padded(k_true), int(precision[1]), 32
    _, exact = raw_rows(source, dtype)
    edges = [0, n // 2, n]
    for first, stop in itertools.pairwise(edges):
        part = stop - first
        codes: NDArray[Any] = np.full(part * k * bits // 32 + GUARD, 0x12345678, np.uint32)
        scales: NDArray[Any] = np.full(part * k // 32 + GUARD, 0x12345678, np.uint32)
        for row, end in ((0, cut), (cut, rows)):
            raw, _ = raw_rows(source[row:end], dtype)
            if transposed:
                k_count, lines = (k if end == rows else end) - row, part
            else:
                k_count, lines = k, min(end, stop) - max(row, first)
                if lines <= 0:
                    continue
            codes, scales = lab.run_kernel(
                "quantize", "source",
                constants={
                    "WG": 64, "SOURCE": ["F32", "F16", "BF16"].index(dtype), "TRANSPOSED": transposed, "BITS": bits,
                },
                bindings={"source": raw, "destination": codes, "scales": scales},
                uniforms={"piece": [row, end - row, columns, first, part, k, k_count, 0]},
                grid=(-(-(lines * k_count // 32) // 64), 1),
                outputs=("destination", "scales"),
            )  # fmt: skip
        assert (codes[-GUARD:] == 0x12345678).all()
        assert (scales[-GUARD:] == 0x12345678).all()
        wanted = pad((exact.T if transposed else exact)[first:stop])
        shape = (part, -1)
        result = dequantize(codes[:-GUARD].reshape(shape), scales[:-GUARD].reshape(shape), precision)
        step = np.abs(wanted).max() / (127 if precision == "q8" else 7.5)
        np.testing.assert_allclose(result, wanted, atol=0.52 * step + 2e-3)
        reference = dequantize(*quantize(wanted, precision), precision)
        assert (np.abs(result - reference) < 1e-3).mean() > 0.99
