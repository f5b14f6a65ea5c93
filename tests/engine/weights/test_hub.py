import json
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from time import time
from typing import Any

import pytest

from app.engine.errors import (
    EngineError,
    GatedError,
    HubError,
    ModelFileError,
    NetworkError,
    NotFoundError,
    OfflineError,
    OptionError,
    RangeError,
    RateLimitedError,
    ServerError,
    TruncatedError,
    WrongContentError,
)
from app.engine.weights import hub as hub_module
from app.engine.weights.hub import MAX_WAIT, TRIES, Source, open_source
from app.engine.weights.transport import Response
from tests.engine.weights.conftest import Naps
from tests.engine.weights.http_transport import HttpTransport
from tests.hub_double import COMMIT, FAULTS, Hub

BIG, SMALL = "model.safetensors", "config.json"
DATA = bytes(range(256)) * 400
Open = Callable[..., Source]


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    folder = tmp_path / "some" / "model"
    folder.mkdir(parents=True)
    (folder / BIG).write_bytes(DATA)
    (folder / SMALL).write_text(json.dumps({"n_layer": 1}))


# Names and addresses


@pytest.mark.parametrize(
    ("model", "base"),
    {
        "some/model": "https://huggingface.co/some/model/resolve/main/",
        " some/model ": "https://huggingface.co/some/model/resolve/main/",
        "some/model@v1.0": "https://huggingface.co/some/model/resolve/v1.0/",
        "some/model@refs/pr/1": "https://huggingface.co/some/model/resolve/refs%2Fpr%2F1/",
        "some/model@a?b#c%": "https://huggingface.co/some/model/resolve/a%3Fb%23c%25/",
        "gpt2": "https://huggingface.co/openai-community/gpt2/resolve/main/",
        "gpt2-xl@abc": "https://huggingface.co/openai-community/gpt2-xl/resolve/abc/",
        "distilgpt2": "https://huggingface.co/distilbert/distilgpt2/resolve/main/",
        "story": "https://site.example/sub/models/story/",
        "https://host.example/my%20models/one": "https://host.example/my%20models/one/",
        "http://localhost:8123/": "http://localhost:8123/",
    }.items(),
)
def test_names_become_addresses(model: str, base: str, transport: HttpTransport) -> None:
    assert open_source(model, transport=transport, site="https://site.example/sub/").base == base


@pytest.mark.parametrize(
    "model",
    [
        "", "  ", "nameless", "a/b/c", "/b", "a/", "../b", "a/..", "a/b..c", "a b/c", "a/b@", "a/b@x y", "a/b@../main",
        "a/b?x", "a/b#x", "a\\b", ".a/b", "-a/b", "a/é", "a/b\n", "ftp://host/x", "https://", "https://u:p@host/x",
        "https://host/x?token=1", "https://host/x#y", "https://host:99999/x", "https://ho st/x", "file:///etc",
        "javascript://x", "a" * 97 + "/b",
    ],
)  # fmt: skip
def test_other_names_are_refused(model: str, transport: HttpTransport) -> None:
    if model == "a/b\n":  # only whitespace around it
        assert open_source(model, transport=transport).model == "a/b"
        return
    with pytest.raises(OptionError, match="model"):
        open_source(model, transport=transport)


def test_a_name_without_owner_gets_a_hint(transport: HttpTransport) -> None:
    with pytest.raises(OptionError, match=r"owner/name.*gpt2-xl"):
        open_source("gpt3", transport=transport)


@pytest.mark.parametrize(
    "address", ["https://me:s3cret@h/folder", "https://me:s3cret/x@h/", "https://h/f?token=s3cret", "https://h/#s3cret"]
)
def test_what_may_be_a_secret_is_not_repeated(address: str, transport: HttpTransport) -> None:
    with pytest.raises(OptionError, match="without a query or password") as refused:
        open_source(address, transport=transport)
    assert "s3cret" not in str(refused.value)


