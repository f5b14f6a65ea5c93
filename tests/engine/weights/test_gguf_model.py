"""Models in GGUF files: the same numbers and the same tokens as from the hub's own files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.chat_files import read_chat_files
from app.engine.errors import GgufError, TokenizerError, UnsupportedModelError
from app.engine.models import weight_specs
from app.engine.ops.eager import EagerRunner, NumpySink
from app.engine.tokenizer import Tokenizer
from app.engine.weights.gguf import Gguf
from app.engine.weights.gguf_model import config, tensors, vocabulary
from app.engine.weights.hub import Source, local_source
from app.engine.weights.loader import check_tensors, load_tokenizer, open_checkpoint, stream
from app.engine.weights.precision import counted, main_precision, mixed
from app.engine.weights.safetensors import TensorRef
from tests.gguf_models import CHAT, write_gguf
from weights_tool.folder import FolderTransport, folder_source

MIXES: dict[str, dict[str, str]] = {
    "llama": {"": "Q4_K", "attn_v": "Q6_K", "ffn_down": "Q5_K", "attn_output": "Q5_1", "token_embd": "Q6_K"},
    "qwen2": {"": "Q4_0", "ffn_up": "Q5_0", "attn_k": "Q8_0", "token_embd": "Q8_0"},
    "qwen3": {"": "Q8_0", "ffn_down": "BF16", "token_embd": "F16"},
    "gpt2": {"": "Q4_1", "ffn_up": "Q6_K", "attn_qkv": "F16", "token_embd": "Q4_1"},
}


class OneFile(FolderTransport):
    """A folder of which a GGUF file was chosen."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent)
        self.gguf = path.name


def source_of(path: Path) -> Source:
    return local_source(OneFile(path), path.name)


async def loaded(source: Source) -> tuple[EagerRunner, Tokenizer, Any]:
    checkpoint = await open_checkpoint(source)
    specs = weight_specs(checkpoint.config)
    sink = NumpySink(checkpoint.config)
    # In small pieces, so that matrices are cut.
    await stream(checkpoint, specs, sink, source=source, piece_bytes=20_000)
    tokenizer = await load_tokenizer(source, checkpoint.config, checkpoint.gguf)
    return EagerRunner(checkpoint.config, sink.params), tokenizer, checkpoint


async def logits(runner: EagerRunner, ids: list[int]) -> NDArray[np.float32]:
    runner.rewind(0)
    await runner.feed(ids)
    return await runner.logits()


@pytest.mark.parametrize("arch", MIXES)
async def test_a_gguf_file_is_the_model_that_it_was_made_from(arch: str, tmp_path: Path) -> None:
    head = "Q8_0" if arch == "qwen2" else None
    write_gguf(tmp_path / "model.gguf", arch, MIXES[arch], hub=tmp_path / "hub", head=head)
    ours, tokenizer, _ = await loaded(source_of(tmp_path / "model.gguf"))
    theirs, other, _ = await loaded(folder_source(tmp_path / "hub"))
    assert ours.config.family == arch
    assert ours.config.tied is (head is None)
    for ids in ([5, 9, 200, 3, 77, 1001, 4], list(range(40, 90))):
        found, expected = await logits(ours, ids), await logits(theirs, ids)
        np.testing.assert_allclose(found, expected, atol=2e-4 * max(1.0, float(np.abs(expected).max())))
    for text in ("It's 1234\n\n  <|endoftext|> e\u0301 word", "", "  \r\n"):
        assert tokenizer.encode(text) == other.encode(text)
        assert tokenizer.encode(text, allow_special=True) == other.encode(text, allow_special=True)
    assert tokenizer.prefix == other.prefix


async def test_each_matrix_is_kept_as_it_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "qwen2", {"": "Q4_0", "attn_k": "Q8_0", "ffn_down": "F16", "token_embd": "Q6_K"})
    checkpoint = await open_checkpoint(source_of(path))
    specs = weight_specs(checkpoint.config)
    kept = mixed(checkpoint, specs, asked="auto")
    assert kept is not None
    layer = {name.removeprefix("layers.0."): precision for name, precision in kept.precisions.items() if ".0." in name}
    joined = {spec.target: spec.name for spec in specs if spec.kind == "matrix" and spec.into and ".0." in spec.name}
    assert kept.precisions["embed_tokens.weight"] == "q8"
    assert layer["self_attn.o_proj.weight"] == "q4"
    assert "mlp.down_proj.weight" not in layer
    # Queries, keys and values are one matrix for the model: the finest precision among them.
    (qkv,) = {name for name in joined if "self_attn" in name}
    assert kept.precisions[qkv] == "q8"
    assert ("Q4_0", "q8") in kept.conversions
    assert ("F16", "") in kept.conversions
    assert main_precision(kept, specs) == "q4"
    assert set(counted(kept, specs, "f16")) == {"q4", "q8", "f16"}
    asked = mixed(checkpoint, specs, asked="f16")
    assert asked is not None
    assert asked.precisions == {}
    assert counted(asked, specs, "f16").keys() == {"f16"}


