"""The rules by which one token is chosen from a model's logits: the reference for any other sampler.

`sample` is exactly defined, so that a sampler elsewhere (on the GPU, say) can pick the same token from the same logits
and the same uniform number. In float64, in this order:

1. repetition penalty, as transformers does it: each id in the history once; a positive logit is divided by the
   penalty, any other multiplied with it;
2. temperature: logits are divided by it. 0 is greedy: the greatest logit wins, ties go to the lowest id, and the
   remaining rules do not matter;
3. top_k: the k greatest are kept; among equals at the border the lowest ids. 0, or k beyond the vocabulary: off;
4. softmax over what is kept;
5. top_p: in order of falling probability (ties: lowest id first), the shortest run whose mass, summed in that order,
   is at least top_p, but one token at least. 1: off; 0: the single most probable;
6. min_p: what has less than min_p times the greatest probability is dropped;
7. the inverse CDF over what is left, in ascending id order: the first id at which the running sum exceeds
   `uniform` times the whole sum.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.engine.errors import NonFiniteLogitsError, OptionError

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How to choose a token; the defaults change nothing (plain sampling from the model's distribution).

    Raises OptionError, naming the option and its range, for a value that is out of range or no number.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        """Validate every field."""
        _check("temperature", self.temperature, 0.0, 100.0)
        _check("top_k", self.top_k, 0, 2**31 - 1, whole=True)
        _check("top_p", self.top_p, 0.0, 1.0)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("repetition_penalty", self.repetition_penalty, 0.01, 100.0)


@dataclass(frozen=True)
class Sampled:
    """A chosen token."""

    id: int
    logprob: float
    """Natural logarithm of the probability that the model itself gave it: log-softmax of the raw logits, before any
    rule. So it can be compared between runs with different rules."""


def sample(logits: ArrayLike, rules: Rules, uniform: float, history: Iterable[int] = ()) -> Sampled:
    """Choose a token from `logits` [n_vocab] with `uniform` from [0, 1).

    `history` holds the ids that the repetition penalty counts; ids outside the vocabulary are ignored. Raises
    NonFiniteLogitsError if a logit is NaN or +inf, or if all are -inf (single ones may be -inf: never chosen).
    """
    if isinstance(uniform, bool) or not 0.0 <= uniform < 1.0:
        raise OptionError(f"uniform must be a number from 0 up to but not including 1, not {uniform!r}.")
    raw = _checked(logits)
    scores = _penalised(raw, history, rules.repetition_penalty)
    if rules.temperature == 0:
        chosen = int(np.argmax(scores))
    else:
        ids, weights = candidates(scores, rules)
        running = np.cumsum(weights)
        place = int(np.searchsorted(running, uniform * running[-1], side="right"))
        # uniform * sum may round up to the sum itself; the last token that has any weight is meant then.
        chosen = int(ids[min(place, int(np.searchsorted(running, running[-1])))])
    return Sampled(chosen, float(raw[chosen] - _log_sum_exp(raw)))


def top(logits: ArrayLike, n: int) -> list[tuple[int, float]]:
    """Return the `n` most probable tokens as (id, logprob), most probable first, ties by id."""
    raw = _checked(logits)
    ids = _greatest(raw, n) if 0 < n < len(raw) else np.arange(len(raw) if n > 0 else 0)
    ids = ids[np.argsort(-raw[ids], kind="stable")]
    total = _log_sum_exp(raw)
    return [(int(i), float(raw[i] - total)) for i in ids]


def candidates(scores: Floats, rules: Rules) -> tuple[Ints, Floats]:
    """Apply rules 2 to 6 to penalised `scores` [n_vocab] (temperature above 0).

    Returns the kept ids in ascending order and their probabilities, relative to the greatest (which is 1).
    """
    ids = _greatest(scores, rules.top_k) if 0 < rules.top_k < len(scores) else np.arange(len(scores))
    kept = scores[ids]
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp((kept - kept.max()) / rules.temperature)
    if rules.top_p < 1:
        keep = _nucleus(weights, rules.top_p)
        ids, weights = ids[keep], weights[keep]
    if rules.min_p > 0:
        keep = np.flatnonzero(weights >= rules.min_p)
        ids, weights = ids[keep], weights[keep]
    return ids, weights


def _nucleus(weights: Floats, top_p: float) -> Ints:
    """Return the places, ascending, of the shortest run of greatest weights that holds `top_p` of their sum."""
    wanted = top_p * float(weights.sum())
    # Sorting a whole vocabulary costs milliseconds in wasm, and a few hundred tokens nearly always suffice.
    size = 1024
    while True:
        places = _greatest(weights, size) if size < len(weights) else np.arange(len(weights))
        places = places[np.argsort(-weights[places], kind="stable")]
        running = np.cumsum(weights[places])
        if running[-1] >= wanted or len(places) == len(weights):
            count = int(np.searchsorted(running, wanted, side="left")) + 1
            return np.sort(places[:count])
        size *= 8


def _greatest(values: Floats, k: int) -> Ints:
    """Return the places, ascending, of the `k` greatest values (0 < k < len); among equals the first ones."""
    border = np.partition(values, len(values) - k)[len(values) - k]
    above = values > border
    equal = np.flatnonzero(values == border)[: k - int(np.count_nonzero(above))]
    above[equal] = True
    return np.flatnonzero(above)


def _penalised(raw: Floats, history: Iterable[int], penalty: float) -> Floats:
    if penalty == 1:
        return raw
    ids = np.unique(np.fromiter(history, dtype=np.int64))
    ids = ids[(ids >= 0) & (ids < len(raw))]
    scores = raw.copy()
    scores[ids] = np.where(raw[ids] > 0, raw[ids] / penalty, raw[ids] * penalty)
    return scores


def _checked(logits: ArrayLike) -> Floats:
    """Return `logits` in float64, or raise if no distribution can be made of them."""
    raw = np.asarray(logits, dtype=np.float64)
    if raw.ndim != 1 or not len(raw):
        raise OptionError(f"logits must be one vector with at least one entry, not of shape {raw.shape}.")
    greatest = raw.max()  # NaN if any is
    if not np.isfinite(greatest):
        what = "NaN" if np.isnan(greatest) else "+infinite" if greatest > 0 else "only -infinite"
        raise NonFiniteLogitsError(
            f"The model computed {what} logits, so no token can be chosen. Its weights may be damaged, or too large "
            "for the chosen precision: load it again with precision f32."
        )
    return raw


def _log_sum_exp(raw: Floats) -> float:
    greatest = raw.max()
    with np.errstate(under="ignore"):
        return float(greatest + np.log(np.exp(raw - greatest).sum()))


def _check(name: str, value: object, low: float, high: float, *, whole: bool = False) -> None:
    number = None if isinstance(value, bool) or not isinstance(value, int if whole else int | float) else value
    if number is None or not low <= number <= high:  # NaN compares false
        kind = "a whole number" if whole else "a number"
        raise OptionError(f"{name} must be {kind} from {low:g} to {high:.10g}, not {str(value)[:40]!r}.")