def test_the_hub_must_be_an_address(transport: HttpTransport) -> None:
    for hub in ("huggingface.co", "javascript:alert(1)", "https://h/?q"):
        with pytest.raises(OptionError, match=r"^hub must be an http"):
            open_source("a/b", hub=hub, transport=transport)
    with pytest.raises(OptionError, match="site"):
        open_source("story", transport=transport)


# What goes well


async def test_small_files_come_straight_and_tell_the_commit(hub: Hub, source: Open) -> None:
    model = source()
    assert await model.json(SMALL) == {"n_layer": 1}
    assert model.commit == COMMIT
    assert [asked.origin for asked in hub.asked] == ["hub"]


async def test_ranges_follow_the_redirect(hub: Hub, source: Open) -> None:
    blob = await source().read_range(BIG, 1000, 5000)
    assert blob.to_bytes() == DATA[1000:5000]
    assert [(asked.origin, asked.range, asked.status) for asked in hub.asked] == [
        ("hub", "bytes=1000-4999", 302),
        ("cdn", "bytes=1000-4999", 206),
    ]


async def test_no_header_is_sent_that_would_need_a_preflight(hub: Hub, source: Open) -> None:
    # httpx adds some of its own, the same to every request; Range is the only one that comes with a call.
    await source().read(SMALL)
    await source().read_range(BIG, 0, 10)
    assert set(hub.asked[1].headers) - set(hub.asked[0].headers) == {"range"}


async def test_the_head_of_a_short_file_is_all_of_it(source: Open) -> None:
    blob, size = await source().head(BIG, 10**6)
    assert blob.to_bytes() == DATA
    assert size == len(DATA)
    blob, size = await source().head(BIG, 100)
    assert (blob.to_bytes(), size) == (DATA[:100], len(DATA))


async def test_exists_costs_a_few_bytes(hub: Hub, source: Open) -> None:
    assert await source().exists(BIG)
    assert not await source().exists("pytorch_model.bin")
    assert {asked.range for asked in hub.asked} == {"bytes=0-255"}


async def test_a_page_for_every_address_is_no_file(hub: Hub, source: Open) -> None:
    hub.fail("pytorch_model.bin", "html")
    assert not await source().exists("pytorch_model.bin")


async def test_a_revision_is_one_part_of_the_path(source: Open) -> None:
    assert await source("some/model@refs/pr/1").json(SMALL)
    assert await source(f"some/model@{COMMIT}").json(SMALL)
    with pytest.raises(NotFoundError, match="'v9'"):
        await source("some/model@v9").json(SMALL)


async def test_progress_is_told_while_bytes_come(source: Open) -> None:
    told: list[int] = []
    await source().read_range(BIG, 0, len(DATA), told.append)
    assert told == sorted(told)
    assert told[-1] == len(DATA)


# Each fault has its own error


@pytest.mark.parametrize(
    ("kind", "error", "says"),
    [
        ("404", NotFoundError, "404"),
        ("401", GatedError, "private or gated"),
        ("403", GatedError, "private or gated"),
        ("429", RateLimitedError, "too many requests"),
        ("500", ServerError, "500"),
        ("503", ServerError, "503"),
        ("short", TruncatedError, "incomplete"),
        ("cut", TruncatedError, "incomplete"),
        ("long", TruncatedError, "incomplete"),
        ("html", WrongContentError, "web page"),
        ("html-no-type", WrongContentError, "web page"),
        ("lfs-pointer", WrongContentError, "Git LFS pointer"),
        ("wrong-range", RangeError, "bytes 0 to 49999.*sent 1 to 50000"),
        ("nonsense-range", RangeError, "Content-Range"),
        ("redirect-loop", NetworkError, "no answer"),
    ],
)
async def test_a_range_that_fails(hub: Hub, source: Open, kind: str, error: type[EngineError], says: str) -> None:
    hub.fail(BIG, kind)
    with pytest.raises(error, match=f"(?s){says}") as caught:
        await source().read_range(BIG, 0, 50_000)
    assert type(caught.value) is error
    assert BIG in str(caught.value)
    assert hub.url.split("/")[2] in str(caught.value)
    hub.heal()
    assert (await source().read_range(BIG, 0, 50_000)).to_bytes() == DATA[:50_000]


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("404", NotFoundError),
        ("401", GatedError),
        ("429", RateLimitedError),
        ("500", ServerError),
        ("cut", TruncatedError),
        ("html", WrongContentError),
        ("lfs-pointer", WrongContentError),
    ],
)
async def test_a_small_file_that_fails(hub: Hub, source: Open, kind: str, error: type[EngineError]) -> None:
    hub.fail(SMALL, kind)
    with pytest.raises(error, match=SMALL):
        await source().json(SMALL)


