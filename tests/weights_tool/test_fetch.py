"""`fetch` with the real huggingface_hub, from the double of the hub."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from tests.hub_double import COMMIT, Hub, hub_double
from tests.models import STORY, write_tiny
from weights_tool.__main__ import main

CHECKPOINTS = Path(__file__).parents[1] / "fixtures" / "checkpoints"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    write_tiny(tmp_path / "hub" / "me" / "tiny")
    with hub_double(tmp_path / "hub") as running:
        yield running


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)


def test_a_model_comes_into_a_folder(hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["fetch", "me/tiny", "--hub", hub.url, "--out", str(out)]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(out)
    original = hub.folder / "me" / "tiny"
    for name in ("config.json", "model.safetensors", "tokenizer.json", "vocab.json", "merges.txt"):
        assert (out / name).read_bytes() == (original / name).read_bytes()
    assert main(["verify", str(out)]) == 0
    hub.asked.clear()
    assert main(arguments) == 0
    assert not hub.requests("model.safetensors")


def test_without_out_the_cache_s_folder_is_told(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", "me/tiny", "--hub", hub.url]) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    assert folder.name == COMMIT
    assert main(["inspect", str(folder)]) == 0


def test_shards_and_pytorch_weights(hub: Hub, tmp_path: Path) -> None:
    tiny = hub.folder / "me" / "tiny"
    shards = ["convert", str(tiny), "--out", str(hub.folder / "me" / "shards"), "--max-file-mb", "0.5"]
    assert main(shards) == 0
    assert main(["fetch", "me/shards", "--hub", hub.url, "--out", str(tmp_path / "a")]) == 0
    assert main(["verify", str(tmp_path / "a")]) == 0
    old = hub.folder / "me" / "old"
    old.mkdir()
    parity = Path(__file__).parents[1] / "fixtures" / "parity" / "plain-f32"
    shutil.copyfile(parity / "config.json", old / "config.json")
    shutil.copyfile(CHECKPOINTS / "zip.bin", old / "pytorch_model.bin")
    assert main(["fetch", "me/old", "--hub", hub.url, "--out", str(tmp_path / "b")]) == 0
    assert main(["convert", str(tmp_path / "b"), "--out", str(tmp_path / "c")]) == 0


def test_what_is_missing_is_said(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    (hub.folder / "me" / "none").mkdir()
    shutil.copyfile(STORY / "config.json", hub.folder / "me" / "none" / "config.json")
    assert main(["fetch", "me/none", "--hub", hub.url]) == 1
    assert "has no model.safetensors" in capsys.readouterr().err
    assert main(["fetch", "me/nobody", "--hub", hub.url]) == 1
    assert "me/nobody has no config.json" in capsys.readouterr().err
    assert main(["fetch", "not a name", "--hub", hub.url]) == 1
    assert "not a name" in capsys.readouterr().err
    assert main(["fetch", "me/tiny", "--hub", "http://127.0.0.1:9"]) == 1
    assert "could not be fetched" in capsys.readouterr().err
