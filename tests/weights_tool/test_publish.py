import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tests.models import STORY, write_tiny
from weights_tool.__main__ import main
from weights_tool.measure import logits
from weights_tool.verify import SUMS, file_sha256


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_tiny(tmp_path / "model")
    return tmp_path / "model"


def test_a_folder_for_a_static_host(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    (model / "notes.txt").write_text("not for others")
    arguments = [
        "publish",
        str(model),
        "--out",
        str(out),
        "--max-file-mb",
        "0.5",
        "--license",
        "mit",
        "--title",
        "Tiny",
    ]
    assert main(arguments) == 0
    assert "all verified" in capsys.readouterr().out
    assert not (out / "notes.txt").exists()
    card = (out / "README.md").read_text()
    assert "# Tiny" in card
    assert "license: mit" in card
    assert "289,664 parameters in F32: 2 layers" in card
    pairs = [line.split("  ") for line in (out / SUMS).read_text().splitlines()]
    sums = {name: digest for digest, name in pairs}
    assert sums.keys() == {path.name for path in out.iterdir()} - {SUMS}
    assert all(file_sha256(out / name) == digest for name, digest in sums.items())
    assert np.array_equal(logits(out, [7, 8]), logits(model, [7, 8]))
    assert main(["verify", str(out)]) == 0
    assert main(arguments) == 1
    assert main([*arguments, "--force"]) == 0


def test_an_own_model_card_is_kept(tmp_path: Path) -> None:
    assert main(["publish", str(STORY), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "README.md").read_text() == (STORY / "README.md").read_text()
    assert (tmp_path / "out" / "model.safetensors").stat().st_size < 29_000_000


def test_a_faulty_model_is_not_published(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(model, np.nan)
    assert main(["publish", str(model), "--out", str(tmp_path / "out")]) == 1
    assert "not fit to be published" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def spoil(model: Path, value: float) -> None:
    path = model / "model.safetensors"
    arrays = safetensors.numpy.load_file(path)
    arrays["transformer.h.0.mlp.c_fc.weight"][3, 4] = value
    safetensors.numpy.save_file(arrays, path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_verify_finds_what_is_no_number(model: Path, value: float, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(model)]) == 0
    assert "289,664 values read" in capsys.readouterr().out
    spoil(model, value)
    assert main(["verify", str(model)]) == 1
    assert "FAULT Tensor 'transformer.h.0.mlp.c_fc.weight' has 1 values" in capsys.readouterr().out


def test_verify_compares_checksums(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["publish", str(model), "--out", str(out)]) == 0
    (out / "README.md").write_text("changed")
    (out / "merges.txt").unlink()
    capsys.readouterr()
    assert main(["verify", str(out), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "README.md has another SHA-256 than SHA256SUMS says." in found["faults"]
    assert "merges.txt is missing, though SHA256SUMS names it." in found["faults"]
    assert found["sums"] > 3


def test_verify_tells_what_inspect_tells(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = (model / "model.safetensors").read_bytes()
    (model / "model.safetensors").write_bytes(data[:-5])
    assert main(["verify", str(model)]) == 1
    assert capsys.readouterr().out.count("SafetensorsError") == 1
    shutil.rmtree(model)
    assert main(["verify", str(model)]) == 1
    assert "is not a folder" in capsys.readouterr().err
