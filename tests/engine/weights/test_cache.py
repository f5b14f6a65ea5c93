"""The cache over a store in a folder, fed from the double of the hub."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
import safetensors.numpy

from app.engine.errors import ChangedError, ChecksumError, HubError, NotFoundError, TruncatedError
from app.engine.models import weight_specs
from app.engine.weights.cache import FRESH_S, Cache, CachedFiles, Range, StoreError, parse_range
from app.engine.weights.hub import Source
from app.engine.weights.loader import load_tokenizer, open_checkpoint, stream
from app.engine.weights.spec import Blob, WeightSpec
from tests.engine.weights.folder_store import FolderStore
from tests.hub_double import COMMIT, Hub
from tests.models import write_tiny

OpenSource = Callable[..., Source]
BIG = "model.safetensors"
PIECE = 1 << 16
OLD = "f" * 40


class Tensors:
    """A sink that keeps everything."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    async def write(self, spec: WeightSpec, dtype: str, row: int, rows: int, data: Blob) -> None:
        self.held[spec.name] = self.held.get(spec.name, b"") + data.to_bytes()


@pytest.fixture
def folder(hub: Hub) -> Path:
    """The folder of `some/model` on the hub."""
    write_tiny(hub.folder / "some" / "model")
    return hub.folder / "some" / "model"


@pytest.fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> FolderStore:
    return FolderStore(tmp_path_factory.mktemp("store"))


@pytest.fixture
def log() -> list[str]:
    return []


Load = Callable[..., Awaitable[tuple[dict[str, bytes], CachedFiles]]]


@pytest.fixture
def load(source: OpenSource, store: FolderStore, log: list[str]) -> Load:
    """Load a model as a fresh page would, over the store as it is."""

    async def load_it(
        model: str = "some/model",
        *,
        cache: Cache | None = None,
        clock: float = 0.0,
        tokenizer: bool = True,
        piece: int = PIECE,
    ) -> tuple[dict[str, bytes], CachedFiles]:
        cache = cache or Cache(store, log=log.append, clock=lambda: clock)
        files = await cache.open(source(model))
        checkpoint = await open_checkpoint(files)
        if tokenizer:
            await load_tokenizer(files, checkpoint.config)
        sink = Tensors()
        await stream(checkpoint, weight_specs(checkpoint.config), sink, source=files, piece_bytes=piece)
        await files.check()
        await files.finish()
        return sink.held, files

    return load_it


def expected(folder: Path) -> dict[str, bytes]:
    tensors = safetensors.numpy.load_file(folder / BIG)
    return {name.removeprefix("transformer."): np.asarray(value).tobytes() for name, value in tensors.items()}


async def test_a_second_load_asks_the_hub_nothing(hub: Hub, folder: Path, load: Load) -> None:
    first, files = await load()
    assert first == expected(folder)
    assert files.complete
    assert files.cached == 0
    hub.asked.clear()
    second, files = await load()
    assert second == first
    assert hub.asked == []
    assert files.cached > sum(map(len, first.values()))


async def test_what_is_not_there_is_not_asked_for_again(hub: Hub, folder: Path, load: Load) -> None:
    (folder / "tokenizer.json").unlink()
    await load()
    assert len(hub.requests("tokenizer.json")) == 1
    hub.asked.clear()
    await load()
    assert hub.asked == []


async def test_shards_are_kept_too(hub: Hub, load: Load) -> None:
    whole = hub.folder / "whole"
    write_tiny(whole)
    from weights_tool.__main__ import main

    out = hub.folder / "some" / "shards"
    command = ["random", str(whole), "--vocab", str(whole), "--out", str(out), "--max-shard-mb", "0.3"]
    assert main(command) == 0
    first, _ = await load("some/shards")
    assert first == expected(whole)
    hub.asked.clear()
    assert (await load("some/shards"))[0] == first
    assert hub.asked == []


async def test_a_branch_is_asked_about_once_a_day(hub: Hub, folder: Path, load: Load) -> None:
    await load(clock=1000.0)
    hub.asked.clear()
    await load(clock=1000.0 + FRESH_S - 1)
    assert hub.asked == []
    await load(clock=1000.0 + FRESH_S + 1)
    assert [asked.file for asked in hub.asked] == ["config.json"]
    hub.asked.clear()
    await load(clock=1000.0 + FRESH_S + 2)
    assert hub.asked == []


async def test_a_commit_is_never_asked_about(hub: Hub, folder: Path, load: Load) -> None:
    await load(f"some/model@{COMMIT}")
    hub.asked.clear()
    await load(f"some/model@{COMMIT}", clock=1e9)
    assert hub.asked == []


async def test_a_branch_and_its_commit_share_what_is_kept(hub: Hub, folder: Path, load: Load) -> None:
    await load()
    hub.asked.clear()
    await load(f"some/model@{COMMIT}")
    assert hub.asked == []


