import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.engine.errors import ModelFileError, SafetensorsError, WrongContentError
from app.engine.weights.safetensors import BITS, MAX_HEADER, header_stop, parse_header

GOOD: dict[str, Any] = {
    "__metadata__": {"format": "pt"},
    "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    "b": {"dtype": "F16", "shape": [], "data_offsets": [24, 26]},
    "empty": {"dtype": "BF16", "shape": [0, 7], "data_offsets": [26, 26]},
}


def pack(header: Any, nbytes: int = 26) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(nbytes)


def parse(data: bytes, size: int | None = -1) -> Any:
    return parse_header(data, file="m.safetensors", file_size=len(data) if size == -1 else size)


def test_reads_what_the_reference_library_writes(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3),
        "y.z": np.arange(5, dtype=np.float16),
        "scalar": np.array(3, np.int64),
        "none": np.zeros((0, 4), np.uint8),
    }
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(arrays, path, {"format": "np"})
    data = path.read_bytes()
    header = parse(data)
    assert header.metadata == {"format": "np"}
    assert header.nbytes == len(data)
    assert header.tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        ref = header.tensors[name]
        assert ref.shape == array.shape
        assert data[ref.start : ref.stop] == array.tobytes()


def test_the_file_size_may_be_unknown_and_the_data_absent() -> None:
    data = pack(GOOD, nbytes=0)
    assert parse(data, None).nbytes == len(data) + 26


def test_trailing_spaces_in_the_header_are_padding() -> None:
    assert parse(pack(json.dumps(GOOD).encode() + b"   ")).tensors.keys() == {"a", "b", "empty"}


def changed(name: str, **fields: Any) -> dict[str, Any]:
    return GOOD | {name: GOOD[name] | fields}


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"[1]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b'{"', "not valid JSON"),
        (b"{}\x00", "not valid JSON"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"\xff": 1}', "not valid JSON"),
        (b"[" * 50_000, "not valid JSON"),
        (b'{"a": %s}' % (b"9" * 5000), "not valid JSON"),
        (b'{"a": 1, "a": 1}', "twice"),
        (GOOD | {"__metadata__": {"x": 1}}, "__metadata__"),
        (GOOD | {"__metadata__": "x"}, "__metadata__"),
        (GOOD | {"a": []}, "'a' must have exactly"),
        (GOOD | {"a": {"dtype": "F32", "shape": [2, 3]}}, "'a' must have exactly"),
        (changed("a", more=1), "'a' must have exactly"),
        (changed("a", dtype="F31"), "'a' has the unknown dtype 'F31'"),
        (changed("a", dtype=None), "'a' has the unknown dtype"),
        (changed("a", dtype=["F32"]), "'a' has the unknown dtype"),
        (changed("a", shape=6), "'a' has a shape"),
        (changed("a", shape=[-2, -3]), "'a' has a shape"),
        (changed("a", shape=[2.0, 3]), "'a' has a shape"),
        (changed("a", shape=[True, 6]), "'a' has a shape"),
        (changed("a", shape=["2", 3]), "'a' has a shape"),
        (changed("a", shape=[1] * 33), "'a' has a shape"),
        (changed("a", shape=[2**63, 1]), "'a' has a shape"),
        (changed("a", shape=[2**62] * 32), "'a' has 24 bytes"),
        (changed("a", shape=[2, 4]), "'a' has 24 bytes"),
        (changed("a", dtype="F16"), "'a' has 24 bytes"),
        (changed("a", dtype="F4", shape=[3]), "'a' has 24 bytes"),
        (changed("a", data_offsets=[0]), "'a' has data_offsets"),
        (changed("a", data_offsets=[-24, 0]), "'a' has data_offsets"),
        (changed("a", data_offsets=[24, 0]), "'a' has -24 bytes"),
        (changed("a", data_offsets=[0.0, 24.0]), "'a' has data_offsets"),
        (changed("a", data_offsets=[0, 2**70]), "'a' has data_offsets"),
        (changed("b", data_offsets=[22, 24]), "'b' overlaps tensor 'a'"),
        (changed("b", data_offsets=[25, 27]), "'b' leaves a gap after tensor 'a'"),
        (changed("a", data_offsets=[2, 26]), "'a' leaves a gap after the header"),
        (changed("a", data_offsets=[30, 54]), "leaves a gap"),
    ],
)
def test_what_the_format_does_not_allow(header: Any, says: str) -> None:
    with pytest.raises(SafetensorsError, match=says) as caught:
        parse(pack(header))
    assert str(caught.value).startswith("m.safetensors")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "only 0 bytes"),
        (b"1234567", "only 7 bytes"),
        (struct.pack("<Q", 0) + b"{}", "0 bytes long"),
        (struct.pack("<Q", MAX_HEADER + 1) + b"{}", "100000001 bytes long"),
        (struct.pack("<Q", 2**64 - 1) + b"{}", "18446744073709551615 bytes"),
        (struct.pack("<Q", 50) + b"{}", "whole file has only 10"),
    ],
)
def test_the_headers_length_is_bounded(data: bytes, says: str) -> None:
    with pytest.raises(SafetensorsError, match=says):
        header_stop(data, file="m", file_size=len(data))


