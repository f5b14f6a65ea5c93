import asyncio
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from app.engine.errors import (
    CancelledError,
    EngineError,
    HubError,
    ModelFileError,
    NotFoundError,
    RangeError,
    SafetensorsError,
    ServerError,
    TokenizerError,
    TruncatedError,
    UnsupportedModelError,
    WrongContentError,
)
from app.engine.models import weight_specs
from app.engine.weights.hub import Source
from app.engine.weights.loader import Checkpoint, load_tokenizer, open_checkpoint, stream
from app.engine.weights.spec import Blob, WeightSpec
from tests.engine.weights.http_transport import HttpTransport
from tests.hub_double import Hub

Open = Callable[..., Source]
FIXTURES = Path(__file__).parents[2] / "fixtures"
STORY = Path(__file__).parents[3] / "static" / "models" / "story"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
CONFIG: dict[str, Any] = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_embd": 48,
    "n_head": 3,
    "vocab_size": 101,
    "n_positions": 64,
}


@dataclass
class Collector:
    """A sink that checks the protocol and keeps the bytes."""

    pause: float = 0.0
    fail_at: str = ""
    held: dict[str, bytes] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    largest: int = 0
    rows: dict[str, int] = field(default_factory=dict)

    async def write(self, spec: WeightSpec, dtype: str, row: int, rows: int, data: Blob) -> None:
        if spec.name == self.fail_at:
            raise ValueError("the sink is full")
        if spec.name not in self.held:
            self.order.append(spec.name)
        assert self.order[-1] == spec.name
        assert row == self.rows.get(spec.name, 0)
        total = 1 if spec.kind == "vector" else spec.shape[0]
        assert spec.kind != "conv1d" or row + rows == total or (row % 32 == 0 and rows % 32 == 0)
        self.rows[spec.name] = row + rows
        self.held[spec.name] = self.held.get(spec.name, b"") + data.to_bytes()
        self.largest = max(self.largest, data.nbytes)
        await asyncio.sleep(self.pause)


class Stop:
    cancelled = False


