import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from app.engine.errors import NonFiniteLogitsError, OptionError
from app.engine.sampling import Rules, sample, top

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))


def chosen(logits: ArrayLike, rules: Rules, steps: int = 4000, history: Iterable[int] = ()) -> set[int]:
    """The set of ids that a fine sweep of uniforms can reach."""
    return {sample(logits, rules, (i + 0.5) / steps, history).id for i in range(steps)}


def plain(logits: Sequence[float], rules: Rules, uniform: float, history: Iterable[int] = ()) -> int:
    """The same rules, written as simply as possible with Python's own numbers."""
    scores = [float(x) for x in logits]
    for i in set(history):
        if 0 <= i < len(scores):
            scores[i] = scores[i] / rules.repetition_penalty if scores[i] > 0 else scores[i] * rules.repetition_penalty
    if rules.temperature == 0:
        return scores.index(max(scores))
    order = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    if rules.top_k:
        order = order[: rules.top_k]
    weights = {i: float(np.exp((scores[i] - scores[order[0]]) / rules.temperature)) for i in order}
    if rules.top_p < 1:
        wanted = rules.top_p * float(np.array([weights[i] for i in sorted(order)]).sum())
        kept, mass = [], 0.0
        for i in sorted(order, key=lambda i: (-weights[i], i)):
            kept.append(i)
            mass += weights[i]
            if mass >= wanted:
                break
        order = kept
    order = sorted(i for i in order if weights[i] >= rules.min_p)
    total = 0.0
    for i in order:
        total += weights[i]
    running = 0.0
    for i in order:
        running += weights[i]
        if running > uniform * total:
            return i
    return max(i for i in order if weights[i] > 0)


def test_the_inverse_cdf_runs_in_id_order() -> None:
    for uniform, expected in [(0, 0), (0.0999, 0), (0.1001, 1), (0.4999, 1), (0.5001, 2), (0.6999, 2), (0.7001, 3)]:
        assert sample(LOGITS, Rules(), uniform).id == expected
    assert sample(LOGITS, Rules(), math.nextafter(1, 0)).id == 3


def test_frequencies_follow_the_softmax_at_the_temperature() -> None:
    counts = np.bincount([sample(LOGITS, Rules(temperature=0.5), (i + 0.5) / 3000).id for i in range(3000)])
    squares = np.array([0.1, 0.4, 0.2, 0.3]) ** 2
    assert np.allclose(counts / 3000, squares / squares.sum(), atol=1e-3)


def test_greedy_takes_the_lowest_id_among_equals_and_ignores_the_rest() -> None:
    logits = np.array([1, 3, 3, 2], np.float32)
    for uniform in (0, 0.5, 0.999):
        assert sample(logits, Rules(temperature=0, top_k=4, top_p=0.1, min_p=0.5), uniform).id == 1


def test_a_tiny_temperature_is_nearly_greedy_and_does_not_overflow() -> None:
    assert chosen(LOGITS, Rules(temperature=5e-324), steps=50) == {1}


def test_top_k_keeps_the_lowest_ids_at_the_border() -> None:
    logits = np.array([0, 5, 5, 5, 9], np.float32)
    assert chosen(logits, Rules(top_k=1)) == {4}
    assert chosen(logits, Rules(top_k=3, temperature=10)) == {1, 2, 4}
    assert chosen(np.zeros(6, np.float32), Rules(top_k=2)) == {0, 1}


@pytest.mark.parametrize("top_k", [0, 4, 5, 2**31 - 1])
def test_top_k_is_off_at_zero_and_beyond_the_vocabulary(top_k: int) -> None:
    assert chosen(LOGITS, Rules(top_k=top_k)) == {0, 1, 2, 3}


def test_top_p() -> None:
    logits = np.log(np.array([0.125, 0.5, 0.125, 0.25]))  # exact in binary
    assert chosen(logits, Rules(top_p=0)) == {1}
    assert chosen(logits, Rules(top_p=0.5)) == {1}
    assert chosen(logits, Rules(top_p=0.501)) == {1, 3}
    assert chosen(logits, Rules(top_p=0.76)) == {0, 1, 3}
    assert chosen(logits, Rules(top_p=1)) == {0, 1, 2, 3}


def test_top_p_counts_what_top_k_left() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125]))
    assert chosen(logits, Rules(top_k=2, top_p=0.7)) == {0, 1}
    assert chosen(logits, Rules(top_k=2, top_p=0.6)) == {0}


def test_top_p_over_a_flat_vocabulary_looks_beyond_its_first_guess() -> None:
    assert chosen(np.zeros(5000, np.float32), Rules(top_p=0.5), steps=10000) == set(range(2500))


def test_min_p_is_relative_to_the_greatest() -> None:
    assert chosen(LOGITS, Rules(min_p=0.51)) == {1, 3}
    assert chosen(LOGITS, Rules(min_p=1)) == {1}
    assert chosen(np.zeros(3, np.float32), Rules(min_p=1)) == {0, 1, 2}


