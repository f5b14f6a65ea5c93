"""What a model's files say about chatting: its template, the tokens that this names, and those that end an answer."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from app.engine.chat import find_template, special_names
from app.engine.errors import NotFoundError, WrongContentError
from app.engine.tokenizer import Tokenizer
from app.engine.weights.files import ModelFiles
from app.engine.weights.gguf import Gguf
from app.engine.weights.hub import parse_json

MAX_BYTES = 1 << 22
_GGUF_NAMES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


@dataclass(frozen=True, kw_only=True)
class ChatFiles:
    """What was found."""

    template: str | None = None
    names: dict[str, str] = field(default_factory=dict)
    """Special tokens by the names that templates use, as `bos_token`."""
    ends: set[int] = field(default_factory=set)
    """Tokens that end a text, as generation_config.json and the like have them."""


async def read_chat_files(source: ModelFiles, tokenizer: Tokenizer, gguf: Gguf | None) -> ChatFiles:
    """Read tokenizer_config.json, chat_template.jinja and generation_config.json, or the metadata of `gguf`.

    A model whose tokenizer has no special token but the end of a text was not taught to chat; nothing is read of it
    then. What is missing or damaged counts as absent. Raises HubError if the server fails.
    """
    if len(tokenizer.special) < 2:
        return ChatFiles()
    if gguf is not None:
        return _from_gguf(gguf, tokenizer)
    config, template, generation = await asyncio.gather(
        _json(source, "tokenizer_config.json"),
        _text(source, "chat_template.jinja"),
        _json(source, "generation_config.json"),
    )
    names = special_names(config)
    ends = generation.get("eos_token_id")
    found = {id_ for id_ in (ends if isinstance(ends, list) else [ends]) if _is_id(id_)}
    if names.get("eos_token") in tokenizer.special:
        found.add(tokenizer.special[names["eos_token"]])
    # The file of its own counts, where a repository has both.
    return ChatFiles(template=template or find_template(config.get("chat_template")), names=names, ends=found)


def _from_gguf(gguf: Gguf, tokenizer: Tokenizer) -> ChatFiles:
    meta = gguf.metadata
    found = {name: meta.get(f"tokenizer.ggml.{name}_token_id") for name in (*_GGUF_NAMES, "eot", "eom")}
    ids: dict[str, int] = {name: id_ for name, id_ in found.items() if _is_id(id_)}
    texts = {id_: text for text, id_ in tokenizer.special.items()}
    return ChatFiles(
        template=find_template(meta.get("tokenizer.chat_template")),
        names={_GGUF_NAMES[name]: texts[id_] for name, id_ in ids.items() if name in _GGUF_NAMES and id_ in texts},
        ends={ids[name] for name in ("eos", "eot", "eom") if name in ids},
    )


def _is_id(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


async def _text(source: ModelFiles, file: str) -> str | None:
    try:
        return (await source.read(file, MAX_BYTES)).decode("utf-8", "replace")
    except NotFoundError:
        return None


async def _json(source: ModelFiles, file: str) -> dict[str, Any]:
    try:
        made = parse_json(await source.read(file, MAX_BYTES), label=source.label(file))
    except (NotFoundError, WrongContentError):
        return {}
    return made if isinstance(made, dict) else {}
