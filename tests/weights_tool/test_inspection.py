import json
import shutil
from pathlib import Path

import pytest

from tests.hub_double import hub_double
from weights_tool.__main__ import main

ROOT = Path(__file__).parents[2]
STORY = ROOT / "static" / "models" / "story"


def test_the_story_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(STORY)]) == 0
    out = capsys.readouterr().out
    assert "13,989,888 parameters" in out
    assert "8192 tokens" in out
    assert "h.5.mlp.c_proj.weight" in out
    assert "nothing is wrong" in out


def test_json_is_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(STORY), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == 13_989_888
    assert found["weights_bytes"] == 2 * 13_989_888
    assert found["config"]["n_embd"] == 384
    assert found["tensors"]["wte.weight"] == {
        "dtype": "F16", "shape": [8192, 384], "bytes": 2 * 8192 * 384, "file": "model.safetensors",
    }  # fmt: skip
    assert found["tokenizer"] == {"tokens": 8192, "eos_id": 8191}
    assert found["faults"] == found["unused"] == []


def test_faults_are_told_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "model"
    shutil.copytree(ROOT / "tests" / "fixtures" / "parity" / "plain-f32", folder)
    assert main(["inspect", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "FAULT NotFoundError: vocab.json" in out or "FAULT NotFoundError: merges.txt" in out
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_inner": 77}))
    assert main(["inspect", str(folder)]) == 1
    assert "'h.0.mlp.c_fc.bias' has the shape [128], but config.json asks for [77]" in capsys.readouterr().out
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-5])
    assert main(["inspect", str(folder)]) == 1
    assert "FAULT SafetensorsError: model.safetensors of model" in capsys.readouterr().out


def test_no_such_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "/no/such"]) == 1
    assert "/no/such" in capsys.readouterr().err
    assert main(["inspect", str(ROOT / "wgsl")]) == 1
    assert "FAULT NotFoundError: config.json of wgsl" in capsys.readouterr().out


def test_a_repository_is_inspected_without_its_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(STORY, tmp_path / "me" / "story")
    with hub_double(tmp_path) as hub:
        assert main(["inspect", "me/story", "--hub", hub.url, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["parameters"] == 13_989_888
        assert found["page"]["bytes"] == 2 * 13_989_888
        assert 0 < found["page"]["requests"] < 20
        assert sum(len(asked.range or "") > 0 for asked in hub.requests("model.safetensors", origin="cdn")) == 1
        assert main(["inspect", f"{hub.url}me/story/resolve/main"]) == 0
        assert "the page would download 27,979,776 bytes of weights" in capsys.readouterr().out
        assert main(["inspect", "me/nothing", "--hub", hub.url]) == 1
        assert "FAULT NotFoundError" in capsys.readouterr().out
    assert main(["inspect", "nothing"]) == 1
    assert "is not a folder" in capsys.readouterr().err
