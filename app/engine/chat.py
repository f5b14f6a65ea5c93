"""Conversations as a model was trained to read them: its own chat template, rendered and encoded.

What a user writes stays text: a special token that a message spells does not become one. So the template gets messages
in which such spellings are broken by a mark that is no character, and the mark is taken out again once the template's
own special tokens have been found.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from app.engine.errors import ChatTemplateError, OptionError
from app.engine.tokenizer import Tokenizer

if TYPE_CHECKING:
    from jinja2 import Template

Message = Mapping[str, str]
"""{role, content}."""

MAX_TEMPLATE = 128 << 10
"""Characters."""
MARK = "\ufdd0"
"""Breaks a special token in a message. A noncharacter: no text that is exchanged has it."""
_PROBE = "\ufdd1"


class Chat:
    """One model's chat template."""

    def __init__(self, template: str, tokenizer: Tokenizer, *, names: Mapping[str, str] | None = None) -> None:
        """Compile `template`. `names` are what it may call by name, as `bos_token`.

        Raises ChatTemplateError if it is damaged. Imports jinja2.
        """
        from app.engine.chat_sandbox import ChatEnvironment

        if len(template) > MAX_TEMPLATE:
            raise ChatTemplateError(f"The model's chat template is longer than {MAX_TEMPLATE} characters.")
        self._tokenizer = tokenizer
        self._names = dict(names or {})
        self._environment = ChatEnvironment()
        self._special = re.compile(
            "|".join(map(re.escape, sorted(tokenizer.special, key=len, reverse=True))) or r"(?!)"
        )
        self._template: Template = self._guarded(lambda: self._environment.from_string(template))

    def render(self, messages: Iterable[Message], *, prompt: bool = True) -> str:
        """Return the conversation as text, with the beginning of an answer if `prompt`.

        Raises ChatTemplateError if the template refuses it, or asks for too much.
        """
        return self._render([dict(message) for message in messages], prompt=prompt)

    def encode(self, messages: Sequence[Message], room: int | None = None) -> tuple[list[int], bool]:
        """Return the ids of a conversation that the model is to answer, and whether early messages were left out.

        That happens if there are more than `room` ids: the oldest go first, but for a system message at the beginning
        and the last one. Raises ChatTemplateError, or OptionError for an empty conversation.
        """
        if not messages:
            raise OptionError("messages must hold at least one message.")
        kept = list(messages)
        first = 1 if kept[0]["role"] in ("system", "developer") else 0
        while True:
            ids = self._encode(kept)
            if room is None or len(ids) <= room or len(kept) <= first + 1:
                return ids, len(kept) < len(messages)
            # An answer without its question would come first then, which many templates refuse.
            stop = first + 1
            while stop < len(kept) - 1 and kept[stop]["role"] != "user":
                stop += 1
            del kept[first:stop]

    def turn_ends(self) -> set[int]:
        """Return the special token that ends an answer, if the template shows one."""
        talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": _PROBE}]
        try:
            _, found, rest = self._render(talk, prompt=False).partition(_PROBE)
        except ChatTemplateError:
            return set()
        match = self._special.search(rest) if found else None
        return {self._tokenizer.special[match.group()]} if match else set()

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        text = self._render([{**message, "content": self._marked(message["content"])} for message in messages])
        return self._tokenizer.encode_marked(text, MARK)

    def _marked(self, content: str) -> str:
        clean = content.replace(MARK, "\ufffd")
        return self._special.sub(lambda match: match.group()[0] + MARK + match.group()[1:], clean)

    def _render(self, messages: list[dict[str, str]], *, prompt: bool = True) -> str:
        text: str = self._guarded(
            lambda: self._template.render(messages=messages, add_generation_prompt=prompt, **self._names)
        )
        return text

    def _guarded(self, work: Any) -> Any:
        from jinja2 import TemplateError

        self._environment.start()
        try:
            return work()
        except TemplateError as error:
            raise ChatTemplateError(
                f"The model's chat template refuses this conversation: {str(error)[:300]}."
            ) from error
        except RecursionError as error:
            raise ChatTemplateError("The model's chat template calls itself without an end.") from error
        except (ArithmeticError, AttributeError, LookupError, MemoryError, SyntaxError, TypeError, ValueError) as error:
            raise ChatTemplateError(
                f"The model's chat template does not work ({type(error).__name__}: {str(error)[:200]}). Use the model "
                "without it, or tell its owner."
            ) from error


def special_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the special tokens that a tokenizer_config.json names, as templates use them (`bos_token`)."""
    names = {}
    for name in ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"):
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            names[name] = value[:1000]
    return names


def find_template(value: object) -> str | None:
    """Return the template in a tokenizer_config.json's chat_template: a text, or several with names."""
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default", next(iter(named.values()), None))
    return value if isinstance(value, str) and value.strip() else None
