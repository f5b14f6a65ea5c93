import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.errors import DeviceLostError, NonFiniteLogitsError, OptionError
from app.engine.generate import Result, Started, TokenEvent, generate, prefill
from app.engine.options import Options, parse_options
from app.engine.runner import Runner
from app.engine.sampling import Rules, sample
from app.engine.token_source import Token
from app.engine.tokenizer import Tokenizer
from tests.models import STORY

EOS = 8191


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_files({"tokenizer.json": (STORY / "tokenizer.json").read_bytes()})


class FakeRunner:
    """Its logits are a fixed function of the tokens so far; with a script, they say its next token without a doubt."""

    def __init__(self, script: Sequence[int] = (), *, n_ctx: int = 64, n_vocab: int = 8192) -> None:
        self.n_ctx, self.n_vocab, self.length = n_ctx, n_vocab, 0
        self.cache: list[int] = []
        self.feeds: list[list[int]] = []
        self.settled = 0
        self.start: int | None = None
        self._script = list(script)

    async def feed(self, ids: Sequence[int]) -> None:
        assert 0 < len(ids) <= self.n_ctx - self.length
        self.feeds.append(list(ids))
        self.cache[self.length :] = ids
        self.length += len(ids)

    async def settle(self) -> None:
        self.settled += 1

    async def logits(self) -> NDArray[np.float32]:
        await asyncio.sleep(0)
        logits = np.random.default_rng(self.cache[: self.length]).normal(size=self.n_vocab).astype(np.float32)
        if self.start is None:
            self.start = self.length
        if 0 <= self.length - self.start < len(self._script):
            logits[self._script[self.length - self.start]] = 50
        return logits

    @property
    def tokens(self) -> list[int]:
        return self.cache[: self.length]

    def rewind(self, length: int) -> None:
        self.length = length

    def memory(self) -> dict[str, int]:
        return {}

    def free(self) -> None:
        pass


async def events_of(runner: Runner, given: dict[str, Any], **keywords: Any) -> list[Started | TokenEvent | Result]:
    options = parse_options({"temperature": 0, "max_new_tokens": 8} | given)
    keywords = {"eos_id": EOS} | keywords
    events: list[Started | TokenEvent | Result] = []
    async for event in generate(runner, tokenizer(), options, **keywords):
        events += event if isinstance(event, list) else [event]
    return events


async def result_of(runner: Runner, given: dict[str, Any], **keywords: Any) -> Result:
    """Run to the end; check what holds of every run on the way."""
    events = await events_of(runner, given, **keywords)
    first, last = events[0], events[-1]
    tokens = [event for event in events[1:-1] if isinstance(event, TokenEvent)]
    assert isinstance(first, Started)
    assert isinstance(last, Result)
    assert len(tokens) == len(events) - 2
    assert "".join(event.text for event in tokens) == last.text
    assert [event.id for event in tokens if event.id is not None] == last.ids
    assert (first.prompt_ids, first.truncated, first.seed) == (last.prompt_ids, last.truncated, last.seed)
    return last


def spell(text: str) -> list[int]:
    return tokenizer().encode(text)


async def test_it_continues_the_prompt_with_the_likeliest_tokens() -> None:
    runner = FakeRunner(spell(" there was a fox."))
    result = await result_of(runner, {"prompt": "Once upon a time", "max_new_tokens": len(spell(" there was a fox."))})
    assert result.text == " there was a fox."
    assert result.prompt_ids == spell("Once upon a time")
    assert result.finish == "length"
    assert not result.truncated
    assert (result.logprobs, result.top) == (None, None)


async def test_the_last_token_is_not_fed_for_nothing() -> None:
    runner = FakeRunner(spell("abc"))
    result = await result_of(runner, {"prompt": "x", "max_new_tokens": 3})
    assert runner.feeds == [spell("x"), *([token] for token in result.ids[:-1])]


async def test_ids_may_be_given_instead_of_text() -> None:
    by_text = await result_of(FakeRunner(), {"prompt": "Once upon a time"})
    by_ids = await result_of(FakeRunner(), {"ids": spell("Once upon a time")})
    assert by_text.ids == by_ids.ids


