import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.weights.plan import GAP_BYTES, WINDOW, cut, plan
from app.engine.weights.safetensors import BITS, TensorRef
from app.engine.weights.spec import WeightSpec


def ref(shape: tuple[int, ...], start: int, dtype: str = "F32", file: str = "m") -> TensorRef:
    nbytes = BITS[dtype] // 8
    for size in shape:
        nbytes *= size
    return TensorRef(file=file, dtype=dtype, shape=shape, start=start, stop=start + nbytes)


def spec(name: str, shape: tuple[int, ...], kind: str) -> WeightSpec:
    return WeightSpec(name=name, shape=shape, kind=kind)


@pytest.mark.parametrize("kind", ["matrix", "table"])
def test_a_matrix_is_cut_between_rows(kind: str) -> None:
    pieces = cut(spec("w", (10, 5), kind), ref((10, 5), 100), piece_bytes=70)
    assert [(piece.row, piece.rows, piece.start, piece.nbytes) for piece in pieces] == [
        (0, 3, 100, 60),
        (3, 3, 160, 60),
        (6, 3, 220, 60),
        (9, 1, 280, 20),
    ]


def test_a_conv1d_is_cut_at_multiples_of_32_rows() -> None:
    pieces = cut(spec("w", (100, 5), "conv1d"), ref((100, 5), 0, "F16"), piece_bytes=700)
    assert [(piece.row, piece.rows) for piece in pieces] == [(0, 64), (64, 36)]
    pieces = cut(spec("w", (70, 5), "conv1d"), ref((70, 5), 0, "F16"), piece_bytes=1)
    assert [(piece.row, piece.rows) for piece in pieces] == [(0, 32), (32, 32), (64, 6)]


def test_a_vector_is_one_row() -> None:
    pieces = cut(spec("b", (1000,), "vector"), ref((1000,), 8), piece_bytes=10)
    assert [(piece.row, piece.rows, piece.nbytes) for piece in pieces] == [(0, 1, 4000)]


def test_neighbours_share_a_request_whatever_their_order() -> None:
    specs = [spec(name, (8,), "vector") for name in "abcd"]
    tensors = {"a": ref((8,), 64), "b": ref((8,), 32), "c": ref((8,), 0), "d": ref((8,), 96 + GAP_BYTES)}
    (window,) = plan(tensors, specs)
    assert [(request.start, request.stop) for request in window.requests] == [(0, 128 + GAP_BYTES)]
    tensors["d"] = ref((8,), 97 + GAP_BYTES)
    (window,) = plan(tensors, specs)
    assert [(request.start, request.stop, request.name) for request in window.requests] == [
        (0, 96, "a"),
        (97 + GAP_BYTES, 129 + GAP_BYTES, "d"),
    ]


def test_files_are_kept_apart() -> None:
    specs = [spec(name, (8,), "vector") for name in "ab"]
    (window,) = plan({"a": ref((8,), 0), "b": ref((8,), 32, file="n")}, specs)
    assert [(request.file, request.start) for request in window.requests] == [("m", 0), ("n", 32)]


def test_nothing_wanted_is_nothing_asked() -> None:
    assert plan({}, []) == []


tensors_strategy = st.lists(
    st.tuples(
        st.sampled_from(["matrix", "conv1d", "vector", "table"]),
        st.integers(1, 90),
        st.integers(1, 9),
        st.sampled_from(["F32", "F16", "BF16"]),
        st.sampled_from(["m", "n"]),
        st.integers(0, 3) | st.just(GAP_BYTES + 1),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(described=tensors_strategy, order=st.randoms(use_true_random=False), piece_bytes=st.integers(1, 5000))
def test_every_byte_comes_once_in_order_and_in_bounds(
    described: list[tuple[str, int, int, str, str, int]], order: random.Random, piece_bytes: int
) -> None:
    tensors, specs, ends = {}, [], {"m": 0, "n": 0}
    for number, (kind, rows, columns, dtype, file, gap) in enumerate(described):
        shape = (rows,) if kind == "vector" else (rows, columns)
        tensors[str(number)] = ref(shape, ends[file] + gap, dtype, file)
        ends[file] = tensors[str(number)].stop
        specs.append(spec(str(number), shape, kind))
    order.shuffle(specs)
    windows = plan(tensors, specs, piece_bytes=piece_bytes)

    pieces = [piece for window in windows for piece in window.pieces]
    at = iter(pieces)
    for wanted in specs:
        place, row = tensors[wanted.name].start, 0
        while place < tensors[wanted.name].stop:
            piece = next(at)
            assert (piece.spec, piece.start, piece.row) == (wanted, place, row)
            assert piece.rows == 1 or piece.nbytes <= max(piece_bytes, 32 * piece.nbytes // piece.rows)
            place, row = piece.stop, row + piece.rows
        assert row == (1 if wanted.kind == "vector" else wanted.shape[0])
    assert next(at, None) is None

    for window in windows:
        assert {piece.request for piece in window.pieces} == set(window.requests)
        sizes = [piece.nbytes for piece in window.pieces]
        assert len(sizes) == 1 or sum(sizes) <= WINDOW * piece_bytes
        for piece in window.pieces:
            request = piece.request
            assert (request.file, request.start <= piece.start, piece.stop <= request.stop) == (piece.file, True, True)
        uses = [min(window.pieces.index(p) for p in window.pieces if p.request is r) for r in window.requests]
        assert uses == sorted(uses)
        for request in window.requests:
            inside = [piece for piece in window.pieces if piece.request is request]
            assert len(inside) == 1 or request.stop - request.start <= piece_bytes
            assert request.wanted == sum(piece.nbytes for piece in inside)
