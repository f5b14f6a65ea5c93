import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from app.engine.tokenizer import Tokenizer
from weights_tool.__main__ import main
from weights_tool.convert import BYTES
from weights_tool.measure import logits

ROOT = Path(__file__).parents[2]
STORY = ROOT / "static" / "models" / "story"
FIXTURES = ROOT / "tests" / "fixtures"
PARITY, CHECKPOINTS = FIXTURES / "parity", FIXTURES / "checkpoints"


def check_parity(case: str, folder: Path) -> None:
    for prompt in json.loads((PARITY / case / "expected.json").read_text())["prompts"]:
        assert np.abs(logits(folder, prompt["ids"]) - np.array(prompt["logits"])).max() < 2e-3


@pytest.mark.parametrize("file", ["zip.bin", "legacy.bin"])
def test_pytorch_checkpoints(tmp_path: Path, file: str) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    shutil.copyfile(PARITY / "plain-f32" / "config.json", source / "config.json")
    shutil.copyfile(CHECKPOINTS / file, source / "pytorch_model.bin")
    assert main(["convert", str(source), "--out", str(out)]) == 0
    check_parity("plain-f32", out)
    names = safetensors.numpy.load_file(out / "model.safetensors").keys()
    assert "transformer.h.1.mlp.c_fc.weight" in names
    assert "transformer.h.0.attn.bias" not in names
    original = safetensors.numpy.load_file(PARITY / "plain-f32" / "model.safetensors")
    for name, array in safetensors.numpy.load_file(out / "model.safetensors").items():
        assert np.array_equal(array, original[name])


@pytest.mark.parametrize(
    "case",
    [
        *("bf16-sharded-untied-1009", "gelu-erf-sharded", "tied-but-stored", "tied-but-different"),
        *("head-without-table", "llama-biases-llama3", "qwen3-head-24", "neo-local-windows", "neox-parallel"),
    ],
)
def test_safetensors_of_every_kind(tmp_path: Path, case: str) -> None:
    assert main(["convert", str(PARITY / case), "--out", str(tmp_path), "--dtype", "F32", "--max-file-mb", "0.02"]) == 0
    check_parity(case, tmp_path)
    assert (tmp_path / "model.safetensors.index.json").is_file()


def test_nanogpt(tmp_path: Path) -> None:
    meta = str(CHECKPOINTS / "meta.pkl")
    assert main(["convert", str(CHECKPOINTS / "nano.pt"), "--out", str(tmp_path), "--meta", meta]) == 0
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["n_positions"], config["vocab_size"], config["activation_function"]) == (32, 65, "gelu")
    expected = json.loads((CHECKPOINTS / "nano.json").read_text())
    found = logits(tmp_path, expected["ids"])
    assert found.shape == (65,)
    assert np.abs(found - np.array(expected["logits"])[:65]).max() < 1e-4
    files = {name: (tmp_path / name).read_bytes() for name in ("vocab.json", "merges.txt")}
    tokenizer = Tokenizer.from_files(files)
    text = "To be, or not\nto be!"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode(text)) == len(text)
    assert main(["inspect", str(tmp_path)]) == 0


def test_nanogpt_without_a_tokenizer_keeps_its_padding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(CHECKPOINTS / "nano.pt"), "--out", str(tmp_path)]) == 0
    assert "no tokenizer" in capsys.readouterr().out
    expected = json.loads((CHECKPOINTS / "nano.json").read_text())
    assert np.abs(logits(tmp_path, expected["ids"]) - np.array(expected["logits"])).max() < 1e-4


def test_a_pickle_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mark = Path("/tmp/this-was-run")
    mark.unlink(missing_ok=True)
    assert main(["convert", str(CHECKPOINTS / "evil.bin"), "--out", str(tmp_path)]) == 1
    assert "system, which no weights need" in capsys.readouterr().err
    assert not mark.exists()


@pytest.mark.parametrize("keep", [0, 10, 300, 2000, 60_000])
@pytest.mark.parametrize("file", ["zip.bin", "legacy.bin"])
def test_a_cut_checkpoint_is_refused(tmp_path: Path, file: str, keep: int, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copyfile(PARITY / "plain-f32" / "config.json", tmp_path / "config.json")
    (tmp_path / "pytorch_model.bin").write_bytes((CHECKPOINTS / file).read_bytes()[:keep])
    assert main(["convert", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "pytorch_model.bin" in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*.safetensors*"))


def test_what_does_not_fit_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(PARITY / "plain-f32", tmp_path / "a")
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    (tmp_path / "a" / "config.json").write_text(json.dumps(config | {"n_layer": 3}))
    assert main(["convert", str(tmp_path / "a"), "--out", str(tmp_path / "out")]) == 1
    assert "no tensor 'h.2.ln_1.weight'" in capsys.readouterr().err
    (tmp_path / "a" / "config.json").write_text(json.dumps(config | {"n_inner": 5}))
    assert main(["convert", str(tmp_path / "a"), "--out", str(tmp_path / "out")]) == 1
    assert "[5] is wanted" in capsys.readouterr().err
    (tmp_path / "a" / "config.json").unlink()
    assert main(["convert", str(tmp_path / "a"), "--out", str(tmp_path / "out")]) == 1
    assert "no config.json" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 1
    assert "does not exist" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["convert", str(tmp_path / "empty"), "--out", str(tmp_path / "out")]) == 1
    assert "holds no weights" in capsys.readouterr().err


def test_the_story_model_keeps_its_dtype_and_tokenizer(tmp_path: Path) -> None:
    assert main(["convert", str(STORY), "--out", str(tmp_path)]) == 0
    assert (tmp_path / "tokenizer.json").read_bytes() == (STORY / "tokenizer.json").read_bytes()
    arrays = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float16)}


def test_stand_ins_of_bytes_are_gpt2s() -> None:
    assert (BYTES[ord(" ")], BYTES[ord("\n")], BYTES[ord("a")], BYTES[0]) == ("Ġ", "Ċ", "a", "Ā")
    assert len(set(BYTES)) == 256
