import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from tests.engine.weights.test_gguf_model import MIXES, loaded, logits, source_of
from tests.gguf_models import CHAT, write_gguf
from weights_tool.__main__ import main
from weights_tool.folder import folder_source

TEXT = "It's 1234\n\n  <|endoftext|> e\u0301 word"


@pytest.mark.parametrize("arch", MIXES)
def test_a_converted_file_is_the_same_model(arch: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "model.gguf", tmp_path / "out"
    write_gguf(path, arch, MIXES[arch], metadata={"tokenizer.chat_template": CHAT})
    assert main(["convert", str(path), "--out", str(out), "--dtype", "F32"]) == 0
    assert "tokenizer.json" in capsys.readouterr().out
    assert main(["inspect", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["chat"] is True
    assert found["unused"] == []

    ids = [5, 9, 200, 3, 77, 1001, 4]
    ours, tokenizer, _ = asyncio.run(loaded(folder_source(out)))
    theirs, other, _ = asyncio.run(loaded(source_of(path)))
    expected = asyncio.run(logits(theirs, ids))
    found_logits = asyncio.run(logits(ours, ids))
    np.testing.assert_allclose(found_logits, expected, atol=2e-4 * max(1.0, float(np.abs(expected).max())))
    assert tokenizer.encode(TEXT) == other.encode(TEXT)
    assert tokenizer.encode(TEXT, allow_special=True) == other.encode(TEXT, allow_special=True)
    assert tokenizer.prefix == other.prefix


def test_a_file_is_inspected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "qwen2", {"": "Q4_0", "token_embd": "Q8_0"}, metadata={"tokenizer.chat_template": CHAT})
    assert main(["inspect", str(path)]) == 0
    out = capsys.readouterr().out
    assert "qwen2: 2 layers" in out
    assert "it has a chat template" in out
    assert "layers.0.self_attn.q_proj.weight" in out
    assert "nothing is wrong" in out
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:-5])
    assert main(["inspect", str(path)]) == 1
    assert "FAULT GgufError" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path / "none.gguf")]) == 1
    assert "no GGUF file" in capsys.readouterr().err
