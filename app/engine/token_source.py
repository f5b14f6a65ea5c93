"""Where tokens come from: the seam between the token loop and the samplers.

A source is an async generator over a runner whose cache already holds the prompt. It chooses the tokens, feeds them
back to the runner itself, and may run ahead of its consumer, which closes it as soon as it wants no more.
"""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass

import numpy as np

from app.engine.options import Options
from app.engine.runner import Runner
from app.engine.sampling import sample, top


@dataclass(frozen=True, kw_only=True)
class Token:
    """One chosen token."""

    id: int
    logprob: float
    """Natural logarithm of the probability that the model gave it, before any rule."""
    top: list[tuple[int, float]]
    """The model's likeliest tokens and their log-probabilities, as many as the options ask for."""


TokenSource = Callable[[Runner, Sequence[int], Options, int], AsyncGenerator[Token, None]]
"""(runner, prompt_ids, options, limit) -> at most `limit` tokens that follow the prompt."""


async def sampled_in_python(
    runner: Runner, prompt_ids: Sequence[int], options: Options, limit: int
) -> AsyncGenerator[Token, None]:
    """Read the logits back for each token and choose with `sampling.sample`, one uniform a token from the seed."""
    random = np.random.default_rng(options.seed)
    history = list(prompt_ids)
    for step in range(limit):
        if step:
            await runner.feed(history[-1:])
        logits = await runner.logits()
        chosen = sample(logits, options.rules, random.random(), history=history)
        history.append(chosen.id)
        yield Token(id=chosen.id, logprob=chosen.logprob, top=top(logits, options.top) if options.top else [])


SOURCES: dict[str, TokenSource] = {"python": sampled_in_python}
"""By the option `sampler`."""