async def test_a_branch_that_moved_brings_new_files_and_drops_the_old(
    hub: Hub, folder: Path, load: Load, store: FolderStore
) -> None:
    await load(clock=0.0)
    bytes_kept = sum(path.stat().st_size for path in store.entries())
    hub.commit = OLD[::-1]
    write_tiny(hub.folder / "new", seed=1)
    (hub.folder / "new" / BIG).replace(folder / BIG)
    second, _ = await load(clock=FRESH_S + 1)
    assert second == expected(folder)
    models = await Cache(store).models()
    assert [model["revision"] for model in models] == [hub.commit]
    assert sum(path.stat().st_size for path in store.entries()) == bytes_kept


async def test_without_the_hub_what_is_kept_is_used(hub: Hub, folder: Path, load: Load, log: list[str]) -> None:
    first, _ = await load(clock=0.0)
    hub.fail("config.json", "503")
    assert (await load(clock=FRESH_S + 1))[0] == first
    assert "used as it is" in log[-1]


async def test_without_the_hub_and_with_nothing_kept_it_fails(hub: Hub, folder: Path, load: Load) -> None:
    hub.fail("config.json", "503")
    with pytest.raises(HubError, match="503"):
        await load()


def span(text: str | None) -> int:
    assert text is not None
    start, stop = text.removeprefix("bytes=").split("-")
    return int(stop) - int(start) + 1


async def test_a_broken_download_goes_on_where_it_stopped(
    hub: Hub, folder: Path, load: Load, store: FolderStore
) -> None:
    hub.fail(BIG, "cut", after=9)
    with pytest.raises(TruncatedError):
        await load()
    kept = [parse_range(unquote(path.name)) for path in store.entries()]
    kept_bytes = sum(entry.stop - entry.start for entry in kept if entry is not None)
    assert kept_bytes > 3 * PIECE
    assert [model["complete"] for model in await Cache(store).models()] == [False]
    hub.heal()
    hub.asked.clear()
    second, files = await load()
    assert second == expected(folder)
    again = sum(span(asked.range) for asked in hub.requests(BIG, origin="cdn"))
    total = sum(map(len, second.values()))
    assert again <= total - kept_bytes + 2 * PIECE
    assert files.complete


async def test_a_connection_cut_at_any_byte_changes_nothing(
    hub: Hub, folder: Path, load: Load, store: FolderStore
) -> None:
    """A hundred downloads, each broken at a random byte, once or for good, and taken up again."""
    wanted = expected(folder)
    broken = 0
    for seed in range(100):
        chance = random.Random(seed)
        times = chance.choice([1, 1000])
        hub.fail(BIG, "cut-at", after=chance.randrange(1, 6), at=chance.random(), times=times)
        try:
            first, _ = await load(tokenizer=False, piece=4 * PIECE)
        except TruncatedError:
            broken += 1
            hub.heal()
            first, _ = await load(tokenizer=False, piece=4 * PIECE)
        hub.heal()
        assert first == wanted, seed
        await Cache(store).forget()
    assert 25 < broken < 75


async def test_a_complete_file_is_compared_with_the_hubs_checksum_once(hub: Hub, folder: Path, load: Load) -> None:
    await load()
    assert len(hub.requests(f"raw/{BIG}")) == 1
    hub.asked.clear()
    await load()
    assert hub.asked == []


async def test_a_hub_without_checksums_is_asked_once(hub: Hub, folder: Path, load: Load) -> None:
    hub.tells_checksums = False
    await load()
    assert len(hub.requests(f"raw/{BIG}")) == 1
    hub.asked.clear()
    await load()
    assert hub.asked == []


async def test_a_wrong_checksum_discards_and_explains(hub: Hub, folder: Path, load: Load, store: FolderStore) -> None:
    hub.fail(BIG, "flip", times=1, after=7)
    with pytest.raises(ChecksumError, match="SHA-256 is not the one"):
        await load()
    assert store.entries() == []
    assert (await load())[0] == expected(folder)


async def test_a_file_with_gaps_is_not_compared(hub: Hub, load: Load) -> None:
    """Attention masks of old checkpoints are never fetched."""
    model = hub.folder / "some" / "model"
    write_tiny(model)
    tensors = safetensors.numpy.load_file(model / BIG)
    tensors["h.0.attn.bias"] = np.ones((1, 1, 256, 1024), np.float32)
    safetensors.numpy.save_file(tensors, model / BIG)
    _, files = await load()
    assert files.complete
    assert hub.requests(f"raw/{BIG}") == []