async def test_ids_outside_the_vocabulary_are_refused() -> None:
    with pytest.raises(OptionError, match="from 0 to 8191"):
        await result_of(FakeRunner(), {"ids": [8192]})


async def test_an_empty_prompt_starts_from_the_end_of_text() -> None:
    empties: list[dict[str, Any]] = [{"prompt": ""}, {"ids": []}, {}]
    for empty in empties:
        assert (await result_of(FakeRunner(spell("Hi")), empty)).prompt_ids == [EOS]
    with pytest.raises(OptionError, match="empty"):
        await result_of(FakeRunner(), {"prompt": ""}, eos_id=None)


async def test_the_end_of_text_ends_it_and_is_not_shown() -> None:
    result = await result_of(FakeRunner([*spell("Bye."), EOS, *spell("more")]), {"prompt": "x"})
    assert (result.text, result.ids, result.finish) == ("Bye.", spell("Bye."), "eos")


async def test_without_an_end_of_text_token_it_is_a_token_like_any() -> None:
    result = await result_of(FakeRunner([EOS, *spell("a")]), {"prompt": "x", "max_new_tokens": 2}, eos_id=None)
    assert result.ids == [EOS, *spell("a")]
    assert result.finish == "length"


async def test_text_past_a_stop_string_is_never_shown() -> None:
    script = spell("one two END three")
    events = await events_of(FakeRunner(script), {"prompt": "x", "stop": [" END", "never"], "max_new_tokens": 50})
    result = events[-1]
    assert isinstance(result, Result)
    assert (result.text, result.finish) == ("one two", "stop")
    # The ids hold what spelled the stop string, and nothing after it.
    assert tokenizer().decode(result.ids).startswith("one two END"[: len(tokenizer().decode(result.ids))])
    assert " END" in tokenizer().decode(result.ids)
    assert "three" not in tokenizer().decode(result.ids)
    assert all(" E" not in event.text for event in events if isinstance(event, TokenEvent))


@pytest.mark.parametrize("ending", ["length", "eos", "cancelled"])
async def test_what_only_began_like_a_stop_string_is_shown_at_the_end(ending: str) -> None:
    script = spell("one two E")
    runner = FakeRunner([*script, EOS])
    limit = len(script) if ending == "length" else 50

    def cancelled() -> bool:
        return ending == "cancelled" and runner.length >= len(spell("x")) + len(script)

    result = await result_of(runner, {"prompt": "x", "stop": "END", "max_new_tokens": limit}, cancelled=cancelled)
    assert (result.text, result.finish) == ("one two E", ending)


async def test_a_character_of_several_tokens_appears_whole() -> None:
    party = spell("🎉")
    assert len(party) > 1
    events = await events_of(FakeRunner([*party, *spell("!")]), {"prompt": "x", "max_new_tokens": len(party) + 1})
    texts = [event.text for event in events if isinstance(event, TokenEvent)]
    assert texts == [*[""] * (len(party) - 1), "🎉", "!"]


async def test_a_character_cut_off_by_the_end_is_left_out() -> None:
    party = spell("🎉")
    result = await result_of(FakeRunner([*spell("a"), *party]), {"prompt": "x", "max_new_tokens": len(party)})
    assert result.text == "a"
    assert len(result.ids) == len(party)


async def test_an_over_long_prompt_keeps_its_last_tokens() -> None:
    ids = list(range(100))
    for count, room in ((1, 1), (5, 5), (1000, 16)):
        runner = FakeRunner(spell("and so it goes on and on, and on and on, and on and on and on"), n_ctx=64)
        result = await result_of(runner, {"ids": ids, "max_new_tokens": count})
        assert result.truncated
        assert result.prompt_ids == ids[-(64 - room) :]
        assert result.finish == ("context" if count > room else "length")
        assert len(result.ids) == min(count, room)


