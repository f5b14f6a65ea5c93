"""Where tokens come from: the seam between the token loop and the samplers.

A source is an async generator over a runner whose cache already holds the prompt. It chooses the tokens, feeds them
back to the runner itself, and may run ahead of its consumer, which closes it as soon as it wants no more. Tokens come
in groups, as they become known: one at a time from Python, several from a GPU that runs ahead.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from app.engine.errors import OptionError
from app.engine.options import Options
from app.engine.runner import Runner, SamplingRunner
from app.engine.sampling import sample, top


@dataclass(frozen=True, kw_only=True)
class Token:
    """One chosen token."""

    id: int
    logprob: float
    """Natural logarithm of the probability that the model gave it, before any rule."""
    top: list[tuple[int, float]]
    """The model's likeliest tokens and their log-probabilities, as many as the options ask for."""
    inside: dict[str, Any] | None = None
    """What the model looked like that made it (`inspection.watched`)."""


TokenSource = Callable[[Runner, Sequence[int], Options, int, int], AsyncGenerator[list[Token], None]]
"""(runner, ids, options, limit, done) -> at most `limit` tokens that follow `ids`, which the cache holds. Before them,
`done` tokens of this generation were drawn."""


def uniforms(seed: int, count: int, *, skip: int = 0) -> NDArray[np.float32]:
    """The numbers in [0, 1) by which tokens are drawn, one a token: the same for every source, so in f32."""
    return np.random.default_rng(seed).random(skip + count, dtype=np.float32)[skip:]


async def sampled_in_python(
    runner: Runner, prompt_ids: Sequence[int], options: Options, limit: int, done: int = 0
) -> AsyncGenerator[list[Token], None]:
    """Read the logits back for each token and choose with `sampling.sample`."""
    history = list(prompt_ids)
    for step, uniform in enumerate(uniforms(options.seed, limit, skip=done).tolist()):
        if step:
            await runner.feed(history[-1:])
        logits = await runner.logits()
        chosen = sample(logits, options.rules, uniform, history=history)
        history.append(chosen.id)
        yield [Token(id=chosen.id, logprob=chosen.logprob, top=top(logits, options.top) if options.top else [])]


async def sampled_on_gpu(
    runner: SamplingRunner, prompt_ids: Sequence[int], options: Options, limit: int, done: int = 0
) -> AsyncGenerator[list[Token], None]:
    """Leave the choice to the runner, which never waits for Python."""
    numbers = uniforms(options.seed, limit, skip=done)
    groups = runner.sample(options.rules, uniforms=numbers, history=prompt_ids, top=options.top, depth=options.depth)
    async with aclosing(groups):
        async for group in groups:
            yield [Token(id=drawn.id, logprob=drawn.logprob, top=drawn.top) for drawn in group]


def source_for(runner: Runner, options: Options) -> TokenSource:
    """The source that the option `sampler` asks for; "auto" is the GPU's where it has one that knows the rules.

    Raises OptionError if "gpu" is asked for and cannot be had.
    """
    if options.sampler == "python":
        return sampled_in_python
    if not isinstance(runner, SamplingRunner):
        reason = "this model does not run on a GPU"
    elif not runner.can_sample(options.rules, options.top):
        reason = "the GPU's sampler reports at most 20 tokens, and none under a repetition penalty"
    else:
        return cast(TokenSource, sampled_on_gpu)
    if options.sampler == "gpu":
        raise OptionError(f"sampler 'gpu' cannot be had: {reason}. Choose sampler 'auto' or 'python'.")
    return sampled_in_python
