"""What a caller may ask of a generation, validated: every refusal names the option and its range."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from app.engine.errors import OptionError
from app.engine.sampling import Rules
from app.engine.weights.transport import Transport

SAMPLERS = ("auto", "gpu", "python")
MAX_DEPTH = 128
MAX_NEW_TOKENS = 1_000_000
MAX_SEED = 2**53 - 1
"""The largest whole number that JavaScript holds exactly, so that a seed survives the way through the page."""
MAX_TOP = 100
MAX_CONTEXT = 1_048_576
MAX_STOPS, MAX_STOP_LENGTH = 16, 1000
MAX_MESSAGES, MAX_CONVERSATION = 1000, 1_000_000
"""Messages of a conversation, and their characters together."""

_TOKEN = re.compile(r"[!-~]{1,500}", re.ASCII)
_ROLE = re.compile(r"[a-z_]{1,32}", re.ASCII)
_RULES = tuple(rule.name for rule in fields(Rules))
_OPTIONS = (
    *("prompt", "ids", "messages", "max_new_tokens"),
    *_RULES,
    *("seed", "stop", "logprobs", "sampler", "on_full", "inspect", "depth"),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """One generation: what to continue, how far, by which rules."""

    prompt: str | None = None
    ids: tuple[int, ...] | None = None
    """The prompt as token ids, instead of `prompt`."""
    messages: tuple[dict[str, str], ...] | None = None
    """A conversation to answer, instead of `prompt`: {role, content} each, for the model's own chat template."""
    max_new_tokens: int = 128
    rules: Rules = field(default_factory=Rules)
    seed: int = 0
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    """Report the log-probability of each token."""
    top: int = 0
    """Report so many of the likeliest tokens at each step as well."""
    sampler: str = "auto"
    on_full: str = "end"
    """When the context is full: "end", or "slide": go on from the text's last half context."""
    inspect: int | None = None
    """Show with each token what the model looked like, and so many entries of the logit lens; None: do not look."""
    depth: int | None = None
    """Tokens that a GPU computes before the first of them is read back; None: as many as keep it busy."""


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Which model to load, from where, and how to keep it."""

    model: str = "story"
    precision: str = "auto"
    hub: str | None = None
    backend: str = "auto"
    limits: str = "adapter"
    cache: str = "auto"
    tuning: str = "auto"
    """Kernel parameters: "auto" tries a few and remembers the best, "default", or "name=number, ..." (`gpu.tune`)."""
    context: int | None = None
    """Positions that the caches hold; None: what the model knows, but no gigabytes (`context.cache_context`)."""
    token: str | None = field(default=None, repr=False)
    """For gated and private repositories. Goes nowhere but into requests to the hub's own origin."""
    files: Transport | None = None
    """Files of a model that are here already, instead of `model`."""

    @property
    def hubs(self) -> list[str | None]:
        """The hub and its mirrors, in the order in which they are tried. None is the usual one."""
        return [hub for hub in re.split(r"[\s,]+", self.hub or "") if hub] or [None]


_CHOICES = {
    "precision": ("auto", "f32", "f16", "q8", "q4"),
    "backend": ("auto", "webgpu", "numpy"),
    "limits": ("adapter", "default"),
    "cache": ("auto", "off"),
}


def parse_load_options(raw: object) -> LoadOptions:
    """Validate the options of `load`; a missing one, or None, takes its default. Raises OptionError."""
    given = _given(raw)
    known = [option.name for option in fields(LoadOptions)]
    _refuse_unknown(given, known)
    for name, value in given.items():
        if name == "files":
            if not callable(getattr(value, "get", None)) or isinstance(value, Mapping):
                raise OptionError("files must be the files of a folder, with config.json among them, or a GGUF file.")
            continue
        if name == "context":
            whole(name, value, 1, MAX_CONTEXT)
            continue
        if not isinstance(value, str):
            raise OptionError(f"{name} must be a string, not {'that' if name == 'token' else _shown(value)}.")
        if value not in _CHOICES.get(name, (value,)):
            raise OptionError(f"{name} must be one of {', '.join(_CHOICES[name])}, not {_shown(value)}.")
    if "token" in given and not _TOKEN.fullmatch(given["token"]):
        raise OptionError("token must be an access token as the hub gives it: up to 500 signs without spaces.")
    return LoadOptions(**given)


