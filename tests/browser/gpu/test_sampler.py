"""The GPU sampler against sampling.py: the same token for the same uniform number."""

import json
import os
from base64 import b64encode
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from app.engine.gpu.results import BAD_LOGITS, OK, UNDECIDED
from app.engine.sampling import Rules, candidates, sample, top
from tests.browser.lab_page import FIXTURES, Lab

pytestmark = pytest.mark.browser

DRAWS = int(os.environ.get("TABGPT_DRAWS", "2000"))
"""For each rule. BENCHMARKS.md tells of 20,000 on a GPU; a software adapter takes minutes for them."""
NEAR = 2e-5
"""How close to the border between two tokens' shares a uniform number may be for f32 to fall on the other side."""

RULES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 2.5},
    {"temperature": 0.8, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.9},
    {"temperature": 0.8, "top_p": 0.98},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.7, "top_k": 100, "top_p": 0.95, "min_p": 0.01},
    {"temperature": 0.6, "top_k": 300, "top_p": 0.5},
    {"temperature": 1.2, "top_p": 0.8, "min_p": 0.03},
    {"temperature": 0.1, "top_k": 40},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_p": 0.0},
]


def logits_of(n_vocab: int, seed: int = 0, spread: float = 3.0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).normal(size=n_vocab) * spread - 30).astype(np.float32)


def draw(
    lab: Lab, logits: NDArray[np.float32], rules: dict[str, Any], uniforms: NDArray[Any], **more: Any
) -> list[Any]:
    encoded = b64encode(logits.tobytes()).decode()
    more.setdefault("history", [])
    drawn: list[Any] = lab.call(
        "sampler", "draws", logits=encoded, rules=rules, uniforms=[float(u) for u in uniforms], **more
    )
    return drawn


def check(drawn: list[Any], logits: NDArray[np.float32], rules: dict[str, Any], uniforms: NDArray[np.float32]) -> int:
    """Every token equal, but for uniform numbers at the border of its share; returns how many of these there were."""
    near = 0
    rule = Rules(**rules)
    for (token, logprob, status, _), uniform in zip(drawn, uniforms, strict=True):
        assert status == OK
        if token == sample(logits, rule, float(uniform)).id:
            assert logprob == pytest.approx(float(log_softmax(logits)[token]), abs=1e-4)
            continue
        ids, weights = candidates(logits.astype(np.float64), rule)
        shares = np.cumsum(weights) / weights.sum()
        place = int(np.searchsorted(ids, token))
        assert ids[place] == token, (rules, uniform)
        start = shares[place - 1] if place else 0.0
        assert start - NEAR <= uniform <= shares[place] + NEAR, (rules, uniform)
        near += 1
    return near


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    raw = logits.astype(np.float64)
    greatest = raw.max()
    result: NDArray[np.float64] = raw - greatest - np.log(np.exp(raw - greatest).sum())
    return result


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_many_draws(lab: Lab, rules: dict[str, Any]) -> None:
    logits = logits_of(1003)
    uniforms = np.random.default_rng(7).random(DRAWS, dtype=np.float32)
    drawn = draw(lab, logits, rules, uniforms)
    near = check(drawn, logits, rules, uniforms)
    print(f"{rules}: {near} of {DRAWS} within rounding of a border")
    assert near <= max(4, DRAWS * 0.002)


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("n_vocab", [1, 2, 513, 50257, 256_000])
def test_vocabularies_of_all_sizes(lab: Lab, rules: dict[str, Any], n_vocab: int) -> None:
    logits = logits_of(n_vocab, seed=n_vocab, spread=5.0)
    uniforms = np.array([0.0, 0.25, 0.5, 0.75, 0.999, 1 - 2**-24], np.float32)
    drawn = draw(lab, logits, rules, uniforms)
    check(drawn, logits, rules, uniforms)