async def test_a_prompt_that_just_fits_is_not_truncated() -> None:
    result = await result_of(FakeRunner(spell("abc"), n_ctx=64), {"ids": list(range(63)), "max_new_tokens": 5})
    assert not result.truncated
    assert (len(result.ids), result.finish) == (1, "context")


async def test_the_smallest_context_still_gives_a_token() -> None:
    result = await result_of(FakeRunner(spell("a"), n_ctx=2), {"ids": [1, 2, 3]})
    assert (result.prompt_ids, result.truncated, result.finish) == ([3], True, "context")


async def test_reaching_the_context_ends_it() -> None:
    script = spell("a b c d e f g h i j k l m n o p")
    result = await result_of(FakeRunner(script, n_ctx=10), {"ids": [1, 2, 3, 4], "max_new_tokens": 100})
    assert (len(result.ids), result.finish) == (6, "context")
    exact = await result_of(FakeRunner(script, n_ctx=10), {"ids": [1, 2, 3, 4], "max_new_tokens": 6})
    assert (len(exact.ids), exact.finish) == (6, "length")


async def test_stopping_takes_effect_within_a_token() -> None:
    stop = False
    seen: list[TokenEvent] = []
    options = parse_options({"prompt": "x", "max_new_tokens": 50})
    async with aclosing(generate(FakeRunner(), tokenizer(), options, eos_id=None, cancelled=lambda: stop)) as events:
        async for event in events:
            if isinstance(event, list):
                seen += event
                stop = len(seen) == 3
            elif isinstance(event, Result):
                assert (event.finish, len(event.ids)) == ("cancelled", 3)
    assert len(seen) == 3


async def test_the_event_loop_has_its_turn_at_every_token() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    class Hasty(FakeRunner):
        async def logits(self) -> NDArray[np.float32]:
            return np.zeros(self.n_vocab, np.float32)

    counter = asyncio.ensure_future(count_turns())
    result = await result_of(Hasty(), {"prompt": "x", "max_new_tokens": 20})
    counter.cancel()
    assert len(result.ids) == 20
    assert turns >= 20


async def test_a_long_prompt_can_be_stopped_between_its_chunks() -> None:
    runner = FakeRunner()
    result = await result_of(
        runner, {"ids": list(range(40))}, prefill_chunk=8, cancelled=lambda: len(runner.feeds) >= 2
    )
    assert (result.finish, result.text, result.ids) == ("cancelled", "", [])
    assert runner.feeds == [list(range(8)), list(range(8, 16))]
    assert runner.settled == 2  # what was fed is computed before anyone asks whether to stop
    assert result.timings["prefill_ms"] is None


async def test_chunks_do_not_change_the_result() -> None:
    whole = await result_of(FakeRunner(), {"ids": list(range(40))})
    for chunk in (1, 7, 40, 100):
        assert (await result_of(FakeRunner(), {"ids": list(range(40))}, prefill_chunk=chunk)).ids == whole.ids


async def test_the_same_seed_writes_the_same() -> None:
    given = {"prompt": "x", "temperature": 1.0, "seed": 5, "max_new_tokens": 12}
    first = await result_of(FakeRunner(), given)
    assert (await result_of(FakeRunner(), given)).ids == first.ids
    assert (await result_of(FakeRunner(), given | {"seed": 6})).ids != first.ids
    unseeded = await result_of(FakeRunner(), given | {"seed": None})
    assert (await result_of(FakeRunner(), given | {"seed": unseeded.seed})).ids == unseeded.ids


async def test_each_token_takes_one_uniform_of_the_seeded_generator() -> None:
    result = await result_of(FakeRunner(), {"prompt": "x", "temperature": 0.7, "top_k": 50, "seed": 11})
    random = np.random.default_rng(11)
    runner = FakeRunner()
    await runner.feed(spell("x"))
    for token in result.ids:
        expected = sample(
            await runner.logits(), Rules(temperature=0.7, top_k=50), float(random.random(dtype=np.float32))
        )
        assert token == expected.id
        await runner.feed([token])


