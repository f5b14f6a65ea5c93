import io
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.errors import EngineError, GgufError, UnsupportedModelError, WrongContentError
from app.engine.weights import gguf as module
from app.engine.weights.blocks import to_float32
from app.engine.weights.gguf import Gguf, parse_gguf
from tests.gguf_models import reference, write_gguf

MIXED = {"": "Q4_K", "attn_v": "Q6_K", "ffn_down": "Q5_K", "attn_output": "Q4_1", "ffn_up": "F16", "token_embd": "Q8_0"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("gguf") / "mixed.gguf"
    write_gguf(made, "llama", MIXED)
    return made


async def parse(data: bytes, *, first: int = 64, step: int = 1000, size: int | None = -1) -> Gguf:
    async def more(start: int) -> bytes:
        return data[start : start + step]

    return await parse_gguf(data[:first], more, file="m.gguf", label="m.gguf", size=len(data) if size == -1 else size)


async def test_reads_what_the_reference_library_writes(path: Path) -> None:
    data, expected = path.read_bytes(), GGUFReader(path)
    # In small steps, so that a value ends at every kind of place.
    for step in (7, 1000, 1 << 20):
        found = await parse(data, first=min(step, 64), step=step)
        for name, field in expected.fields.items():
            if not name.startswith("GGUF."):
                assert found.metadata[name] == field.contents(), name
        assert found.tensors.keys() == {tensor.name for tensor in expected.tensors}
    for tensor in expected.tensors:
        ref = found.tensors[tensor.name]
        assert (ref.dtype, ref.shape) == (tensor.tensor_type.name, tuple(map(int, tensor.shape[::-1])))
        assert data[ref.start : ref.stop] == tensor.data.tobytes()
        values = to_float32(data[ref.start : ref.stop], ref.dtype).reshape(ref.shape)
        np.testing.assert_array_equal(values, reference(tensor.data, ref.dtype))
    assert {ref.dtype for ref in found.tensors.values()} == {*MIXED.values(), "F32"}


# Files made by hand


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def entry(name: str, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def make(entries: Sequence[bytes] = (), tensors: Sequence[bytes] = (), *, version: int = 3, nbytes: int = 256) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(entries)) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + bytes(nbytes)


async def test_every_kind_of_value_is_read() -> None:
    array = struct.pack("<IQ", 9, 2) + (struct.pack("<IQ", 0, 2) + b"\x01\x02") + struct.pack("<IQ", 8, 1) + text("x")
    entries = [
        entry("u8", 0, b"\xff"),
        entry("i8", 1, b"\xff"),
        entry("u16", 2, b"\xff\xff"),
        entry("i16", 3, b"\xff\xff"),
        entry("u32", 4, struct.pack("<I", 2**32 - 1)),
        entry("i32", 5, struct.pack("<i", -5)),
        entry("f32", 6, struct.pack("<f", 1.5)),
        entry("bool", 7, b"\x01"),
        entry("str", 8, text("grüß\xff".encode("latin-1"))),
        entry("nested", 9, array),
        entry("u64", 10, struct.pack("<Q", 2**64 - 1)),
        entry("i64", 11, struct.pack("<q", -(2**63))),
        entry("f64", 12, struct.pack("<d", 0.1)),
        entry("none", 9, struct.pack("<IQ", 4, 0)),
    ]
    found = (await parse(make(entries, version=2))).metadata
    assert found == {
        "u8": 255,
        "i8": -1,
        "u16": 65535,
        "i16": -1,
        "u32": 2**32 - 1,
        "i32": -5,
        "f32": 1.5,
        "bool": True,
        "str": "gr���",
        "nested": [[1, 2], ["x"]],
        "u64": 2**64 - 1,
        "i64": -(2**63),
        "f64": 0.1,
        "none": [],
    }


async def test_alignment_and_an_unknown_length() -> None:
    entries = [entry("general.alignment", 4, struct.pack("<I", 64))]
    data = make(entries, [tensor("a", (4,), 0, 0), tensor("b", (32, 2), 8, 64)], nbytes=300)
    found = await parse(data, size=None)
    assert found.tensors["a"].start % 64 == 0
    assert found.tensors["b"].start == found.tensors["a"].start + 64
    assert found.tensors["b"].shape == (2, 32)
    assert found.tensors["b"].nbytes == 68


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GGML" + bytes(60), "does not begin like"),
        (b"GG", "ends within its header"),
        (b"", "ends within its header"),
        (make()[:20], "ends within its header"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "too many"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**40), "too many"),
        (make([text("x" * 600)]), "600 bytes, too long"),
        (make([entry("a", 0, b"1"), entry("a", 0, b"1")]), "'a' occurs twice"),
        (make([entry("a", 13, b"1")]), r"'a' is of an unknown kind \(13\)"),
        (make([entry("a", 8, struct.pack("<Q", 2**62))]), "too long"),
        (make([entry("a", 8, struct.pack("<Q", 10**6))]), "ends within its header"),
        (make([entry("a", 9, struct.pack("<IQ", 0, 2**61))]), "items, too many"),
        (make([entry("a", 9, struct.pack("<IQ", 8, 3_000_000))]), "ends within its header"),
        (make([entry("a", 9, struct.pack("<IQ", 8, 2) + struct.pack("<Q", 2**63))]), "longer than"),
        (make([entry("a", 9, struct.pack("<IQ", 9, 1) * 5)]), "unknown kind"),
        (make([entry("general.alignment", 4, struct.pack("<I", 0))]), "alignment is"),
        (make([entry("general.alignment", 4, struct.pack("<I", 12))]), "alignment is"),
        (make([entry("general.alignment", 8, text("x"))]), "alignment is"),
        (make(tensors=[tensor("a", (4,) * 5, 0, 0)]), "5 dimensions"),
        (make(tensors=[tensor("a", (2**40, 2**40), 0, 0)]), "dimensions"),
        (make(tensors=[tensor("a", (0, 4), 0, 0)]), "dimensions"),
        (make(tensors=[tensor("a", (33,), 8, 0)]), "no whole blocks of Q8_0"),
        (make(tensors=[tensor("a", (128,), 12, 0)]), "no whole blocks of Q4_K"),
        (make(tensors=[tensor("a", (4,), 0, 8)]), "not aligned"),
        (make(tensors=[tensor("a", (4,), 0, 2**40)]), "ends at byte"),
        (make(tensors=[tensor("a", (65,), 0, 0)]), "ends at byte"),
        (make(tensors=[tensor("a", (4,), 0, 0), tensor("a", (4,), 0, 32)]), "'a' occurs twice"),
        (make(tensors=[tensor("a", (16,), 0, 0), tensor("b", (4,), 0, 32)]), "'a' and 'b' overlap"),
    ],
)
async def test_a_damaged_file_is_refused_by_name(data: bytes, says: str) -> None:
    with pytest.raises(GgufError, match=says):
        await parse(data)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (make(version=1), "of version 1"),
        (make(version=4), "of version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (make(tensors=[tensor("a", (256,), 10, 0)]), "stored as Q2_K"),
        (make(tensors=[tensor("a", (256,), 4, 0)]), "stored as Q4_2"),
        (make(tensors=[tensor("a", (256,), 99, 0)]), "stored as type 99"),
    ],
)
async def test_what_is_not_read_here_is_refused_by_name(data: bytes, says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        await parse(data)


async def test_a_web_page_or_pointer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (b"<!DOCTYPE html><title>Log in</title>", b"version https://git-lfs.github.com/spec/v1\noid"):
        with pytest.raises(WrongContentError):
            await parse(data)
    monkeypatch.setattr(module, "MAX_HEADER", 500)
    with pytest.raises(GgufError, match="longer than 500"):
        await parse(make([entry("a", 9, struct.pack("<IQ", 0, 600) + bytes(600))]))


@pytest.fixture(scope="module")
def small() -> bytes:
    array = struct.pack("<IQ", 8, 3) + text("a") + text("") + text("bcd")
    entries = [entry("s", 8, text("value")), entry("list", 9, array), entry("n", 4, struct.pack("<I", 7))]
    entries.append(entry("deep", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ", 5, 2) + bytes(8)))
    return make(entries, [tensor("a", (32, 2), 2, 0), tensor("b", (4,), 0, 64)], nbytes=128)


@settings(max_examples=400, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, 10_000), st.binary(min_size=1, max_size=8)), max_size=4),
    cut=st.integers(0, 600),
)
async def test_mutated_files_never_crash(small: bytes, changes: list[tuple[int, bytes]], cut: int) -> None:
    out = io.BytesIO(small)
    for place, data in changes:
        out.seek(place % len(small))
        out.write(data)
    mutated: Any = out.getvalue()[: len(small) - (cut if cut < len(small) else 0)]
    try:
        found = await parse(mutated, step=100)
    except EngineError:
        return
    for ref in found.tensors.values():
        assert ref.stop <= len(mutated)