async def test_a_file_that_is_replaced_meanwhile_is_noticed(hub: Hub, folder: Path, load: Load) -> None:
    hub.fail(BIG, "changed-etag", after=5)
    with pytest.raises(ChangedError, match="replaced while it was being read"):
        await load()


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "sum"])
async def test_a_damaged_entry_is_fetched_again_and_logged(
    hub: Hub, folder: Path, load: Load, store: FolderStore, log: list[str], damage: str
) -> None:
    first, _ = await load()
    victim = store.entries()[3]
    data = bytearray(victim.read_bytes())
    if damage == "flip":
        data[len(data) // 2] ^= 0x10
    elif damage == "sum":
        data[-1] ^= 1
    else:
        del data[0 if damage == "empty" else len(data) // 2 :]
    victim.write_bytes(data)
    hub.asked.clear()
    assert (await load())[0] == first
    assert len(hub.requests(BIG, origin="cdn")) == 1
    assert "damaged" in log[0]
    hub.asked.clear()
    assert (await load())[0] == first
    assert hub.asked == []


async def test_every_entry_damaged_at_once(hub: Hub, folder: Path, load: Load, store: FolderStore) -> None:
    first, _ = await load()
    for path in store.folder.rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[::-1])
    assert (await load())[0] == first


async def test_a_full_store_does_not_stop_a_load(
    hub: Hub, folder: Path, load: Load, store: FolderStore, log: list[str]
) -> None:
    store.room = 900_000
    cache = Cache(store, log=log.append)
    first, files = await load(cache=cache)
    assert first == expected(folder)
    assert cache.trouble == "the storage is full"
    assert not files.complete
    assert sum("full" in line for line in log) == 1
    # What was kept until then is whole, and used.
    store.room = 1 << 30
    log.clear()
    second, files = await load()
    assert second == first
    assert files.cached > 100_000
    assert files.complete
    assert log == []


async def test_an_entry_that_another_tab_writes_is_left_to_it(
    hub: Hub, folder: Path, load: Load, store: FolderStore
) -> None:
    await load()
    name = unquote(store.entries()[0].name)
    await Cache(store).forget()
    store.busy.add(name)
    first, _ = await load()
    assert first == expected(folder)
    store.busy.clear()
    hub.asked.clear()
    assert (await load())[0] == first
    assert len(hub.requests(BIG, origin="cdn")) == 1


async def test_two_tabs_at_once(hub: Hub, folder: Path, load: Load) -> None:
    (first, _), (second, _) = await asyncio.gather(load(), load())
    assert first == second == expected(folder)
    hub.asked.clear()
    assert (await load())[0] == first
    assert hub.asked == []


async def test_models_are_listed_and_forgotten(hub: Hub, folder: Path, load: Load, store: FolderStore) -> None:
    write_tiny(hub.folder / "some" / "other", n_layer=1)
    await load()
    await load("some/other")
    cache = Cache(store)
    listed = await cache.models()
    assert [(model["model"], model["complete"]) for model in listed] == [("some/model", True), ("some/other", True)]
    assert listed[0]["revision"] == COMMIT
    assert listed[0]["bytes"] > listed[1]["bytes"] > (hub.folder / "some" / "other" / BIG).stat().st_size * 0.9
    await cache.forget("some/model")
    assert [model["model"] for model in await cache.models()] == ["some/other"]
    hub.asked.clear()
    await load("some/other")
    assert hub.asked == []
    await cache.forget()
    assert await store.folders() == []
    await load()
    assert hub.requests(BIG)


async def test_a_hub_that_names_no_commit_is_read_without_keeping(
    hub: Hub, folder: Path, load: Load, store: FolderStore
) -> None:
    hub.commit = None
    first, files = await load()
    assert first == expected(folder)
    assert not files.complete
    assert await store.folders() == []


async def test_a_store_that_breaks_is_done_without(hub: Hub, folder: Path, load: Load, store: FolderStore) -> None:
    class Broken(FolderStore):
        async def read(self, folder: str, name: str) -> Blob | None:
            raise StoreError("it broke")

        async def names(self, folder: str) -> list[str]:
            raise StoreError("it broke")

    cache = Cache(Broken(store.folder))
    assert (await load(cache=cache))[0] == expected(folder)
    assert cache.trouble == "it broke"


async def test_missing_weights_stay_an_error(hub: Hub, folder: Path, load: Load) -> None:
    (folder / BIG).unlink()
    for _ in range(2):
        with pytest.raises(NotFoundError, match="safetensors"):
            await load()


@pytest.mark.parametrize(
    "entry",
    [
        Range(file="model.safetensors", start=0, stop=10, size=None),
        Range(file="ä/!%.x", start=7, stop=1 << 40, size=1 << 41),
    ],
)
def test_names_of_entries(entry: Range) -> None:
    assert parse_range(entry.name) == entry
    assert "/" not in entry.name


@pytest.mark.parametrize("name", ["", "about", "a!absent", "a!1-2", "a!1-x-3", "a!²-3-4", "!!!", "a!--"])
def test_other_names_are_no_ranges(name: str) -> None:
    assert parse_range(name) is None
