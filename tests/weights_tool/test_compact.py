"""tabgpt's own format: written by `quantize`, read by the engine's loader, and refused where it is not what it says."""

import asyncio
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from app.engine.errors import EngineError, ModelFileError, UnsupportedModelError
from app.engine.models import forward, nest, weight_specs
from app.engine.ops.eager import Array, EagerOps, KVCache
from app.engine.weights.compact import check_precision, metadata
from app.engine.weights.loader import check_tensors, load_tokenizer, open_checkpoint
from app.engine.weights.quantize import dequantize, quantize
from tests.models import STORY, write_tiny
from weights_tool.__main__ import main
from weights_tool.folder import folder_source
from weights_tool.inspection import inspect
from weights_tool.measure import logits, read_params

STORIES = (Path(__file__).parents[1] / "fixtures" / "stories.txt").read_text(encoding="utf-8").split("\n\n")


def write(folder: Path, scheme: str, *more: str, tied: bool = True) -> tuple[Path, Path]:
    """Write a model whose rows need padding, and the same quantised."""
    write_tiny(folder / "model", n_embd=48, n_head=3, tie_word_embeddings=tied)
    made = ["quantize", str(folder / "model"), "--to", scheme, "--out", str(folder / scheme), *more]
    assert main(made) == 0
    return folder / "model", folder / scheme


def rewrite(path: Path, change: Any, **named: str) -> None:
    """Change a safetensors file's arrays, and its metadata."""
    with path.open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    arrays = safetensors.numpy.load_file(path)
    change(arrays)
    safetensors.numpy.save_file(arrays, path, {**header["__metadata__"], **named})


def failure(folder: Path) -> EngineError:
    async def check() -> None:
        checkpoint = await open_checkpoint(folder_source(folder))
        check_tensors(checkpoint, weight_specs(checkpoint.config))

    with pytest.raises(EngineError) as caught:
        asyncio.run(check())
    return caught.value


