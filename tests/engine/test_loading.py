"""Loading as the engine does it, with a store: what is reported, kept, started over and given up."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.engine import Engine
from app.engine.errors import ChangedError, ChecksumError, GatedError, NetworkError, NotFoundError, OptionError
from app.engine.options import parse_load_options
from app.engine.weights.cache import Store, StoreError
from tests.engine.weights.folder_store import FolderStore
from tests.engine.weights.http_transport import HttpTransport
from tests.hub_double import COMMIT, Hub, hub_double
from tests.models import write_tiny
from weights_tool.folder import FolderTransport

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

        return Engine(
            emit=emit,
            transport=self._transport,
            site=None,
            open_store=self.open_store,
            log=self.log.append,
            authorized=self._authorized,
        )

    def _authorized(self, token: str, hub: str) -> HttpTransport:
        made = HttpTransport(token=token, hub=hub)
        made.client = self._transport.client
        return made


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


async def test_a_store_is_opened_once(
    session: Session, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    async def open_slowly() -> Store:
        opened.append(1)
        await asyncio.sleep(0.05)
        return await Session.open_store(session)

    monkeypatch.setattr(session, "open_store", open_slowly)
    engine = session.engine()
    report, storage = await asyncio.gather(engine.load(options), engine.storage())
    assert (report["storage"]["kept"], storage["reason"], len(opened)) == (True, None, 1)


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


async def test_a_token_goes_to_the_hub_and_nowhere_else(session: Session, hub: Hub, options: dict[str, Any]) -> None:
    hub.token = "hf_secret"
    with pytest.raises(GatedError, match="give an access token"):
        await session.engine().load(options)
    with pytest.raises(GatedError):
        await session.engine().load(options | {"token": "hf_wrong"})
    hub.asked.clear()
    report = await session.engine().load(options | {"token": "hf_secret"})
    shown: dict[str, set[str | None]] = {asked.origin: set() for asked in hub.asked}
    for asked in hub.asked:
        shown[asked.origin].add(asked.headers.get("authorization"))
    assert shown == {"hub": {"Bearer hf_secret"}, "cdn": {None}}
    assert "hf_" not in str([report, session.events, session.log])
    # Not even an error about it repeats it.
    with pytest.raises(OptionError) as caught:
        await session.engine().load(options | {"token": "hf_ secret"})
    assert "hf_" not in str(caught.value)
    assert "hf_secret" not in repr(parse_load_options(options | {"token": "hf_secret"}))


async def test_the_first_mirror_that_answers_is_used(
    session: Session, hub: Hub, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.engine.weights.hub.NETWORK_TRIES", 1)
    engine = session.engine()
    report = await engine.load(options | {"hub": f"http://127.0.0.1:9, {hub.url}"})
    assert report["model"] == "me/tiny"
    assert "Trying the next hub" in session.log[0]
    with pytest.raises(NetworkError, match=r"127\.0\.0\.1:7"):
        await session.engine().load(options | {"hub": "http://127.0.0.1:9,http://127.0.0.1:7"})
    with pytest.raises(OptionError, match="hub must be"):
        await session.engine().load(options | {"hub": f"{hub.url} nonsense", "token": "t"})


async def test_what_only_one_mirror_lacks_is_its_own_error(session: Session, hub: Hub, options: dict[str, Any]) -> None:
    """A hub that answers, if only that there is no such model, is the one that counts."""
    with pytest.raises(NotFoundError):
        await session.engine().load({"model": "me/nothing", "hub": f"{hub.url},http://127.0.0.1:9"})


async def test_files_that_are_here(session: Session, hub: Hub, options: dict[str, Any]) -> None:
    engine = session.engine()
    await engine.load(options)
    logits = await engine.logits({"ids": [5]})
    report = await engine.load({"files": FolderTransport(hub.folder / "me" / "tiny")})
    assert (report["model"], report["downloaded"], report["cached"]) == ("files", 0, 0)
    assert report["storage"] == {"kept": False, "reason": None}
    assert np.array_equal(await engine.logits({"ids": [5]}), logits)
    with pytest.raises(OptionError, match="files must be"):
        await engine.load({"files": {"config.json": b""}})


async def test_compressed_answers_never_show_more_than_all(session: Session, hub: Hub, options: dict[str, Any]) -> None:
    engine = session.engine()
    await engine.load(options | {"cache": "off"})
    logits = await engine.logits({"ids": [5]})
    for file in (BIG, "config.json", "tokenizer.json"):
        hub.fail(file, "gzip")
    session.events.clear()
    await engine.load(options | {"cache": "off"})
    assert np.array_equal(await engine.logits({"ids": [5]}), logits)
    progress = [data for event, data in session.events if event == "progress"]
    assert [data["loaded"] for data in progress] == sorted(data["loaded"] for data in progress)
    assert all(data["loaded"] <= data["total"] for data in progress)
    assert progress[-1]["loaded"] == progress[-1]["total"]
