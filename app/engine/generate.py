"""The token loop: prompt in, tokens out, whichever backend computes and whichever sampler chooses."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from app.engine.errors import DeviceLostError, OptionError
from app.engine.options import Options, parse_ids
from app.engine.runner import Runner
from app.engine.stop import StopFilter
from app.engine.token_source import Token, TokenSource, source_for
from app.engine.tokenizer import StreamDecoder, Tokenizer

FINISHES = ("length", "eos", "stop", "cancelled", "context")


@dataclass(frozen=True, kw_only=True)
class Started:
    """The prompt is encoded and about to be read."""

    prompt_ids: list[int]
    truncated: bool
    """The prompt was too long for the context; only its end was kept."""
    seed: int


@dataclass(frozen=True, kw_only=True)
class TokenEvent:
    """One token, with the text that it completes: empty while a character or a stop string may still be going on.

    Text that turns out not to be a stop string only after the last token comes in one event without an id.
    """

    text: str
    id: int | None = None
    logprob: float | None = None
    top: list[tuple[int, float]] = field(default_factory=list)
    inside: dict[str, Any] | None = None
    """See `token_source.Token`."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a generation came to. The texts of the token events, joined, are `text`."""

    text: str
    """Without the stop string and what follows it, and without a last character that was left unfinished."""
    ids: list[int]
    """The new tokens, with those that spelled a stop string and without the end-of-text token."""
    prompt_ids: list[int]
    """What the model read: the prompt's tokens, or their end if truncated."""
    finish: str
    """One of FINISHES."""
    truncated: bool
    seed: int
    logprobs: list[float] | None
    top: list[list[tuple[int, float]]] | None
    timings: dict[str, float | int | None]
    """prefill_ms: reading the prompt, to the first token's logits and choice. first_token_ms: from the call to the
    first token. decode_ms: from the first token to the last. tokens_per_second: of these later tokens; None for fewer
    than two. prompt_tokens, new_tokens. reused: how many of the prompt's tokens the cache held already."""


