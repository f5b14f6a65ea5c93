import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from app.server import pure_wheel as module
from app.server.errors import SetupError
from app.server.pure_wheel import CHAT, pure_wheel


def test_the_wheels_work_without_compiled_code(tmp_path: Path) -> None:
    for name in CHAT:
        file, content = pure_wheel(name)
        assert pure_wheel(name) == (file, content)
        with zipfile.ZipFile(io.BytesIO(content)) as wheel:
            assert not [member for member in wheel.namelist() if member.endswith((".so", ".pyd", ".pyc", ".c"))]
            assert any("license" in member.lower() for member in wheel.namelist())
            wheel.extractall(tmp_path)
    # As in the page: nothing else of the environment is there.
    code = "import jinja2, markupsafe, json, sys; t = jinja2.Template('{{ x | e }}{{ [1] | tojson }}').render(x='<'); "
    code += "print(json.dumps([t, jinja2.__file__, markupsafe.__file__, 'markupsafe._speedups' in sys.modules]))"
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, check=True)
    text, *files, compiled = json.loads(done.stdout)
    assert (text, compiled) == ("&lt;[1]", False)
    assert all(file.startswith(str(tmp_path)) for file in files)


def test_pip_takes_them_for_wheels(tmp_path: Path) -> None:
    for name in CHAT:
        file, content = pure_wheel(name)
        (tmp_path / file).write_bytes(content)
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--disable-pip-version-check"]
        subprocess.run(
            [*command, "--target", str(tmp_path / "out"), str(tmp_path / file)], capture_output=True, check=True
        )
    assert (tmp_path / "out" / "jinja2" / "sandbox.py").is_file()
    assert (tmp_path / "out" / "markupsafe" / "_native.py").is_file()


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SetupError, match="no-such-package is not installed"):
        pure_wheel("no-such-package")

    class Empty:
        files = None
        version = "1"

    monkeypatch.setattr(module, "distribution", lambda name: Empty())
    with pytest.raises(SetupError, match="lacks its files"):
        pure_wheel("jinja2")