async def test_the_repetition_penalty_counts_prompt_and_continuation() -> None:
    script = spell("a") * 8
    free = await result_of(FakeRunner(script), {"prompt": "b"})
    assert free.ids == script
    once = await result_of(FakeRunner(script), {"prompt": "b", "repetition_penalty": 100.0})
    assert once.ids.count(script[0]) == 1
    never = await result_of(FakeRunner(script), {"prompt": "a", "repetition_penalty": 100.0})
    assert script[0] not in never.ids


async def test_log_probabilities() -> None:
    events = await events_of(FakeRunner(), {"prompt": "x", "logprobs": 3, "max_new_tokens": 4})
    result = events[-1]
    assert isinstance(result, Result)
    assert result.logprobs is not None
    assert result.top is not None
    for token, logprob, top, event in zip(result.ids, result.logprobs, result.top, events[1:-1], strict=True):
        assert isinstance(event, TokenEvent)
        assert (event.id, event.logprob, event.top) == (token, logprob, top)
        assert [len(top), top[0]] == [3, (token, logprob)]
        assert top[0][1] >= top[1][1] >= top[2][1]
    plain = await result_of(FakeRunner(), {"prompt": "x", "logprobs": True})
    assert plain.logprobs is not None
    assert plain.top is None


async def test_timings_are_measured() -> None:
    class Slow(FakeRunner):
        async def logits(self) -> NDArray[np.float32]:
            await asyncio.sleep(0.02)
            return await super().logits()

    timings = (await result_of(Slow(), {"prompt": "Once upon", "max_new_tokens": 6})).timings
    assert timings["prompt_tokens"] == len(spell("Once upon"))
    assert timings["new_tokens"] == 6
    prefill_ms, first_ms, decode_ms = timings["prefill_ms"], timings["first_token_ms"], timings["decode_ms"]
    assert prefill_ms is not None
    assert first_ms is not None
    assert decode_ms is not None
    assert 20 <= prefill_ms <= first_ms
    assert decode_ms >= 5 * 20
    assert timings["tokens_per_second"] == pytest.approx(5 / (decode_ms / 1000))
    single = (await result_of(FakeRunner(), {"prompt": "x", "max_new_tokens": 1})).timings
    assert single["tokens_per_second"] is None


async def test_what_the_cache_holds_of_the_prompt_is_reported() -> None:
    runner = FakeRunner()
    first = await result_of(runner, {"prompt": "one", "max_new_tokens": 4})
    assert first.timings["reused"] == 0
    ids = [*first.prompt_ids, *first.ids[:2]]
    assert (await result_of(runner, {"ids": [*ids, 1], "max_new_tokens": 1})).timings["reused"] == len(ids)
    assert (await result_of(runner, {"ids": ids, "max_new_tokens": 1})).timings["reused"] == len(ids) - 1


async def test_nan_logits_end_the_run_with_a_named_error() -> None:
    class Broken(FakeRunner):
        async def logits(self) -> NDArray[np.float32]:
            return np.full(self.n_vocab, np.nan, np.float32)

    with pytest.raises(NonFiniteLogitsError, match="NaN"):
        await result_of(Broken(), {"prompt": "x"})


async def test_what_the_cache_held_is_forgotten() -> None:
    runner = FakeRunner()
    first = await result_of(runner, {"prompt": "one"})
    await result_of(runner, {"prompt": "another thing"})
    assert (await result_of(runner, {"prompt": "one"})).ids == first.ids
    await prefill(runner, [1, 2, 3], 2)
    assert runner.cache[: runner.length] == [1, 2, 3]


async def test_another_source_of_tokens_may_run_ahead_and_is_closed() -> None:
    made: list[int] = []
    closed = False

    async def ahead(
        runner: Runner, prompt_ids: Sequence[int], options: Options, limit: int, done: int
    ) -> AsyncGenerator[list[Token], None]:
        nonlocal closed
        try:
            made.extend(spell("aaaa"))
            for _ in range(limit):
                yield [Token(id=spell("a")[0], logprob=-1.0, top=[])]
        finally:
            closed = True

    seen = 0

    def cancelled() -> bool:
        nonlocal seen
        seen += 1
        return seen > 3

    result = await result_of(FakeRunner(), {"prompt": "x", "max_new_tokens": 50}, source=ahead, cancelled=cancelled)
    assert result.finish == "cancelled"
    assert result.text == "aa"
    assert closed


