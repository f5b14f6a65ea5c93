import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from tests.models import write_tiny
from weights_tool.__main__ import main
from weights_tool.measure import logits, perplexity

TEXT = "Once upon a time there was a little dog. The dog liked to run in the park, and it ran all day long."


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_tiny(tmp_path / "model")
    return tmp_path / "model"


def test_f16_halves_the_weights_and_reports_the_error(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, text = tmp_path / "out", tmp_path / "text.txt"
    text.write_text(TEXT)
    capsys.readouterr()
    assert main(["quantize", str(model), "--to", "f16", "--out", str(out), "--text", str(text), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    before = safetensors.numpy.load_file(model / "model.safetensors")
    after = safetensors.numpy.load_file(out / "model.safetensors")
    assert (
        report["bytes"] == sum(array.nbytes for array in after.values()) == sum(a.nbytes for a in before.values()) // 2
    )
    for name, array in before.items():
        difference = after[name].astype(np.float64) - array
        assert report["tensors"][name]["largest"] == pytest.approx(np.abs(difference).max())
        relative = np.sqrt((difference**2).sum() / (array.astype(np.float64) ** 2).sum()) if array.any() else 0
        assert report["tensors"][name]["relative"] == pytest.approx(relative)
        assert relative < 1e-3
    assert report["perplexity"]["before"] == pytest.approx(perplexity(model, TEXT, 256))
    assert report["perplexity"]["after"] == pytest.approx(report["perplexity"]["before"], rel=1e-2)
    assert np.abs(logits(out, [5, 6]) - logits(model, [5, 6])).max() < 3e-2
    assert main(["verify", str(out)]) == 0


def test_text_output_and_shards(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["quantize", str(model), "--to", "f16", "--out", str(out), "--max-file-mb", "0.1"]) == 0
    said = capsys.readouterr().out
    assert "relative error" in said
    assert "transformer.h.1.mlp.c_fc.weight" in said
    assert len(list(out.glob("*.safetensors"))) > 1
    assert np.abs(logits(out, [5, 6]) - logits(model, [5, 6])).max() < 3e-2


def test_perplexity_of_a_model_that_knows_nothing(tmp_path: Path) -> None:
    write_tiny(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    arrays = safetensors.numpy.load_file(path)
    safetensors.numpy.save_file({name: np.zeros_like(array) for name, array in arrays.items()}, path)
    assert perplexity(tmp_path / "model", TEXT * 5, 100) == pytest.approx(8192)


@pytest.mark.parametrize(("value", "says"), [(1e6, "is too large for F16"), (np.inf, "is no finite number")])
def test_what_f16_cannot_hold_is_refused(
    model: Path, tmp_path: Path, value: float, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = model / "model.safetensors"
    arrays = safetensors.numpy.load_file(path)
    arrays["transformer.ln_f.weight"][3] = value
    safetensors.numpy.save_file(arrays, path)
    assert main(["quantize", str(model), "--to", "f16", "--out", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert "transformer.ln_f.weight" in message
    assert says in message
    assert not list((tmp_path / "out").glob("*"))


def test_the_original_stays(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(model), "--to", "f16", "--out", str(model), "--force"]) == 1
    assert "Choose another" in capsys.readouterr().err
    assert main(["verify", str(model)]) == 0
