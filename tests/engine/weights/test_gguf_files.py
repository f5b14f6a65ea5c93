"""Which GGUF file of a repository is taken, and that it is kept like any other model."""

from collections.abc import Callable
from pathlib import Path

import pytest

from app.engine.errors import ChecksumError, HubError, ModelFileError, NotFoundError
from app.engine.models import weight_specs
from app.engine.models.config import LlamaConfig
from app.engine.ops.eager import NumpySink
from app.engine.weights.cache import Cache, CachedFiles
from app.engine.weights.hub import LISTING, Source, open_source
from app.engine.weights.loader import Checkpoint, load_tokenizer, open_checkpoint, stream
from tests.engine.weights.folder_store import FolderStore
from tests.engine.weights.http_transport import HttpTransport
from tests.gguf_models import write_gguf
from tests.hub_double import COMMIT, Hub

Open = Callable[[str], Source]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("made") / "m.gguf"
    write_gguf(path, "llama", {"": "Q4_0", "token_embd": "Q8_0"})
    return path.read_bytes()


@pytest.fixture
def repository(hub: Hub, gguf: bytes) -> Path:
    folder = hub.folder / "me" / "model-GGUF"
    (folder / "old").mkdir(parents=True)
    for name in ("model.Q8_0.gguf", "model-Q4_K_M.gguf", "model-Q4_K_M-extra.gguf", "old/model.Q4_1.gguf"):
        (folder / name).write_bytes(gguf)
    for name in ("big-00001-of-00002.gguf", "mmproj-model.gguf"):
        (folder / name).write_bytes(b"not to be taken")
    (folder / "README.md").write_text("# a model")
    return folder


@pytest.fixture
def opened(hub: Hub, transport: HttpTransport) -> Open:
    return lambda model: open_source(model, hub=hub.url, transport=transport)


async def fetch(files: Source | CachedFiles) -> Checkpoint:
    checkpoint = await open_checkpoint(files)
    specs = weight_specs(checkpoint.config)
    assert isinstance(checkpoint.config, LlamaConfig)
    await stream(checkpoint, specs, NumpySink(checkpoint.config), source=files)
    assert (await load_tokenizer(files, checkpoint.config, checkpoint.gguf)).encode("the")
    return checkpoint


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("me/model-GGUF/model.Q8_0.gguf", "model.Q8_0.gguf"),
        ("me/model-GGUF/old/model.Q4_1.gguf@main", "old/model.Q4_1.gguf"),
        ("me/model-GGUF:Q8_0", "model.Q8_0.gguf"),
        ("me/model-GGUF:q4_1@main", "old/model.Q4_1.gguf"),
        (f"me/model-GGUF:Q8_0@{COMMIT}", "model.Q8_0.gguf"),
        ("me/model-GGUF:extra", "model-Q4_K_M-extra.gguf"),
    ],
)
async def test_a_file_is_named_whole_or_by_a_part(repository: Path, opened: Open, name: str, file: str) -> None:
    source = opened(name)
    assert (await fetch(source)).files == (file,)
    assert source.model == name.split("@")[0]
    assert source.commit == COMMIT


async def test_a_repository_without_other_weights_gives_the_usual_one(repository: Path, opened: Open) -> None:
    (repository / "model-Q4_K_M-extra.gguf").unlink()
    assert (await open_checkpoint(opened("me/model-GGUF"))).files == ("model-Q4_K_M.gguf",)
    (repository / "model-Q4_K_M.gguf").unlink()
    assert (await open_checkpoint(opened("me/model-GGUF"))).files == ("model.Q8_0.gguf",)