async def test_leaving_early_closes_the_source() -> None:
    closed = asyncio.Event()

    async def endless(
        runner: Runner, prompt_ids: Sequence[int], options: Options, limit: int, done: int
    ) -> AsyncGenerator[list[Token], None]:
        try:
            while True:
                yield [Token(id=spell("a")[0], logprob=0.0, top=[])]
        finally:
            closed.set()

    options = parse_options({"prompt": "x"})
    async with aclosing(generate(FakeRunner(), tokenizer(), options, eos_id=None, source=endless)) as events:
        async for event in events:
            if isinstance(event, list):
                break
    assert closed.is_set()


async def test_a_prompt_that_begins_like_the_last_one_is_only_read_from_there() -> None:
    runner = FakeRunner()
    await result_of(runner, {"ids": [1, 2, 3, 4, 5], "max_new_tokens": 2})
    runner.feeds.clear()
    again = await result_of(runner, {"ids": [1, 2, 3, 9, 9], "max_new_tokens": 2})
    assert runner.feeds[0] == [9, 9]
    assert again.ids == (await result_of(FakeRunner(), {"ids": [1, 2, 3, 9, 9], "max_new_tokens": 2})).ids
    runner.feeds.clear()
    await result_of(runner, {"ids": [1, 2, 3, 9, 9], "max_new_tokens": 2})
    assert runner.feeds[0] == [9]


async def test_a_full_context_may_slide() -> None:
    runner = FakeRunner(n_ctx=16)
    prompt = list(range(1, 11))
    options = {"ids": prompt, "max_new_tokens": 40, "temperature": 1, "seed": 4}
    result = await result_of(runner, options | {"on_full": "slide"}, eos_id=None)
    assert (len(result.ids), result.finish) == (40, "length")
    ended = await result_of(FakeRunner(n_ctx=16), options, eos_id=None)
    assert (len(ended.ids), ended.finish) == (6, "context")
    assert result.ids[:6] == ended.ids
    # after the slide the model sees the last eight tokens, and the uniform numbers go on where they were
    follow = FakeRunner(n_ctx=16)
    await follow.feed([*prompt, *result.ids[:6]][-8:])
    number = np.random.default_rng(4).random(7, dtype=np.float32)[6]
    assert result.ids[6] == sample(await follow.logits(), Rules(temperature=1), float(number)).id


class LosingRunner(FakeRunner):
    """Lost when it is fed for the time number `at`."""

    def __init__(self, at: int, **keywords: Any) -> None:
        super().__init__(**keywords)
        self._at = at

    async def feed(self, ids: Sequence[int]) -> None:
        self._at -= 1
        if self._at < 0:
            raise DeviceLostError("lost (test)")
        await super().feed(ids)


@pytest.mark.parametrize("slide", ["end", "slide"])
@pytest.mark.parametrize("at", range(12))
async def test_a_lost_gpu_changes_nothing_of_the_text(at: int, slide: str) -> None:
    given = {"ids": [1, 2, 3, 4, 5], "max_new_tokens": 20, "on_full": slide, "seed": 2, "temperature": 1.0}
    given |= {"repetition_penalty": 1.3}
    whole = await result_of(FakeRunner(n_ctx=16), given, prefill_chunk=2)
    losses: list[DeviceLostError] = []

    async def recover(error: DeviceLostError) -> Runner:
        losses.append(error)
        return FakeRunner(n_ctx=16)

    found = await result_of(LosingRunner(at, n_ctx=16), given, prefill_chunk=2, recover=recover)
    assert len(losses) == 1
    assert (found.ids, found.text, found.finish) == (whole.ids, whole.text, whole.finish)


async def test_without_a_recovery_a_lost_gpu_ends_it() -> None:
    with pytest.raises(DeviceLostError):
        await result_of(LosingRunner(3), {"ids": [1, 2]})