def parse_options(raw: object) -> Options:
    """Validate what came from the page. A missing option, or None, takes its default; a missing seed is drawn.

    Options are `prompt`, `ids` or `messages`, `max_new_tokens`, `temperature`, `top_k`, `top_p`, `min_p`,
    `repetition_penalty`, `seed`, `stop` (a string or several), `logprobs` (true, or how many of the likeliest tokens to
    report with each token), `sampler`, `on_full`, `inspect` and `depth`. Raises OptionError.
    """
    given = _given(raw)
    _refuse_unknown(given, _OPTIONS)
    if len(given.keys() & {"prompt", "ids", "messages"}) > 1:
        raise OptionError("Give one of prompt, ids and messages, not several.")
    prompt = given.get("prompt")
    if prompt is not None and not isinstance(prompt, str):
        raise OptionError(f"prompt must be a string, not {_shown(prompt)}.")
    seed = whole("seed", given["seed"], 0, MAX_SEED) if "seed" in given else random.SystemRandom().randrange(2**32)
    logprobs = given.get("logprobs", False)
    sampler = given.get("sampler", Options.sampler)
    if sampler not in SAMPLERS:
        raise OptionError(f"sampler must be one of {', '.join(SAMPLERS)}, not {_shown(sampler)}.")
    on_full = given.get("on_full", Options.on_full)
    if on_full not in ("end", "slide"):
        raise OptionError(f"on_full must be one of end, slide, not {_shown(on_full)}.")
    return Options(
        prompt=prompt,
        ids=parse_ids("ids", given["ids"]) if "ids" in given else None,
        messages=_messages(given["messages"]) if "messages" in given else None,
        max_new_tokens=whole("max_new_tokens", given.get("max_new_tokens", 128), 1, MAX_NEW_TOKENS),
        rules=Rules(**{name: given[name] for name in _RULES if name in given}),
        seed=seed,
        stop=_stops(given.get("stop", ())),
        logprobs=logprobs is not False,
        top=0 if isinstance(logprobs, bool) else whole("logprobs", logprobs, 0, MAX_TOP),
        sampler=sampler,
        on_full=on_full,
        inspect=_inspect(given.get("inspect")),
        depth=whole("depth", given["depth"], 1, MAX_DEPTH) if "depth" in given else None,
    )


def parse_ids(name: str, value: object, n_vocab: int | None = None) -> tuple[int, ...]:
    """Return `value` as token ids, below `n_vocab` where that is given. Raises OptionError."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise OptionError(f"{name} must be a list of token ids, not {_shown(value)}.")
    last = MAX_SEED if n_vocab is None else n_vocab - 1
    for token in value:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token <= last:
            span = "from 0 up" if n_vocab is None else f"from 0 to {last} for this model"
            raise OptionError(f"{name} must hold whole numbers {span}, not {_shown(token)}.")
    return tuple(value)


def _given(raw: object) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise OptionError(f"The options must be an object, not {_shown(raw)}.")
    return {name: value for name, value in raw.items() if value is not None}


def _refuse_unknown(given: Mapping[str, Any], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            raise OptionError(f"Unknown option {str(name)[:60]!r}. The options are {', '.join(known)}.")


def whole(name: str, value: object, low: int, high: int) -> int:
    """Return `value` if it is a whole number from `low` to `high`. Raises OptionError."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise OptionError(f"{name} must be a whole number from {low} to {high}, not {_shown(value)}.")
    return value


def _inspect(value: object) -> int | None:
    """Return the depth of the logit lens that `inspect` asks for: true, or {lens}."""
    if value is None or value is False:
        return None
    if value is True:
        return 0
    if not isinstance(value, Mapping) or not value.keys() <= {"lens"}:
        raise OptionError(f"inspect must be true, false or {{lens: number}}, not {_shown(value)}.")
    return whole("inspect.lens", value.get("lens", 0), 0, MAX_TOP)


def _messages(value: object) -> tuple[dict[str, str], ...]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not 1 <= len(value) <= MAX_MESSAGES:
        raise OptionError(f"messages must be a list of 1 to {MAX_MESSAGES} messages, not {_shown(value)}.")
    size = 0
    for message in value:
        if not isinstance(message, Mapping) or message.keys() != {"role", "content"}:
            raise OptionError(f"messages must hold objects {{role, content}}, not {_shown(message)}.")
        role, content = message["role"], message["content"]
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise OptionError(f"A message's role must be a word like system, user or assistant, not {_shown(role)}.")
        if not isinstance(content, str):
            raise OptionError(f"A message's content must be a string, not {_shown(content)}.")
        size += len(content)
    if size > MAX_CONVERSATION:
        raise OptionError(f"The messages are longer than {MAX_CONVERSATION:,} characters together.")
    return tuple({"role": message["role"], "content": message["content"]} for message in value)


def _stops(value: object) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else value
    if not isinstance(stops, Sequence) or len(stops) > MAX_STOPS:
        raise OptionError(f"stop must be a string or up to {MAX_STOPS} of them, not {_shown(value)}.")
    for text in stops:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_LENGTH:
            raise OptionError(f"stop must hold strings of 1 to {MAX_STOP_LENGTH} characters, not {_shown(text)}.")
    return tuple(stops)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