def test_sizes_must_add_up() -> None:
    data = pack(GOOD)
    with pytest.raises(SafetensorsError, match="cut off"):
        parse(data[:-1])
    with pytest.raises(SafetensorsError, match="longer"):
        parse(data + b"x")
    with pytest.raises(SafetensorsError, match="within its header"):
        parse(data[:20], None)


@pytest.mark.parametrize("start", ["<!DOCTYPE html><title>", "\n\n <html>", "<?xml version='1.0'?>"])
def test_a_web_page_is_told_apart(start: str) -> None:
    with pytest.raises(WrongContentError, match="web page"):
        header_stop(start.encode() * 10, file="m", file_size=None)


def test_a_git_lfs_pointer_is_told_apart() -> None:
    with pytest.raises(WrongContentError, match="git lfs pull"):
        header_stop(b"version https://git-lfs.github.com/spec/v1\noid", file="m", file_size=None)


def survives(data: bytes, size: int | None) -> None:
    """Parse, and if that works check that nothing points outside the file."""
    try:
        header = parse(data, size)
    except (ModelFileError, WrongContentError):
        return
    for ref in header.tensors.values():
        assert 8 <= ref.start <= ref.stop <= header.nbytes
        assert ref.nbytes * 8 == int(np.prod([1, *ref.shape], dtype=object)) * BITS[ref.dtype]
    if size is not None:
        assert header.nbytes == size


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=200), size=st.none() | st.integers(0, 300))
def test_random_bytes_never_crash(data: bytes, size: int | None) -> None:
    survives(data, size)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(sorted(BITS)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
sizes = st.integers(-2, 70) | st.integers() | st.floats() | st.booleans()
entries = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(sorted(BITS)) | json_values,
        "shape": st.lists(sizes, max_size=3) | json_values,
        "data_offsets": st.lists(sizes, min_size=2, max_size=2) | json_values,
    }
)


@settings(max_examples=500, deadline=None)
@given(
    header=st.dictionaries(st.text(max_size=5) | st.just("__metadata__"), entries | json_values, max_size=4),
    nbytes=st.integers(0, 80),
    known=st.booleans(),
)
@example(header={"\ud800": 1}, nbytes=0, known=True)
@example(header={"a": {"dtype": "F64", "shape": [2**62] * 32, "data_offsets": [0, 8]}}, nbytes=8, known=True)
def test_random_headers_never_crash(header: Any, nbytes: int, known: bool) -> None:
    data = pack(header, nbytes)
    survives(data, len(data) if known else None)


@settings(max_examples=500, deadline=None)
@given(
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4),
    cut=st.integers(0, 400),
)
def test_mutated_files_never_crash(edits: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(pack(GOOD))
    for place, byte in edits:
        data[place % len(data)] = byte
    del data[max(1, len(data) - cut % 60) :]
    survives(bytes(data), len(data))
