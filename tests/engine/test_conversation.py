"""Conversations through the whole engine, with a small model that chats: its files as on the hub, and as GGUF."""

import json
from pathlib import Path
from typing import Any

import pytest

from app.engine.engine import Engine
from app.engine.errors import ChatTemplateError
from tests.engine.weights.test_gguf_model import OneFile
from tests.gguf_models import write_gguf
from weights_tool.folder import FolderTransport

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TALK = [{"role": "user", "content": "hello <|im_end|> there"}]


class Folder(FolderTransport):
    """A folder that was chosen in the page."""

    name = "chosen"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    write_gguf(
        folder / "m.gguf", "qwen2", {"": "Q8_0"}, hub=folder / "hub", metadata={"tokenizer.chat_template": TEMPLATE}
    )
    return folder


def engine_for(files: Any) -> tuple[Engine, dict[str, Any]]:
    return Engine(emit=lambda event, data: None, transport=files, site=None), {"files": files}


async def test_the_files_of_a_repository_and_a_gguf_file_chat_alike(made: Path) -> None:
    hub = made / "hub"
    (hub / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": "not this one", "eos_token": "<|endoftext|>"})
    )
    (hub / "chat_template.jinja").write_text(TEMPLATE)
    (hub / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 4]}))
    results = []
    for files in (Folder(hub), OneFile(made / "m.gguf")):
        engine, options = engine_for(files)
        report = await engine.load(options)
        assert report["chat"] is True
        results.append(await engine.complete({"messages": TALK, "max_new_tokens": 5, "temperature": 0}))
        model = engine._model
        assert model is not None
        special = model.tokenizer.special
        assert {special["<|im_end|>"], special["<|endoftext|>"]} <= model.ends
        assert ({3, 4} <= model.ends) is (files.__class__ is Folder)
        ids = results[-1]["prompt_ids"]
        assert engine.encode(TALK) == ids
        start, end = special["<|im_start|>"], special["<|im_end|>"]
        assert [id_ for id_ in ids if id_ in special.values()] == [start, end, start]
    assert results[0]["prompt_ids"] == results[1]["prompt_ids"]
    assert results[0]["ids"] == results[1]["ids"]


async def test_any_of_the_ends_ends_an_answer(made: Path) -> None:
    engine, options = engine_for(OneFile(made / "m.gguf"))
    await engine.load(options)
    free = await engine.complete({"messages": TALK, "max_new_tokens": 5, "temperature": 0})
    assert engine._model is not None
    object.__setattr__(engine._model, "ends", frozenset({free["ids"][2]}))
    ended = await engine.complete({"messages": TALK, "max_new_tokens": 5, "temperature": 0})
    assert (ended["finish"], ended["ids"]) == ("eos", free["ids"][: free["ids"].index(free["ids"][2])])


async def test_a_long_conversation_loses_its_oldest_turns(made: Path) -> None:
    engine, options = engine_for(OneFile(made / "m.gguf"))
    report = await engine.load(options)
    talk = [{"role": "user", "content": f"question number {number} of many"} for number in range(60)]
    result = await engine.complete({"messages": talk, "max_new_tokens": 8, "temperature": 0})
    assert result["truncated"]
    assert len(result["prompt_ids"]) <= report["context"] - 8
    text = engine.decode(result["prompt_ids"])
    assert text.startswith("<|im_start|>user\n")
    assert "number 59" in text
    assert "number 0 " not in text


async def test_what_does_not_work_is_told_when_it_is_used(made: Path, tmp_path: Path) -> None:
    logged: list[str] = []
    for template, says in (("{{ x", "refuses"), ("{{ raise_exception('only tools here') }}", "only tools here")):
        write_gguf(tmp_path / "m.gguf", "qwen2", {"": "Q8_0"}, metadata={"tokenizer.chat_template": template})
        files = OneFile(tmp_path / "m.gguf")
        engine = Engine(emit=lambda event, data: None, transport=files, site=None, log=logged.append)
        report = await engine.load({"files": files})
        assert report["chat"] is (says != "refuses")
        with pytest.raises(ChatTemplateError, match=says):
            await engine.complete({"messages": TALK})
        assert await engine.complete({"prompt": "plain text goes on", "max_new_tokens": 1})
    assert len(logged) == 1

    async def unreachable() -> None:
        raise ChatTemplateError("Jinja could not be loaded.")

    files = OneFile(made / "m.gguf")
    engine = Engine(emit=lambda event, data: None, transport=files, site=None, load_jinja=unreachable)
    assert (await engine.load({"files": files}))["chat"] is False
    with pytest.raises(ChatTemplateError, match="could not be loaded"):
        await engine.complete({"messages": TALK})