async def test_what_is_not_there_is_named_with_what_is(repository: Path, hub: Hub, opened: Open) -> None:
    with pytest.raises(NotFoundError, match=r"'Q2_K'.*model-Q4_K_M\.gguf, model\.Q8_0\.gguf"):
        await open_checkpoint(opened("me/model-GGUF:Q2_K"))
    with pytest.raises(NotFoundError, match="or several have"):
        await open_checkpoint(opened("me/model-GGUF:model"))
    for path in repository.rglob("*.gguf"):
        path.unlink()
    with pytest.raises(NotFoundError, match=r"config\.json"):
        await open_checkpoint(opened("me/model-GGUF"))
    with pytest.raises(NotFoundError, match="There are none"):
        await open_checkpoint(opened("me/model-GGUF:Q8_0"))
    hub.fail("me/model-GGUF/revision/main", "html")
    with pytest.raises(HubError):
        await open_checkpoint(opened("me/model-GGUF:Q8_0"))


async def test_a_mirror_without_lists_still_gives_a_file_by_its_name(repository: Path, hub: Hub, opened: Open) -> None:
    hub.lists = False
    source = opened("me/model-GGUF/model.Q8_0.gguf")
    await fetch(source)
    assert source.commit is None


async def test_it_is_kept_and_checked_like_any_other(
    repository: Path, hub: Hub, opened: Open, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache = Cache(FolderStore(tmp_path_factory.mktemp("kept")))
    first = await cache.open(opened("me/model-GGUF:Q8_0"))
    await fetch(first)
    await first.check()
    await first.finish()
    assert len(hub.requests("raw/model.Q8_0.gguf")) == 1
    hub.asked.clear()
    # Another file of the same repository is another model: it is not complete because the first one is.
    other = await cache.open(opened("me/model-GGUF:Q4_1"))
    assert not other.complete
    again = await cache.open(opened("me/model-GGUF:Q8_0"))
    assert again.complete
    await fetch(again)
    assert hub.requests() == []
    assert {kept["model"] for kept in await cache.models()} >= {"me/model-GGUF:Q8_0"}
    await cache.forget("me/model-GGUF:Q8_0")
    assert not (await cache.open(opened("me/model-GGUF:Q8_0"))).complete


async def test_the_usual_one_is_found_again_without_the_hub(
    repository: Path, hub: Hub, opened: Open, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (repository / "model-Q4_K_M-extra.gguf").unlink()
    cache = Cache(FolderStore(tmp_path_factory.mktemp("kept")))
    files = await cache.open(opened("me/model-GGUF"))
    await fetch(files)
    await files.finish()
    hub.asked.clear()
    again = await cache.open(opened("me/model-GGUF"))
    assert (await fetch(again)).files == ("model-Q4_K_M.gguf",)
    assert hub.requests() == []


async def test_an_altered_file_is_noticed(
    repository: Path, hub: Hub, opened: Open, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cache = Cache(FolderStore(tmp_path_factory.mktemp("kept")))
    files = await cache.open(opened("me/model-GGUF/model.Q8_0.gguf"))
    hub.fail("model.Q8_0.gguf", "flip", times=1, after=1)
    try:
        await fetch(files)
    except ModelFileError:
        return  # the bit was one of the header's
    with pytest.raises(ChecksumError):
        await files.check()


def test_addresses_of_files(transport: HttpTransport) -> None:
    def opened(model: str) -> Source:
        return open_source(model, transport=transport, site="https://page.example/x/")

    source = opened("https://example.org/models/some%20model.gguf")
    assert (source.base, source.gguf, source.repository) == ("https://example.org/models/", "some model.gguf", None)
    for address in (
        "https://huggingface.co/me/model-GGUF/resolve/main/model.Q8_0.gguf?download=true",
        "https://huggingface.co/me/model-GGUF/blob/main/model.Q8_0.gguf",
    ):
        source = opened(address)
        assert (source.model, source.revision) == ("me/model-GGUF/model.Q8_0.gguf", "main")
        assert source.repository == "https://huggingface.co/me/model-GGUF"
    source = opened("smollm2")
    assert (source.base, source.gguf) == ("https://page.example/x/models/smollm2/", "model.gguf")
    assert opened("https://example.org/folder").gguf is None


async def test_without_a_hub_there_is_no_list(transport: HttpTransport) -> None:
    with pytest.raises(NotFoundError, match="list of files"):
        await open_source("https://example.org/x/", transport=transport).read(LISTING)