async def test_a_compressed_body_is_read_and_its_length_not_believed(hub: Hub, source: Open) -> None:
    hub.fail(BIG, "gzip")
    seen: list[int] = []
    blob = await source().read_range(BIG, 100, 50_100, seen.append)
    assert blob.to_bytes() == DATA[100:50_100]
    assert seen[-1] == 50_000


def test_every_fault_of_the_double_is_tested_somewhere() -> None:
    here = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert not {kind for kind in FAULTS - {"no-cors"} if f'"{kind}"' not in here}


async def test_broken_json_is_wrong_content(tmp_path: Path, source: Open) -> None:
    for text in ('{"n_layer": 1', "[" * 100_000, "\xff"):
        (tmp_path / "some" / "model" / SMALL).write_text(text, "latin-1")
        with pytest.raises(WrongContentError, match="not valid JSON"):
            await source().json(SMALL)


async def test_a_text_file_cannot_be_endless(source: Open) -> None:
    with pytest.raises(ModelFileError, match="longer than 1000 bytes"):
        await source().read(BIG, max_bytes=1000)


async def test_a_range_beyond_the_end(source: Open) -> None:
    with pytest.raises(RangeError, match="cut off"):
        await source().read_range(BIG, len(DATA) - 10, len(DATA) + 10)
    with pytest.raises(RangeError, match="shorter"):
        await source().read_range(BIG, len(DATA), len(DATA) + 10)


async def test_a_hidden_content_range_is_no_fault(hub: Hub, source: Open) -> None:
    hub.fail(BIG, "no-range-header")
    assert (await source().read_range(BIG, 7, 99)).to_bytes() == DATA[7:99]
    blob, size = await source().head(BIG, 10)
    assert (blob.nbytes, size) == (10, None)


async def test_a_file_that_changes_its_length(hub: Hub, source: Open) -> None:
    hub.fail(BIG, "changed-size", after=1)
    model = source()
    await model.read_range(BIG, 0, 10)
    with pytest.raises(RangeError, match="changed its length"):
        await model.read_range(BIG, 10, 20)


async def test_a_small_file_may_come_whole_and_is_kept(hub: Hub, source: Open) -> None:
    hub.fail(BIG, "ignore-range")
    model = source()
    assert (await model.read_range(BIG, 100, 300)).to_bytes() == DATA[100:300]
    assert (await model.read_range(BIG, 0, 10)).to_bytes() == DATA[:10]
    assert (await model.head(BIG, 10**6))[1] == len(DATA)
    with pytest.raises(RangeError, match="cut off"):
        await model.read_range(BIG, 0, 10**6)
    assert len(hub.requests(BIG, origin="cdn")) == 1


async def test_a_big_file_may_not(hub: Hub, source: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "WHOLE_FILE", 50_000)
    hub.fail(BIG, "ignore-range")
    with pytest.raises(RangeError, match="the server ignored the range"):
        await source().read_range(BIG, 100, 300)
    assert len(hub.requests(BIG, origin="cdn")) == 1


async def test_nobody_there(transport: HttpTransport, naps: Naps) -> None:
    model = open_source("a/b", hub="http://127.0.0.1:1", transport=transport, sleep=naps)
    with pytest.raises(NetworkError, match=r"config.json of a/b \(127.0.0.1:1\) could not be fetched"):
        await model.read(SMALL)
    assert len(naps.seconds) == hub_module.NETWORK_TRIES - 1


# Retries