@pytest.mark.parametrize("more", [(), ("--max-file-mb", "0.05")], ids=["whole", "split"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("scheme", ["q8", "q4"])
def test_what_is_read_is_what_was_quantised(tmp_path: Path, scheme: str, tied: bool, more: tuple[str, ...]) -> None:
    model, out = write(tmp_path, scheme, *more, tied=tied)
    before, after = asyncio.run(read_params(model)), asyncio.run(read_params(out))
    assert after.config == before.config
    assert set(after.params) == set(before.params)
    for name, array in before.params.items():
        if array.ndim == 1:
            expected = array
        elif name == "wpe.weight":
            expected = array.astype(np.float16).astype(np.float32)
        else:
            padded = np.pad(array, ((0, 0), (0, 16 if array.shape[1] % 32 else 0)))
            expected = dequantize(*quantize(padded, scheme), scheme)[:, : array.shape[1]]
        np.testing.assert_array_equal(after.params[name], expected)
    files = list(out.glob("*.safetensors"))
    assert (len(files) > 1) == bool(more)
    assert all(file.stat().st_size < 60_000 for file in files) or not more
    assert main(["verify", str(out)]) == 0


@pytest.mark.parametrize(("scheme", "smaller"), [("q8", 3.5), ("q4", 6.0)])
def test_sizes_and_the_report(tmp_path: Path, scheme: str, smaller: float, capsys: pytest.CaptureFixture[str]) -> None:
    write_tiny(tmp_path / "model", n_embd=64)
    capsys.readouterr()
    out = tmp_path / "out"
    assert main(["quantize", str(tmp_path / "model"), "--to", scheme, "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    found = asyncio.run(inspect(out))
    assert (found["format"], found["unused"], found["faults"]) == (scheme, [], [])
    assert found["weights_bytes"] == report["bytes"] == found["page"]["bytes"]
    assert smaller < asyncio.run(inspect(tmp_path / "model"))["weights_bytes"] / report["bytes"]
    relative = report["tensors"]["wte.weight"]["relative"]
    assert 0 < relative < {"q8": 0.01, "q4": 0.1}[scheme]
    assert report["tensors"]["ln_f.weight"] == {"largest": 0, "relative": 0}


def test_published_as_it_is(tmp_path: Path) -> None:
    _, out = write(tmp_path, "q4")
    assert main(["publish", str(out), "--out", str(tmp_path / "public")]) == 0
    np.testing.assert_array_equal(logits(tmp_path / "public", [1, 2]), logits(out, [1, 2]))
    assert "library_name: tabgpt" in (tmp_path / "public" / "README.md").read_text()


def test_neither_quantised_twice_nor_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = write(tmp_path, "q8")
    assert main(["quantize", str(out), "--to", "q4", "--out", str(tmp_path / "again")]) == 1
    assert "is in q8 already" in capsys.readouterr().err
    assert main(["convert", str(out), "--out", str(tmp_path / "again")]) == 1
    assert "Convert the original model" in capsys.readouterr().err


def test_damage_is_named(tmp_path: Path) -> None:
    _, out = write(tmp_path, "q8")
    path = out / "model.safetensors"
    name = "h.0.mlp.c_fc.weight"
    good = path.read_bytes()
    for change, says in (
        (lambda arrays: arrays.pop(f"{name}.scales"), "no tensor 'h.0.mlp.c_fc.weight.scales'"),
        (lambda arrays: arrays.update({f"{name}.codes": np.zeros((192, 15), np.uint32)}), "has the shape [192, 15]"),
        (lambda arrays: arrays.update({f"{name}.scales": np.ones((192, 2), np.float32)}), "words (U32)"),
    ):
        path.write_bytes(good)
        rewrite(path, change)
        error = failure(out)
        assert isinstance(error, ModelFileError)
        assert says in str(error)
    path.write_bytes(good)
    rewrite(path, lambda arrays: None, tabgpt_version="2")
    assert isinstance(error := failure(out), UnsupportedModelError)
    assert "Use a newer tabgpt" in str(error)


def test_a_strange_scale_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out = write(tmp_path, "q4")

    def change(arrays: dict[str, Any]) -> None:
        arrays["wte.weight.scales"][5, 1] = 0x00007C00  # an infinite f16

    rewrite(out / "model.safetensors", change)
    assert main(["verify", str(out)]) == 1
    assert "'wte.weight.scales' has 1 values that are NaN or infinite" in capsys.readouterr().out


def test_another_precision_is_refused() -> None:
    check_precision("auto", "q8", model="m")
    check_precision("q8", "q8", model="m")
    check_precision("f16", None, model="m")
    with pytest.raises(UnsupportedModelError, match=r"m is stored in q8.*precision q4 cannot be had"):
        check_precision("q4", "q8", model="m")
    assert metadata("q8") == {"tabgpt_format": "q8", "tabgpt_version": "1"}


class _AllPositions(EagerOps):
    def last(self, x: Array) -> Array:
        return x


async def _perplexity(folder: Path) -> float:
    """Over all stories, each read by itself and at once."""
    sink = await read_params(folder)
    config, params = sink.config, nest(sink.params)
    tokenizer = await load_tokenizer(folder_source(folder), config)
    losses: list[float] = []
    for story in STORIES:
        ids = [tokenizer.eos_id or 0, *tokenizer.encode(story.strip())]
        shape = (2, config.n_ctx, config.n_head, config.head_dim)
        cache = [KVCache(np.zeros(shape, np.float32)) for _ in range(config.n_layer)]
        model = forward(config)
        scores = model(np.array(ids), params, cache, config=config, ops=_AllPositions()).astype(np.float64)[:-1]
        scores -= scores.max(axis=1, keepdims=True)
        losses += list(np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(ids) - 1), ids[1:]])
    assert len(losses) > 800
    return float(np.exp(np.mean(losses)))


@pytest.mark.parametrize(("scheme", "bound"), [("q8", 0.01), ("q4", 0.05)])
def test_perplexity_of_the_story_model(
    tmp_path: Path, scheme: str, bound: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", str(STORY), "--to", scheme, "--out", str(tmp_path / scheme)]) == 0
    before, after = asyncio.run(_perplexity(STORY)), asyncio.run(_perplexity(tmp_path / scheme))
    with capsys.disabled():
        print(f"\n{scheme}: perplexity {before:.3f} before, {after:.3f} after ({after / before - 1:+.2%})")
    assert before != after
    assert abs(after / before - 1) <= bound