def write_model(folder: Path, config: dict[str, Any] = CONFIG, **changes: Any) -> dict[str, np.ndarray[Any, Any]]:
    """Write random weights as transformers would; `changes` replaces tensors (None drops one), with __ for dots."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    random = np.random.default_rng(1)
    n, layers = config["n_embd"], config["n_layer"]
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (config["vocab_size"], n),
        "wpe.weight": (config["n_positions"], n),
    }
    for layer in range(layers):
        for name, shape in {
            "ln_1.weight": (n,), "ln_1.bias": (n,), "attn.c_attn.weight": (n, 3 * n), "attn.c_attn.bias": (3 * n,),
            "attn.c_proj.weight": (n, n), "attn.c_proj.bias": (n,), "ln_2.weight": (n,), "ln_2.bias": (n,),
            "mlp.c_fc.weight": (n, 4 * n), "mlp.c_fc.bias": (4 * n,),
            "mlp.c_proj.weight": (4 * n, n), "mlp.c_proj.bias": (n,),
        }.items():  # fmt: skip
            shapes[f"h.{layer}.{name}"] = shape
    shapes |= {"ln_f.weight": (n,), "ln_f.bias": (n,)}
    tensors: dict[str, Any] = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    tensors |= {name.replace("__", "."): value for name, value in changes.items()}
    tensors = {name: value for name, value in tensors.items() if value is not None}
    safetensors.numpy.save_file(tensors, folder / WEIGHTS)
    return tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "some" / "model"


async def load(source: Source, sink: Collector | None = None, **options: Any) -> tuple[Checkpoint, Collector]:
    checkpoint = await open_checkpoint(source)
    sink = Collector() if sink is None else sink
    await stream(checkpoint, weight_specs(checkpoint.config), sink, source=source, **options)
    return checkpoint, sink


def assert_same(sink: Collector, tensors: dict[str, np.ndarray[Any, Any]]) -> None:
    for name, array in tensors.items():
        assert sink.held[name] == array.tobytes(), name


async def test_the_story_model(hub: Hub, source: Open, tmp_path: Path) -> None:
    (tmp_path / "tabgpt").mkdir()
    shutil.copytree(STORY, tmp_path / "tabgpt" / "story")
    checkpoint, sink = await load(source("tabgpt/story"))
    expected = safetensors.numpy.load_file(STORY / WEIGHTS)
    assert_same(sink, {name.removeprefix("transformer."): array for name, array in expected.items()})
    assert sink.order == [spec.name for spec in weight_specs(checkpoint.config)]
    assert checkpoint.total_bytes == sum(array.nbytes for array in expected.values())
    assert sink.largest <= 8 << 20
    # config, header, and the weights in ranges of at most 8 MiB: not one for each of 76 tensors.
    assert len(hub.requests(origin="cdn")) <= 6


@pytest.mark.parametrize("case", sorted(path.name for path in (FIXTURES / "parity").iterdir()))
@pytest.mark.parametrize("piece_bytes", [5000, 8 << 20])
async def test_every_kind_of_file(case: str, piece_bytes: int, source: Open, tmp_path: Path) -> None:
    (tmp_path / "parity").mkdir()
    shutil.copytree(FIXTURES / "parity" / case, tmp_path / "parity" / case)
    checkpoint, sink = await load(source(f"parity/{case}"), piece_bytes=piece_bytes)
    names = {spec.name for spec in weight_specs(checkpoint.config)}
    assert sink.held.keys() == names
    for file in checkpoint.files:
        raw = (tmp_path / "parity" / case / file).read_bytes()
        for name, ref in checkpoint.tensors.items():
            if ref.file == file:
                assert sink.held[name] == raw[ref.start : ref.stop], name
    assert checkpoint.config.tied == ("lm_head.weight" not in names)
    untied = {"silu-separate-head", "tied-but-different", "bf16-sharded-untied-1009"}
    untied |= {"llama-biases-llama3", "qwen3-head-24", "neox-parallel", "neox-sequential", "neox-head-80"}
    assert checkpoint.config.tied == (case not in untied)


async def test_progress_never_falls_and_ends_at_the_whole(hub: Hub, source: Open, folder: Path) -> None:
    write_model(folder)
    hub.fail(WEIGHTS, "cut", times=2, after=3)
    told: list[tuple[int, int, str]] = []
    checkpoint, _ = await load(source(), piece_bytes=10_000, on_progress=lambda *at: told.append(at))
    received = [at[0] for at in told]
    assert received == sorted(received)
    assert {at[1] for at in told} == {received[-1]}
    assert received[-1] == checkpoint.total_bytes
    assert {at[2] for at in told} <= set(checkpoint.tensors)


@pytest.mark.parametrize("kind", ["429", "500", "short", "cut", "long"])
async def test_a_passing_fault_leaves_no_trace(hub: Hub, source: Open, folder: Path, kind: str) -> None:
    tensors = write_model(folder)
    hub.fail(WEIGHTS, kind, times=2, after=2)
    _, sink = await load(source(), piece_bytes=20_000)
    assert_same(sink, tensors)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("404", NotFoundError),
        ("500", ServerError),
        ("cut", TruncatedError),
        ("short", TruncatedError),
        ("html", WrongContentError),
        ("wrong-range", RangeError),
        ("changed-size", RangeError),
    ],
)
async def test_a_lasting_fault_ends_the_load_and_leaves_nothing_running(
    hub: Hub, source: Open, folder: Path, transport: HttpTransport, kind: str, error: type[HubError]
) -> None:
    write_model(folder)
    hub.latency_s = 0.01
    hub.fail(WEIGHTS, kind, after=4)
    before = asyncio.all_tasks()
    with pytest.raises(error, match=WEIGHTS):
        await load(source(), piece_bytes=5000)
    assert transport.running == 0
    assert asyncio.all_tasks() == before


async def test_a_server_without_ranges(hub: Hub, source: Open, folder: Path) -> None:
    tensors = write_model(folder)
    hub.fail(WEIGHTS, "ignore-range")
    _, sink = await load(source(), piece_bytes=5000)
    assert_same(sink, tensors)
    assert len(hub.requests(WEIGHTS, origin="cdn")) == 1


async def test_a_failing_sink_ends_the_load(source: Open, folder: Path, transport: HttpTransport) -> None:
    write_model(folder)
    before = asyncio.all_tasks()
    with pytest.raises(ValueError, match="the sink is full"):
        await load(source(), Collector(fail_at="h.0.attn.c_proj.weight"), piece_bytes=5000)
    assert transport.running == 0
    assert asyncio.all_tasks() == before


async def test_a_slow_sink_holds_the_network_back(hub: Hub, source: Open, folder: Path) -> None:
    write_model(folder)
    piece = 4000
    checkpoint = await open_checkpoint(source())
    sent = 0
    model = source()
    seen: list[int] = []

    class Slow(Collector):
        async def write(self, spec: WeightSpec, dtype: str, row: int, rows: int, data: Blob) -> None:
            await super().write(spec, dtype, row, rows, data)
            seen.append(sent - sum(map(len, self.held.values())))

    def on_progress(received: int, _total: int, _what: str) -> None:
        nonlocal sent
        sent = received

    await stream(
        checkpoint, weight_specs(checkpoint.config), Slow(pause=0.002), source=model, on_progress=on_progress,
        piece_bytes=piece,
    )  # fmt: skip
    widest = 32 * 4 * 48 * 4  # a conv1d's pieces have 32 rows at least
    assert max(seen) <= 2 * 4 * max(piece, widest)


async def test_ranges_are_fetched_side_by_side_but_no_more_than_asked(
    source: Open, folder: Path, hub: Hub, transport: HttpTransport
) -> None:
    write_model(folder)
    hub.latency_s = 0.02
    most = 0

    def watch(*_: object) -> None:
        nonlocal most
        most = max(most, transport.running)

    await load(source(), piece_bytes=5000, parallel=3, on_progress=watch)
    assert most == 3


@pytest.mark.parametrize("how", ["flag", "task"])
async def test_cancelling_is_prompt(hub: Hub, source: Open, folder: Path, transport: HttpTransport, how: str) -> None:
    write_model(folder)
    checkpoint = await open_checkpoint(source())
    hub.fail(WEIGHTS, "slow")
    stop = Stop()
    before = asyncio.all_tasks()
    specs = weight_specs(checkpoint.config)
    task = asyncio.create_task(stream(checkpoint, specs, Collector(), source=source(), cancelled=stop))
    while not transport.running:
        await asyncio.sleep(0.01)
    started = time.monotonic()
    if how == "flag":
        stop.cancelled = True
    else:
        task.cancel()
    with pytest.raises(CancelledError if how == "flag" else asyncio.CancelledError):
        await task
    assert time.monotonic() - started < 1
    assert transport.running == 0
    assert asyncio.all_tasks() == before


async def test_cancelled_before_it_starts(source: Open, folder: Path, hub: Hub) -> None:
    write_model(folder)
    stop = Stop()
    stop.cancelled = True
    sink = Collector()
    with pytest.raises(CancelledError):
        await load(source(), sink, cancelled=stop)
    assert not sink.held


# Files that do not fit


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"h__1__ln_2__bias": None}, ModelFileError, "no tensor 'h.1.ln_2.bias'"),
        ({"wte__weight": None}, ModelFileError, "no tensor 'wte.weight'"),
        (
            {"h__0__mlp__c_fc__weight": np.zeros((192, 48), np.float32)},
            ModelFileError,
            r"'h.0.mlp.c_fc.weight' has the shape \[192, 48\], but config.json asks for \[48, 192\]",
        ),
        ({"ln_f__weight": np.zeros(48, np.float64)}, UnsupportedModelError, "'ln_f.weight' is stored as F64"),
        ({"wpe__weight": np.zeros((64, 48), np.int8)}, UnsupportedModelError, "'wpe.weight' is stored as I8"),
        ({"transformer__wte__weight": np.zeros(1, np.float32)}, ModelFileError, "'wte.weight' occurs twice"),
    ],
)
async def test_tensors_that_do_not_fit_the_config(
    source: Open, folder: Path, hub: Hub, changes: dict[str, Any], error: type[EngineError], says: str
) -> None:
    write_model(folder, **changes)
    sink = Collector()
    with pytest.raises(error, match=says):
        await load(source(), sink)
    assert not sink.held
    assert len(hub.requests(WEIGHTS, origin="cdn")) == 1  # the header, and no weights


async def test_tensors_that_nobody_needs_may_have_any_dtype(source: Open, folder: Path) -> None:
    tensors = write_model(folder, score=np.zeros(3, np.int64), h__0__attn__bias=np.ones((1, 1, 64, 64), bool))
    checkpoint, sink = await load(source())
    assert "h.0.attn.bias" not in checkpoint.tensors
    assert_same(sink, {name: array for name, array in tensors.items() if name in sink.held})


async def test_damaged_headers_are_named(source: Open, folder: Path) -> None:
    write_model(folder)
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:-1])
    with pytest.raises(SafetensorsError, match="cut off"):
        await open_checkpoint(source())
    (folder / WEIGHTS).write_bytes(b"\xff" * 100)
    with pytest.raises(SafetensorsError, match="header would be"):
        await open_checkpoint(source())


async def test_a_git_lfs_pointer_instead_of_weights(hub: Hub, source: Open, folder: Path) -> None:
    write_model(folder)
    hub.fail(WEIGHTS, "lfs-pointer")
    with pytest.raises(WrongContentError, match="git lfs pull"):
        await open_checkpoint(source())


async def test_a_header_longer_than_the_first_request(source: Open, folder: Path, hub: Hub) -> None:
    extra: dict[str, Any] = {f"extra.{'x' * 150}.{i}": np.zeros(1, np.float32) for i in range(500)}
    tensors = write_model(folder, **extra)
    _, sink = await load(source())
    assert_same(sink, {name: array for name, array in tensors.items() if name in sink.held})
    assert (hub.requests(WEIGHTS, origin="cdn")[1].range or "").startswith("bytes=65536-")


async def test_a_file_that_lies_at_odd_offsets(source: Open, folder: Path) -> None:
    tensors = write_model(folder, a_first_odd_one=np.zeros(1, np.uint8))
    data = (folder / WEIGHTS).read_bytes()
    length = int.from_bytes(data[:8], "little")
    (folder / WEIGHTS).write_bytes(
        (length + 1).to_bytes(8, "little") + data[8 : 8 + length] + b" " + data[8 + length :]
    )
    checkpoint, sink = await load(source(), piece_bytes=5000)
    assert any(ref.start % 2 for ref in checkpoint.tensors.values())
    assert_same(sink, {name: array for name, array in tensors.items() if name in sink.held})


async def test_only_pickled_weights(source: Open, folder: Path) -> None:
    write_model(folder)
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModelError, match=r"only as pytorch_model.bin.*save_pretrained"):
        await open_checkpoint(source())


async def test_no_weights_at_all(source: Open, folder: Path) -> None:
    write_model(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(NotFoundError, match="and neither was model"):
        await open_checkpoint(source())


async def test_no_such_model(source: Open) -> None:
    with pytest.raises(NotFoundError, match=r"config\.json of no/such"):
        await open_checkpoint(source("no/such"))


async def test_another_architecture(source: Open, folder: Path) -> None:
    write_model(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(UnsupportedModelError, match="mamba"):
        await open_checkpoint(source())


@pytest.mark.parametrize(
    ("index", "error", "says"),
    [
        ([], ModelFileError, "no weight_map"),
        ({"weight_map": {}}, ModelFileError, "no weight_map"),
        ({"weight_map": {"wte.weight": 3}}, ModelFileError, "names '3'"),
        ({"weight_map": {"wte.weight": "../../secret.safetensors"}}, ModelFileError, "no safetensors file's name"),
        ({"weight_map": {"wte.weight": "https://evil.example/x.safetensors"}}, ModelFileError, "no safetensors file's"),
        ({"weight_map": {"wte.weight": "pytorch_model.bin"}}, ModelFileError, "no safetensors file's name"),
        ({"weight_map": {"wte.weight": "gone.safetensors"}}, NotFoundError, "gone.safetensors"),
        ({"weight_map": {"wte.weight": "one.safetensors", "x": "one.safetensors"}}, ModelFileError, "do not agree"),
        ({"weight_map": {str(i): f"{i}.safetensors" for i in range(1001)}}, ModelFileError, "more than 1000 files"),
    ],
)
async def test_an_index_is_not_believed(
    source: Open, folder: Path, index: Any, error: type[EngineError], says: str
) -> None:
    write_model(folder)
    (folder / WEIGHTS).rename(folder / "one.safetensors")
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(error, match=says):
        await open_checkpoint(source())


# The tokenizer


async def test_the_tokenizer_comes_from_either_kind_of_files(source: Open, tmp_path: Path, hub: Hub) -> None:
    shutil.copytree(STORY, tmp_path / "tabgpt" / "story")
    config = (await open_checkpoint(source("tabgpt/story"))).config
    one = await load_tokenizer(source("tabgpt/story"), config)
    (tmp_path / "tabgpt" / "story" / "tokenizer.json").unlink()
    other = await load_tokenizer(source("tabgpt/story"), config)
    text = "Lily's cat ran 🎉 away<|endoftext|>"
    assert one.encode(text) == other.encode(text)
    assert one.eos_id == other.eos_id == 8191
    (tmp_path / "tabgpt" / "story" / "vocab.json").write_text("[]")
    with pytest.raises(TokenizerError, match=r"vocab\.json"):
        await load_tokenizer(source("tabgpt/story"), config)
    (tmp_path / "tabgpt" / "story" / "merges.txt").unlink()
    with pytest.raises(NotFoundError, match=r"merges\.txt"):
        await load_tokenizer(source("tabgpt/story"), config)