@pytest.mark.parametrize("kind", ["429", "500", "503", "short", "cut", "long"])
async def test_what_passes_is_tried_again(hub: Hub, source: Open, naps: Naps, kind: str) -> None:
    hub.fail(BIG, kind, times=TRIES - 1)
    told: list[int] = []
    blob = await source().read_range(BIG, 5, 90_005, told.append)
    assert blob.to_bytes() == DATA[5:90_005]
    assert naps.seconds == [0.5, 1, 2, 4]
    assert told[-1] == 90_000


@pytest.mark.parametrize("kind", ["404", "401", "html", "lfs-pointer", "wrong-range"])
async def test_what_does_not_pass_is_asked_once(hub: Hub, source: Open, naps: Naps, kind: str) -> None:
    hub.fail(BIG, kind)
    with pytest.raises(HubError):
        await source().read_range(BIG, 0, 1000)
    assert naps.seconds == []


async def test_retry_after_in_seconds_is_honoured(hub: Hub, source: Open, naps: Naps) -> None:
    hub.fail(BIG, "429", times=2, retry_after="7")
    await source().read_range(BIG, 0, 10)
    assert naps.seconds == [7, 7]


async def test_retry_after_as_a_date_is_honoured(hub: Hub, source: Open, naps: Naps) -> None:
    hub.fail(BIG, "503", times=1, retry_after=formatdate(time() + 20, usegmt=True))
    await source().read_range(BIG, 0, 10)
    assert 15 < naps.seconds[0] <= 20


@pytest.mark.parametrize("retry_after", ["soon", "-5", "9" * 40, "1e3", ""])
async def test_a_senseless_retry_after_is_ignored(hub: Hub, source: Open, naps: Naps, retry_after: str) -> None:
    hub.fail(BIG, "429", times=1, retry_after=retry_after)
    await source().read_range(BIG, 0, 10)
    assert naps.seconds == [0.5]


async def test_the_wait_is_bounded(hub: Hub, source: Open, naps: Naps) -> None:
    hub.fail(BIG, "429", retry_after="25")
    with pytest.raises(RateLimitedError):
        await source().read_range(BIG, 0, 10)
    assert sum(naps.seconds) <= MAX_WAIT
    hub.heal()
    hub.fail(BIG, "429", retry_after="3600")
    naps.seconds.clear()
    with pytest.raises(RateLimitedError):
        await source().read_range(BIG, 0, 10)
    assert naps.seconds == []


class Unsteady(HttpTransport):
    """Without a network for the requests of some numbers, and with one again when waited for."""

    def __init__(self, offline: set[int], *, returns: bool = True) -> None:
        super().__init__()
        self.offline, self.returns = offline, returns
        self.asked = 0
        self.waits: list[float] = []

    async def get(self, url: str, **options: Any) -> Response:
        self.asked += 1
        if self.asked in self.offline:
            raise OfflineError("the browser is offline")
        return await super().get(url, **options)

    async def back_online(self, seconds: float) -> bool:
        self.waits.append(seconds)
        return self.returns


async def test_a_download_that_has_begun_waits_for_the_network(hub: Hub, naps: Naps) -> None:
    transport = Unsteady({2, 3, 4, 5, 6, 7})
    model = open_source("some/model", hub=hub.url, transport=transport, sleep=naps)
    said: list[str] = []
    model.on_wait = said.append
    await model.read(SMALL)
    assert (await model.read_range(BIG, 10, 20)).to_bytes() == bytes(range(10, 20))
    assert len(transport.waits) == 6
    assert naps.seconds == []
    assert "goes on when the network is back" in said[0]
    await transport.client.aclose()


@pytest.mark.parametrize(("offline", "returns"), [({1}, True), ({2}, False)])
async def test_without_a_network_at_the_start_or_for_long_it_fails(
    hub: Hub, naps: Naps, offline: set[int], returns: bool
) -> None:
    transport = Unsteady(offline, returns=returns)
    model = open_source("some/model", hub=hub.url, transport=transport, sleep=naps)
    if 1 not in offline:
        await model.read(SMALL)
    with pytest.raises(NetworkError, match="offline"):
        await model.read(SMALL)
    await transport.client.aclose()