def test_the_repetition_penalty_is_transformers_rule_and_counts_an_id_once() -> None:
    logits = np.array([2.0, 1.0, -1.0], np.float32)
    greedy = Rules(temperature=0, repetition_penalty=1.5)
    assert sample(logits, greedy, 0, [0]).id == 0  # 2 / 1.5 > 1, and not divided twice:
    assert sample(logits, greedy, 0, [0, 0, 0]).id == 0
    assert sample(logits, Rules(temperature=0, repetition_penalty=2.5), 0, [0]).id == 1
    negative = np.array([-1.0, -1.2], np.float32)
    assert sample(negative, greedy, 0, [0]).id == 1
    assert sample(negative, greedy, 0, [7, -1]).id == 0


def test_logprob_is_the_models_own_whatever_the_rules() -> None:
    for rules in (Rules(), Rules(temperature=0), Rules(temperature=3, top_k=1), Rules(repetition_penalty=2)):
        result = sample(LOGITS, rules, 0.3, [1])
        assert result.logprob == pytest.approx(float(LOGITS[result.id]), abs=1e-6)


def test_minus_infinity_is_never_chosen() -> None:
    logits = np.array([-np.inf, 0, -np.inf, 0, -np.inf], np.float32)
    assert chosen(logits, Rules(top_k=4, top_p=0.999, repetition_penalty=1.2), history=[0, 1]) == {1, 3}
    assert sample(logits, Rules(), math.nextafter(1, 0)).id == 3


@pytest.mark.parametrize("logits", [[0, np.nan, 1], [np.nan] * 2, [-np.inf] * 3, [0, np.inf]])
@pytest.mark.parametrize("rules", [Rules(), Rules(temperature=0), Rules(top_k=1, top_p=0.5)])
def test_logits_without_a_distribution_are_refused(logits: list[float], rules: Rules) -> None:
    with pytest.raises(NonFiniteLogitsError, match="no token can be chosen"):
        sample(np.array(logits, np.float32), rules, 0.5)
    with pytest.raises(NonFiniteLogitsError):
        top(np.array(logits, np.float32), 2)


@pytest.mark.parametrize(
    ("option", "values"),
    {
        "temperature": [-0.1, 100.1, math.nan, math.inf, True, "1", None],
        "top_k": [-1, 2**31, 1.0, False, "40", None],
        "top_p": [-0.01, 1.01, math.nan, True, None],
        "min_p": [-0.01, 1.01, math.nan, True, None],
        "repetition_penalty": [0, -1, 100.5, math.nan, True, None],
    }.items(),
)
def test_rules_name_the_option_and_its_range(option: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(OptionError, match=rf"^{option} must be a .*number from .* to .*"):
            Rules(**{option: value})


@pytest.mark.parametrize("uniform", [-0.1, 1, 1.5, math.nan, True])
def test_uniform_must_lie_below_one(uniform: float) -> None:
    with pytest.raises(OptionError, match="uniform"):
        sample(LOGITS, Rules(), uniform)


def test_logits_must_be_a_vector() -> None:
    for logits in (np.zeros((2, 2)), np.zeros(0)):
        with pytest.raises(OptionError, match="logits"):
            sample(logits, Rules(), 0)


def test_top_is_ordered_by_logprob_then_id() -> None:
    assert [i for i, _ in top(LOGITS, 3)] == [1, 3, 2]
    assert [i for i, _ in top(np.array([1, 2, 2, 2, 0]), 2)] == [1, 2]
    assert top(LOGITS, 0) == []
    everything = top(LOGITS, 99)
    assert len(everything) == 4
    assert sum(math.exp(p) for _, p in everything) == pytest.approx(1)


# Coarse values, so that ties are common.
coarse = st.lists(st.integers(-6, 6).map(lambda x: x / 2), min_size=1, max_size=24)


@settings(max_examples=400, deadline=None)
@given(
    logits=coarse,
    rules=st.builds(
        Rules,
        temperature=st.sampled_from([0, 0.3, 0.8, 1, 2.5]),
        top_k=st.integers(0, 26),
        top_p=st.sampled_from([0, 0.1, 0.37, 0.9, 0.99, 1]),
        min_p=st.sampled_from([0, 0.05, 0.31, 1]),
        repetition_penalty=st.sampled_from([0.7, 1, 1.3]),
    ),
    uniform=st.floats(0, 1, exclude_max=True),
    history=st.lists(st.integers(0, 25), max_size=5),
)
def test_agrees_with_the_plain_reading_of_the_rules(
    logits: list[float], rules: Rules, uniform: float, history: list[int]
) -> None:
    assert sample(np.array(logits), rules, uniform, history).id == plain(logits, rules, uniform, history)