def test_ties_go_to_the_lowest_ids(lab: Lab) -> None:
    logits = np.zeros(2000, np.float32)
    logits[[3, 700, 701, 1999]] = 4.0
    uniforms = np.array([0.0, 0.3, 0.6, 0.9], np.float32)
    assert [d[0] for d in draw(lab, logits, {"temperature": 0.0}, uniforms)] == [3] * 4
    assert [d[0] for d in draw(lab, logits, {"top_k": 3}, uniforms)] == [3, 3, 700, 701]
    check(draw(lab, logits, {"top_k": 3}, uniforms), logits, {"top_k": 3}, uniforms)


def test_the_repetition_penalty_counts_what_was_drawn(lab: Lab) -> None:
    logits = logits_of(600, spread=2.0) + 30  # both signs
    every: list[dict[str, Any]] = [
        {"temperature": 0.0, "repetition_penalty": 1.5},
        {"top_k": 20, "repetition_penalty": 3.0},
    ]
    for rules in every:
        uniforms = np.random.default_rng(3).random(60, dtype=np.float32)
        history = [1, 5, 599]
        drawn = draw(lab, logits, rules, uniforms, history=history)
        for (token, *_), uniform in zip(drawn, uniforms, strict=True):
            assert token == sample(logits, Rules(**rules), float(uniform), history).id
            history.append(token)


@pytest.mark.parametrize("rules", [{"temperature": 0.0}, {"temperature": 1.0}, {"top_k": 5}], ids=str)
def test_the_likeliest_tokens_come_along(lab: Lab, rules: dict[str, Any]) -> None:
    logits = logits_of(3000)
    uniforms = np.array([0.1, 0.9], np.float32)
    drawn = draw(lab, logits, rules, uniforms, top=20)
    check(drawn, logits, rules, uniforms)
    for _, _, _, ranked in drawn:
        wanted = top(logits, 20)
        assert [token for token, _ in ranked] == [token for token, _ in wanted]
        np.testing.assert_allclose([p for _, p in ranked], [p for _, p in wanted], atol=1e-4)


def test_bad_logits_are_reported(lab: Lab) -> None:
    for value in (np.nan, np.inf):
        logits = logits_of(1500)
        logits[1200] = value
        for rules in RULES[:5]:
            assert draw(lab, logits, rules, np.array([0.5]))[0][2] == BAD_LOGITS
    all_gone = np.full(700, -np.inf, np.float32)
    assert draw(lab, all_gone, {"temperature": 0.0}, np.array([0.5]))[0][2] == BAD_LOGITS
    some_gone = logits_of(700)
    some_gone[:300] = -np.inf
    uniforms = np.random.default_rng(1).random(50, dtype=np.float32)
    for rules in RULES:
        check(draw(lab, some_gone, rules, uniforms), some_gone, rules, uniforms)


def test_too_many_candidates_are_left_to_python(lab: Lab) -> None:
    flat = np.zeros(5000, np.float32)
    assert draw(lab, flat, {"top_p": 0.9}, np.array([0.5]))[0][2] == UNDECIDED


@pytest.mark.parametrize(
    "rules",
    [{"temperature": 0.0}, {"temperature": 1.0}, {"top_k": 8}, {"top_p": 0.5, "repetition_penalty": 1.3}],
    ids=str,
)
def test_every_depth_gives_the_same_tokens(lab: Lab, lab_url: str, rules: dict[str, Any]) -> None:
    prompt = json.loads((FIXTURES / "parity" / "plain-f32" / "expected.json").read_text())["prompts"][1]["ids"]
    uniforms = np.random.default_rng(11).random(24, dtype=np.float32)
    result = lab.call(
        "sampler",
        "generations",
        url=f"{lab_url}fixtures/parity/plain-f32/",
        ids=prompt,
        rules=rules,
        uniforms=[float(u) for u in uniforms],
        depths=[1, 2, 5, 64, None],
        stop_after=9,
    )
    first = result["runs"][0]
    assert len(first) == 24
    assert result["runs"] == [first] * 5
    # broken off with tokens in flight, then continued: the same text
    assert result["broken"] == first
    assert result["memory"].get("staging", 0) < 100_000