async def test_a_template_and_the_tokens_that_end_a_turn_come_from_the_metadata(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "qwen2", {}, metadata={"tokenizer.chat_template": CHAT})
    source = source_of(path)
    checkpoint = await open_checkpoint(source)
    tokenizer = await load_tokenizer(source, checkpoint.config, checkpoint.gguf)
    found = await read_chat_files(source, tokenizer, checkpoint.gguf)
    assert found.template == CHAT
    assert found.names == {"eos_token": "<|endoftext|>"}
    assert found.ends == {tokenizer.special["<|endoftext|>"]}


# Metadata that lies or is not understood

REF = TensorRef(file="m.gguf", dtype="F32", shape=(8, 4), start=0, stop=128)


def gguf(**metadata: Any) -> Gguf:
    meta = {"general.architecture": "llama", "llama.embedding_length": 4, "llama.attention.head_count": 2} | metadata
    return Gguf(file="m.gguf", metadata=meta, tensors={"token_embd.weight": REF})


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"general.architecture": "mamba"}, "architecture is 'mamba'"),
        ({"general.architecture": ["llama"]}, "architecture is"),
        ({"split.count": 3}, "split into 3"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.scaling.type": "yarn"}, "scaling.type is 'yarn'"),
        ({"llama.attention.key_length": 64, "llama.rope.dimension_count": 32}, "turns 32 of 64"),
    ],
)
def test_what_the_engine_lacks_is_refused_by_name(metadata: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        config(gguf(**metadata), None)


def test_a_file_without_its_embedding_is_refused() -> None:
    with pytest.raises(GgufError, match="no token_embd"):
        config(Gguf(file="m.gguf", metadata={"general.architecture": "llama"}, tensors={}), None)


def test_linear_scaling_and_unknown_tensors_are_passed_on() -> None:
    raw = config(gguf(**{"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}), None)
    assert raw["rope_scaling"] == {"rope_type": "linear", "factor": 4.0}
    assert raw["rope_interleaved"] is True
    found = Gguf(
        file="m.gguf", metadata=gguf().metadata, tensors={"token_embd.weight": REF, "blk.7.strange.weight": REF}
    )
    assert set(tensors(found)) == {"embed_tokens.weight", "blk.7.strange.weight"}


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3s_scaling_is_recognised_by_its_factors(factor: float) -> None:
    """The factors are computed as llama.cpp's converter does, from the formula of transformers."""
    head_dim, theta = 64, 500_000.0
    wavelengths = 2 * np.pi * theta ** (np.arange(0, head_dim, 2) / head_dim)
    low, high = 8192 / 1.0, 8192 / 4.0
    smooth = (8192 / wavelengths - 1) / 3
    middle = 1 / ((1 - smooth) / factor + smooth)
    factors = np.where(wavelengths < high, 1.0, np.where(wavelengths > low, factor, middle)).astype("<f4")
    raw = config(gguf(**{"llama.rope.freq_base": theta}), factors.tobytes())
    assert raw["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    for other in (factors * 1.1, factors[:-1], np.full(32, np.nan, "<f4"), np.zeros(0, "<f4")):
        with pytest.raises(UnsupportedModelError, match="rope_freqs"):
            config(gguf(**{"llama.rope.freq_base": theta}), np.asarray(other, "<f4").tobytes())


TOKENS = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|end|>", "a", "b", "ab", "<tag>", "x"],
    "tokenizer.ggml.token_type": [3, 1, 1, 1, 4, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 0,
}


def test_tokens_have_the_kinds_that_the_metadata_gives_them() -> None:
    tokenizer = Tokenizer(vocabulary(gguf(**TOKENS)))
    assert tokenizer.encode("ab<tag>b", allow_special=True) == [3, 4, 2]
    assert tokenizer.encode("<|end|>ab", allow_special=True) == [0, 3]
    assert 0 not in tokenizer.encode("<|end|>")
    assert tokenizer.prefix == ()
    assert Tokenizer(vocabulary(gguf(**TOKENS | {"tokenizer.ggml.add_bos_token": True}))).prefix == (0,)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "llama"}, "no SentencePiece"),
        ({"model": None}, "kind 'None'"),
        ({"pre": "tekken"}, "'tekken'"),
        ({"pre": None}, "'None'"),
        ({"pre": ["smollm"]}, "cuts text"),
        ({"tokens": "abc"}, "no whole vocabulary"),
        ({"tokens": ["a"]}, "no whole vocabulary"),
        ({"tokens": [1, 2, 3, 4, 5, 6]}, "no whole vocabulary"),
        ({"merges": [7]}, "no whole vocabulary"),
        ({"merges": ["a z"]}, "needs the token 'z'"),
        ({"tokens": ["<|end|>", "a", "b", "ab", "<tag>", "a"]}, "are both 'a'"),
    ],
)
def test_a_damaged_or_foreign_vocabulary_is_refused(changes: dict[str, Any], says: str) -> None:
    changed = TOKENS | {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    with pytest.raises(TokenizerError, match=says):
        vocabulary(gguf(**changed))


async def test_a_tensor_of_another_shape_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "qwen2", {})
    checkpoint = await open_checkpoint(source_of(path))
    checkpoint.tensors["norm.weight"] = REF
    with pytest.raises(Exception, match=r"norm\.weight.*has the shape \[8, 4\]"):
        check_tensors(checkpoint, weight_specs(checkpoint.config))
