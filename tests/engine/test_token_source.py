"""Which source of tokens the option `sampler` gives."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.errors import OptionError
from app.engine.options import parse_options
from app.engine.runner import SamplingRunner
from app.engine.sampling import Rules, sample
from app.engine.token_source import sampled_in_python, sampled_on_gpu, source_for, uniforms
from tests.engine.test_generate import FakeRunner


class SelfSampling(FakeRunner):
    """Chooses tokens as a GPU would, two at a time."""

    python_seconds = 0.0
    submit_seconds = 0.0

    def bytes_per_token(self, length: int) -> tuple[int, int]:
        return 0, 0

    async def gpu_times(self, ids: Sequence[int], new: int) -> dict[str, Any] | None:
        return None

    def can_sample(self, rules: Rules, top: int) -> bool:
        return top <= 20

    async def sample(
        self,
        rules: Rules,
        *,
        uniforms: NDArray[np.float32],
        history: Sequence[int],
        top: int = 0,
        depth: int | None = None,
    ) -> AsyncGenerator[list[Any], None]:
        tokens = list(history)
        group = []
        for number in uniforms.tolist():
            drawn = sample(await self.logits(), rules, number, tokens)
            tokens.append(drawn.id)
            await self.feed([drawn.id])
            group.append(type("Drawn", (), {"id": drawn.id, "logprob": drawn.logprob, "top": []}))
            if len(group) == 2:
                yield group
                group = []
        if group:
            yield group


def test_auto_takes_the_gpu_where_it_can() -> None:
    runner: SamplingRunner = SelfSampling()  # what isinstance asks for, mypy asks for here
    assert isinstance(runner, SamplingRunner)
    assert not isinstance(FakeRunner(), SamplingRunner)
    assert source_for(SelfSampling(), parse_options({})) is sampled_on_gpu
    assert source_for(FakeRunner(), parse_options({})) is sampled_in_python
    assert source_for(SelfSampling(), parse_options({"logprobs": 30})) is sampled_in_python
    assert source_for(SelfSampling(), parse_options({"sampler": "python"})) is sampled_in_python


def test_gpu_is_refused_where_it_cannot() -> None:
    with pytest.raises(OptionError, match="does not run on a GPU"):
        source_for(FakeRunner(), parse_options({"sampler": "gpu"}))
    with pytest.raises(OptionError, match="at most 20"):
        source_for(SelfSampling(), parse_options({"sampler": "gpu", "logprobs": 30}))


async def test_both_sources_give_the_same_tokens() -> None:
    options = parse_options({"temperature": 1.5, "seed": 5})
    runs = []
    for source in (sampled_in_python, sampled_on_gpu):
        runner: Any = SelfSampling()
        await runner.feed([1, 2])
        runs.append([token.id async for group in source(runner, [1, 2], options, 11) for token in group])
    assert runs[0] == runs[1]
    assert len(runs[0]) == 11


def test_uniform_numbers_do_not_depend_on_how_many_are_drawn() -> None:
    np.testing.assert_array_equal(uniforms(9, 5), uniforms(9, 50)[:5])
    assert uniforms(9, 1000).max() < 1
