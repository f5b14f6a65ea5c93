import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from app.engine.models import weight_specs
from app.engine.ops.eager import EagerRunner, NumpySink
from app.engine.weights.loader import load_tokenizer, open_checkpoint, stream
from tests.engine.models.test_config import FAMILIES as CONFIGS
from weights_tool.__main__ import main
from weights_tool.folder import folder_source
from weights_tool.presets import PRESETS
from weights_tool.random_model import random_tensors, read_config
from weights_tool.writing import encode, total_bytes

STORY = Path(__file__).parents[2] / "static" / "models" / "story"
TINY = {
    "model_type": "gpt2",
    "n_layer": 2,
    "n_head": 4,
    "n_embd": 64,
    "vocab_size": 8200,
    "n_positions": 32,
    "n_inner": 100,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


def values(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= safetensors.numpy.load_file(path)
    return found


@pytest.mark.parametrize(
    ("name", "parameters"),
    # As the papers' models have them, the tied lm_head counted once.
    [("gpt2", 124_439_808), ("gpt2-medium", 354_823_168), ("gpt2-large", 774_030_080), ("gpt2-xl", 1_557_611_200),
     ("distilgpt2", 81_912_576), ("smollm2-135m", 134_515_008), ("llama-3.2-1b", 1_235_814_400),
     ("qwen2.5-0.5b", 494_032_768), ("qwen3-0.6b", 596_049_920), ("tinystories-33m", 68_514_048),
     ("pythia-70m", 70_426_624)],
)  # fmt: skip
def test_the_presets_have_the_models_true_sizes(name: str, parameters: int) -> None:
    assert total_bytes(random_tensors(read_config(name), seed=0), "F32") == 4 * parameters
    assert name in PRESETS


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
async def test_it_writes_what_the_loader_reads(config: Path, tmp_path: Path, dtype: str) -> None:
    out = tmp_path / "deep" / "out"
    assert main(["random", str(config), "--out", str(out), "--dtype", dtype, "--vocab", str(STORY)]) == 0
    source = folder_source(out)
    checkpoint = await open_checkpoint(source)
    assert {ref.dtype for ref in checkpoint.tensors.values()} == {dtype}
    assert (await load_tokenizer(source, checkpoint.config)).encode("Lily") != []
    sink = NumpySink(checkpoint.config)
    await stream(checkpoint, weight_specs(checkpoint.config), sink, source=source)
    runner = EagerRunner(checkpoint.config, sink.params)
    await runner.feed([1, 500, 20])
    logits = await runner.logits()
    assert 0.7 < logits.std() < 1.4
    assert not list(out.glob("*.part"))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt_neo", "gpt_neox"])
async def test_every_family(tmp_path: Path, family: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[family]))
    assert main(["random", str(path), "--out", str(tmp_path / "out")]) == 0
    source = folder_source(tmp_path / "out")
    checkpoint = await open_checkpoint(source)
    sink = NumpySink(checkpoint.config)
    await stream(checkpoint, weight_specs(checkpoint.config), sink, source=source)
    runner = EagerRunner(checkpoint.config, sink.params)
    await runner.feed([1, 50, 20])
    assert 0.7 < (await runner.logits()).std() < 1.4
    prefix = {"gpt_neo": "transformer.", "gpt_neox": "gpt_neox."}.get(family, "model.")
    assert all(name.startswith((prefix, "lm_head.")) for name in values(tmp_path / "out"))


def test_names_are_transformers_own(config: Path, tmp_path: Path) -> None:
    main(["random", str(config), "--out", str(tmp_path / "out")])
    found = values(tmp_path / "out")
    assert "transformer.h.1.mlp.c_fc.weight" in found
    assert found["transformer.h.1.mlp.c_fc.weight"].shape == (64, 100)
    assert "lm_head.weight" not in found
    config.write_text(json.dumps(TINY | {"tie_word_embeddings": False}))
    main(["random", str(config), "--out", str(tmp_path / "untied")])
    assert values(tmp_path / "untied")["lm_head.weight"].shape == (8200, 64)


def test_the_seed_decides(config: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        main(["random", str(config), "--out", str(tmp_path / name), "--seed", str(seed)])
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_shards_hold_the_same_weights(config: Path, tmp_path: Path) -> None:
    main(["random", str(config), "--out", str(tmp_path / "one")])
    main(["random", str(config), "--out", str(tmp_path / "many"), "--max-shard-mb", "0.1"])
    one, many = values(tmp_path / "one"), values(tmp_path / "many")
    assert one.keys() == many.keys()
    assert all(np.array_equal(one[name], many[name]) for name in one)
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == one.keys()
    assert index["metadata"]["total_size"] == sum(array.nbytes for array in one.values())
    files = list((tmp_path / "many").glob("model-*.safetensors"))
    assert {path.name for path in files} == set(index["weight_map"].values())
    assert len(files) > 3
    # The table alone is larger than a shard may be; every other file keeps to it.
    assert sorted(path.stat().st_size for path in files)[-2] < 110_000


def test_bf16_rounds_to_nearest_even() -> None:
    given = np.array([1.0, -2.5, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3e38, 1e-40], np.float32)
    back = (np.frombuffer(encode(given, "BF16"), "<u2").astype("<u4") << 16).view("<f4")
    assert back[:5].tolist() == [1.0, -2.5, 1.0, 1 + 2**-6, 1 + 2**-7]
    assert np.allclose(back[5:], given[5:], rtol=2**-8, atol=1e-40)


def test_a_model_is_not_overwritten_by_accident(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["random", str(config), "--out", out, "--max-shard-mb", "0.1"]) == 0
    assert main(["random", str(config), "--out", out]) == 1
    assert "--force" in capsys.readouterr().err
    assert main(["random", str(config), "--out", out, "--force"]) == 0
    assert [path.name for path in sorted(Path(out).iterdir())] == ["config.json", "model.safetensors"]


def test_errors_are_one_line(config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "out")
    assert main(["random", "gpt5", "--out", out]) == 1
    assert "gpt2-xl" in capsys.readouterr().err
    config.write_text('{"model_type": "mamba"}')
    assert main(["random", str(config), "--out", out]) == 1
    assert "mamba" in capsys.readouterr().err
    config.write_text(json.dumps(TINY | {"vocab_size": 100}))
    assert main(["random", str(config), "--out", out, "--vocab", str(STORY)]) == 1
    assert "8192 tokens, but the config's vocab_size is only 100" in capsys.readouterr().err
    assert main(["random", str(config), "--out", out, "--vocab", str(tmp_path)]) == 1
    assert "tokenizer.json" in capsys.readouterr().err
    assert not Path(out).exists()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["random"],
        ["random", "gpt2"],
        ["random", "gpt2", "--out", "x", "--dtype", "Q8"],
        ["random", "gpt2", "--out", "x", "--seed", "-1"],
        ["random", "gpt2", "--out", "x", "--max-shard-mb", "0"],
        ["random", "gpt2", "--out", "x", "--max-shard-mb", "nan"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_status_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_help_teaches(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, word in (
        (["--help"], "inspect"),
        (["random", "--help"], "--vocab"),
        (["inspect", "--help"], "--json"),
        (["fetch", "--help"], "huggingface-cli login"),
        (["convert", "--help"], "nanoGPT"),
        (["quantize", "--help"], "--text"),
        (["verify", "--help"], "SHA256SUMS"),
        (["publish", "--help"], "--max-file-mb 24"),
    ):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 0
        assert word in capsys.readouterr().out