async def generate(
    runner: Runner,
    tokenizer: Tokenizer,
    options: Options,
    *,
    eos_id: int | None,
    ends: Collection[int] = (),
    prefill_chunk: int | None = None,
    cancelled: Callable[[], bool] = lambda: False,
    source: TokenSource | None = None,
    recover: Callable[[DeviceLostError], Awaitable[Runner]] | None = None,
) -> AsyncGenerator[Started | list[TokenEvent] | Result, None]:
    """Yield one Started, then a TokenEvent for each token, in groups as they become known, then one Result.

    What the runner's cache has in common with the prompt's beginning is kept, the rest forgotten. The prompt is read in
    chunks of `prefill_chunk` tokens (None: all at once), and `cancelled` is asked between chunks and tokens, after the
    event loop has had its turn. When the GPU is lost, `recover` gives another runner of the same model, or raises; the
    text then goes on as if nothing had happened: what was read and written is read again, and the next token is drawn
    with the number that it would have been drawn with.

    A prompt in words begins as the model expects it (`Tokenizer.prefix`). The text ends with `eos_id` or any
    of `ends`.

    Raises OptionError for ids outside the vocabulary or an empty prompt without an `eos_id` to start from,
    NonFiniteLogitsError, and what the runner raises.
    """
    called = time.perf_counter()
    prompt_ids, truncated = _prompt_ids(runner, tokenizer, options, eos_id)
    yield Started(prompt_ids=prompt_ids, truncated=truncated, seed=options.seed)

    slides = options.on_full == "slide"
    # Generation ends here at the latest; what the stop filter holds back is then let go with the last token.
    most = options.max_new_tokens if slides else min(options.max_new_tokens, runner.n_ctx - len(prompt_ids))
    written = _Written(tokenizer, options.stop, {eos_id, *ends}, most)
    events, times = written.events, written.times

    started = time.perf_counter()
    window, finish = prompt_ids, ""
    reused: int | None = None
    while not finish:
        done = len(events)
        try:
            # What the cache holds of this text already need not be read again, but for its last token's logits.
            runner.rewind(min(_common_prefix(runner.tokens, window), len(window) - 1))
            reused = runner.length if reused is None else reused
            if not await _prefill(runner, window[runner.length :], prefill_chunk, cancelled):
                finish = "cancelled"
                break
            limit = min(options.max_new_tokens - done, runner.n_ctx - len(window))
            tokens = (source or source_for(runner, options))(runner, window, options, limit, done)
            async with aclosing(tokens):
                async for tokens_of_group in tokens:
                    await asyncio.sleep(0)
                    if cancelled():
                        finish = "cancelled"
                        break
                    group, finish = written.push(tokens_of_group)
                    if group:
                        yield group
                    if finish:
                        break
        except DeviceLostError as error:
            if not finish:
                if recover is None:
                    raise
                runner = await recover(error)
        if not finish and len(events) >= most:
            finish = "length" if len(events) == options.max_new_tokens else "context"
        if not finish:
            window = [*window, *_ids(events[done:])]
            if len(window) >= runner.n_ctx:
                window = window[-max(1, runner.n_ctx // 2) :]
    if held := written.flush():
        yield [held]

    yield Result(
        text="".join(written.text),
        ids=_ids(events),
        prompt_ids=prompt_ids,
        finish=finish,
        truncated=truncated,
        seed=options.seed,
        logprobs=[event.logprob for event in events if event.logprob is not None] if options.logprobs else None,
        top=[event.top for event in events] if options.top else None,
        timings=_timings(called, started, times, len(prompt_ids), len(events)) | {"reused": reused or 0},
    )


class _Written:
    """What a generation has come to so far."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], ends: Collection[int | None], most: int) -> None:
        self.events: list[TokenEvent] = []
        self.text: list[str] = []
        self.times: list[float] = []
        self._decoder, self._stops = StreamDecoder(tokenizer), StopFilter(stop)
        self._ends, self._most = ends, most

    def push(self, tokens: Sequence[Token]) -> tuple[list[TokenEvent], str]:
        """Take the next tokens; return their events, and "eos" or "stop" where one of them ends the text."""
        self.times += [time.perf_counter()] * len(tokens)
        group: list[TokenEvent] = []
        finish = ""
        for token in tokens:
            if token.id in self._ends:
                finish = "eos"
                break
            shown = self._stops.push(self._decoder.push(token.id))
            if len(self.events) + len(group) + 1 == self._most:
                shown += self._stops.flush()
            group.append(TokenEvent(text=shown, id=token.id, logprob=token.logprob, top=token.top, inside=token.inside))
            if self._stops.stopped:
                finish = "stop"
                break
        self.events += group
        self.text += [event.text for event in group]
        return group, finish

    def flush(self) -> TokenEvent | None:
        """Return the text that was held back and turned out not to be a stop string, if any."""
        held = self._stops.flush()
        if not held:
            return None
        self.text.append(held)
        return TokenEvent(text=held)


def _ids(events: Sequence[TokenEvent]) -> list[int]:
    return [event.id for event in events if event.id is not None]


async def prefill(runner: Runner, ids: list[int], chunk: int | None = None) -> None:
    """Read `ids` into the cache, but for what it holds of them. The logits after the last of them are then ready."""
    runner.rewind(min(_common_prefix(runner.tokens, ids), len(ids) - 1))
    await _prefill(runner, ids[runner.length :], chunk, lambda: False)


async def _prefill(runner: Runner, ids: list[int], chunk: int | None, cancelled: Callable[[], bool]) -> bool:
    step = chunk or len(ids)
    for start in range(0, len(ids), step):
        await asyncio.sleep(0)
        if cancelled():
            return False
        await runner.feed(ids[start : start + step])
        if start + step < len(ids):
            await runner.settle()
    return True


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    return next((place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _prompt_ids(runner: Runner, tokenizer: Tokenizer, options: Options, eos_id: int | None) -> tuple[list[int], bool]:
    if options.ids is not None:
        ids = list(parse_ids("ids", options.ids, runner.n_vocab))
    else:
        ids = [*tokenizer.prefix, *tokenizer.encode(options.prompt or "")]
    if not ids:
        if eos_id is None:
            raise OptionError("The prompt is empty and this model has no end-of-text token to start from: write some.")
        ids = [eos_id]
    if len(ids) < runner.n_ctx:
        return ids, False
    # A prompt that fills the context would leave a single token: give up a quarter of it for what was asked for.
    room = min(options.max_new_tokens, max(1, runner.n_ctx // 4))
    return ids[-(runner.n_ctx - room) :], True


def _timings(
    called: float, started: float, times: list[float], prompt_tokens: int, new_tokens: int
) -> dict[str, float | int | None]:
    first, last = (times[0], times[-1]) if times else (None, None)
    decode = 0.0 if first is None or last is None else last - first
    return {
        "prompt_tokens": prompt_tokens,
        "new_tokens": new_tokens,
        "prefill_ms": None if first is None else 1000 * (first - started),
        "first_token_ms": None if first is None else 1000 * (first - called),
        "decode_ms": 1000 * decode,
        "tokens_per_second": (len(times) - 1) / decode if len(times) > 1 and decode > 0 else None,
    }
