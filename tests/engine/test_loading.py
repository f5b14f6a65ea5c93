"""Loading as the engine does it, with a store: what is reported, kept, started over and given up."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.engine import Engine
from app.engine.errors import ChangedError, ChecksumError
from app.engine.weights.cache import Store, StoreError
from tests.engine.weights.folder_store import FolderStore
from tests.engine.weights.http_transport import HttpTransport
from tests.hub_double import COMMIT, Hub, hub_double
from tests.models import write_tiny

BIG = "model.safetensors"


@pytest.fixture
def hub(tmp_path: Path) -> Any:
    write_tiny(tmp_path / "hub" / "me" / "tiny")
    with hub_double(tmp_path / "hub") as running:
        yield running


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    made = HttpTransport()
    yield made
    await made.client.aclose()


class Session:
    """Engines, one after the other as with reloads, over one store; and what they said."""

    def __init__(self, transport: HttpTransport, store: FolderStore | None) -> None:
        self._transport, self._store = transport, store
        self.log: list[str] = []
        self.events: list[tuple[str, dict[str, Any]]] = []

    async def open_store(self) -> Store:
        if self._store is None:
            raise StoreError("no storage here")
        return self._store

    def engine(self) -> Engine:
        def emit(event: str, data: dict[str, Any]) -> None:
            self.events.append((event, data))

        return Engine(emit=emit, transport=self._transport, site=None, open_store=self.open_store, log=self.log.append)


@pytest.fixture
def session(transport: HttpTransport, tmp_path: Path) -> Session:
    (tmp_path / "store").mkdir()
    return Session(transport, FolderStore(tmp_path / "store"))


@pytest.fixture
def options(hub: Hub) -> dict[str, Any]:
    return {"model": "me/tiny", "hub": hub.url}


async def test_the_second_load_comes_from_storage(session: Session, hub: Hub, options: dict[str, Any]) -> None:
    engine = session.engine()
    first = await engine.load(options)
    assert first["commit"] == COMMIT
    assert first["storage"] == {"kept": True, "reason": None}
    assert (first["cached"], first["downloaded"] > 1_000_000) == (0, True)
    logits = await engine.logits({"ids": [1, 2]})
    hub.asked.clear()
    session.events.clear()
    engine = session.engine()
    second = await engine.load(options)
    assert hub.asked == []
    assert (second["downloaded"], second["cached"] > 1_000_000) == (0, True)
    assert np.array_equal(await engine.logits({"ids": [1, 2]}), logits)
    assert any(data.get("text") == "Reading the weights from storage" for _, data in session.events)
    last = [data for event, data in session.events if event == "progress"][-1]
    assert last["loaded"] == last["total"]
    assert last["downloaded"] == 0


async def test_storage_is_listed_and_forgotten(session: Session, hub: Hub, options: dict[str, Any]) -> None:
    engine = session.engine()
    await engine.load(options)
    storage = await engine.storage()
    assert [(model["model"], model["complete"]) for model in storage["models"]] == [("me/tiny", True)]
    await engine.forget("me/tiny")
    assert (await engine.storage())["models"] == []
    assert len(await engine.logits({"ids": [1]})) == 8192


async def test_cache_off_keeps_nothing(session: Session, hub: Hub, options: dict[str, Any]) -> None:
    engine = session.engine()
    report = await engine.load(options | {"cache": "off"})
    assert report["storage"]["kept"] is False
    assert (await engine.storage())["models"] == []


async def test_without_storage_it_says_so(transport: HttpTransport, hub: Hub, options: dict[str, Any]) -> None:
    engine = Session(transport, None).engine()
    report = await engine.load(options)
    assert report["storage"] == {"kept": False, "reason": "no storage here"}
    assert (await engine.storage())["reason"] == "no storage here"
    await engine.forget()


async def test_a_file_replaced_meanwhile_is_read_again_from_the_start(
    session: Session, hub: Hub, options: dict[str, Any]
) -> None:
    hub.fail(BIG, "changed-etag", times=1, after=1)
    report = await session.engine().load(options)
    assert report["storage"]["kept"] is True
    assert "Starting over" in session.log[-1]
    hub.asked.clear()
    assert (await session.engine().load(options))["downloaded"] == 0


async def test_a_file_that_never_stays_the_same_is_given_up(
    session: Session, hub: Hub, options: dict[str, Any]
) -> None:
    hub.fail(BIG, "changed-etag", times=1, after=1)
    hub.fail(BIG, "changed-etag", times=1, after=1)
    engine = session.engine()
    with pytest.raises(ChangedError, match="Load the model again"):
        await engine.load(options)
    assert (await engine.storage())["models"] == []


async def test_a_wrong_checksum_leaves_no_model(session: Session, hub: Hub, options: dict[str, Any]) -> None:
    hub.fail(BIG, "flip", times=1, after=1)
    engine = session.engine()
    with pytest.raises(ChecksumError, match="SHA-256"):
        await engine.load(options)
    assert engine.memory() == {}
    assert (await engine.storage())["models"] == []
    assert (await engine.load(options))["storage"]["kept"] is True
