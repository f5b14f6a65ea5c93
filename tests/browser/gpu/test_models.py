"""GPU plans against transformers' own numbers, in headless Chromium."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.engine.ops.fuse import RULES
from tests.browser.lab_page import FIXTURES, Lab

pytestmark = pytest.mark.browser

MODEL_TYPES = {
    path.parent.name: json.loads(path.read_text())["model_type"]
    for path in sorted((FIXTURES / "parity").glob("*/config.json"))
}
CASES = [case for case, model_type in MODEL_TYPES.items() if model_type == "gpt2"]
FAMILIES = [case for case, model_type in MODEL_TYPES.items() if model_type != "gpt2"]
STORY = Path(__file__).parents[3] / "static" / "models" / "story"
TOLERANCE = {"f32": 2e-3, "f16": 3e-2}
"""Largest difference of a logit, of unit scale."""


def expected(case: str) -> list[dict[str, Any]]:
    prompts: list[dict[str, Any]] = json.loads((FIXTURES / "parity" / case / "expected.json").read_text())["prompts"]
    return prompts


def check(
    lab: Lab, lab_url: str, case: str, precision: str, *, quick: bool = False, tokens: int | None = None, **options: Any
) -> dict[str, Any]:
    """Run a case, with all its tokens or so many; `quick`: one short prompt and three tokens."""
    prompts = expected(case)
    tokens = tokens or len(prompts[0]["greedy"])
    if quick:
        prompts, tokens = prompts[1:2], 3
    answer: dict[str, Any] = lab.call(
        "models",
        "answers",
        url=f"{lab_url}fixtures/parity/{case}/",
        prompts=[prompt["ids"] for prompt in prompts],
        greedy=tokens,
        precision=precision,
        **options,
    )
    for prompt, result in zip(prompts, answer["results"], strict=True):
        difference = np.abs(np.array(result["logits"]) - np.array(prompt["logits"])).max()
        assert difference <= TOLERANCE[precision]
        for position, gap in enumerate(prompt["gaps"][:tokens]):
            if gap <= 2 * TOLERANCE[precision]:
                break  # within the tolerance either token is right, and then the texts part
            assert result["greedy"][position] == prompt["greedy"][position]
    # a freed model leaves nothing behind but the device's staging buffer
    assert set(answer["memory_after"]) <= {"staging"}
    return answer


@pytest.mark.parametrize("case", CASES)
def test_logits_and_greedy_continuations(lab: Lab, lab_url: str, case: str) -> None:
    check(lab, lab_url, case, "f32", tokens=8)


# One of each kind of file.
@pytest.mark.parametrize("case", ["plain-f32", "many-layers-f16", "bf16-sharded-untied-1009", "wide-head-bf16"])
def test_logits_in_f16(lab: Lab, lab_url: str, case: str) -> None:
    check(lab, lab_url, case, "f16", tokens=8)


@pytest.mark.parametrize("case", FAMILIES)
def test_every_family(lab: Lab, lab_url: str, case: str) -> None:
    check(lab, lab_url, case, "f32", tokens=5)


@pytest.mark.parametrize("case", ["llama-biases-llama3", "qwen3-head-24", "neox-parallel"])
def test_families_in_f16_and_in_parts(lab: Lab, lab_url: str, case: str) -> None:
    """With matrices in parts, rows that turn together or gate each other may be in two of them."""
    whole = check(lab, lab_url, case, "f16", quick=True, limits="default")
    parts = check(lab, lab_url, case, "f16", quick=True, limits="default", max_binding=10_000)
    assert parts["dispatches"]["decode"] > whole["dispatches"]["decode"]


# Launches of a layer beside embedding and lm_head: Qwen3's head norm is one more.
@pytest.mark.parametrize(("case", "launches"), [("qwen3-head-24", 6), ("neox-sequential", 5)])
def test_unfused_families_agree(lab: Lab, lab_url: str, case: str, launches: int) -> None:
    fused = check(lab, lab_url, case, "f32", quick=True)
    assert fused["dispatches"]["decode"] == 2 * launches + 2
    unfused = check(lab, lab_url, case, "f32", quick=True, rules=[])
    assert unfused["dispatches"]["decode"] > 2 * fused["dispatches"]["decode"]


@pytest.mark.parametrize(
    ("case", "precision"), [("qwen2-grouped", "q4"), ("llama-biases-llama3", "q8"), ("neox-parallel", "q4")]
)
def test_quantised_families(lab: Lab, lab_url: str, case: str, precision: str) -> None:
    """Against NumPy with the same codes, but for those few where a quotient lies between two."""
    ids = [prompt["ids"] for prompt in expected(case)]
    url = f"{lab_url}fixtures/parity/{case}/"
    differences = lab.call("models", "quantised_differences", url=url, prompts=ids, precision=precision)
    assert len(differences) == len(ids)
    assert max(differences) <= 0.02


@pytest.mark.parametrize("precision", ["q8", "q4"])
@pytest.mark.parametrize("case", ["plain-f32", "silu-separate-head", "bf16-sharded-untied-1009"])
def test_quantised_logits(lab: Lab, lab_url: str, case: str, precision: str) -> None:
    """Random weights are the hardest to quantise; the bounds are on the root mean square of logits of unit scale."""
    prompts = expected(case)
    url = f"{lab_url}fixtures/parity/{case}/"
    ids = [prompt["ids"] for prompt in prompts]
    answer = lab.call("models", "answers", url=url, prompts=ids, greedy=1, precision=precision)
    for prompt, result in zip(prompts, answer["results"], strict=True):
        difference = np.array(result["logits"]) - np.array(prompt["logits"])
        assert 0 < np.sqrt((difference**2).mean()) <= {"q8": 0.03, "q4": 0.4}[precision]


@pytest.mark.parametrize("rules", [[], *([rule for rule in RULES if rule != left_out] for left_out in RULES)], ids=str)
def test_unfused_plans_agree(lab: Lab, lab_url: str, rules: list[str]) -> None:
    case = "plain-f32" if "gate" in rules or not rules else "llama-one-kv-head"
    fused = check(lab, lab_url, case, "f32", quick=True)
    partly = check(lab, lab_url, case, "f32", quick=True, rules=rules)
    assert partly["dispatches"]["decode"] >= fused["dispatches"]["decode"]
    if not rules:
        assert partly["dispatches"]["decode"] > 2 * fused["dispatches"]["decode"]


@pytest.mark.parametrize(
    ("case", "tuning"),
    [
        ("head-80-relu", {}),
        ("head-80-relu", {"lanes": 32, "matvec_threads": 64, "subgroup_size": 4}),
        ("head-80-relu", {"lanes": 8, "matvec_threads": 8, "split": 32, "tile": 32}),
        ("head-80-relu", {"lanes": 64, "matvec_threads": 128, "tile": 16, "side": 4}),
        ("qwen3-head-24", {}),
        (
            "qwen3-head-24",
            {"lanes": 4, "matvec_threads": 32, "combine_threads": 32, "most_lanes": 32, "subgroup_size": 4},
        ),
        ("llama-one-kv-head", {"lanes": 32, "matvec_threads": 64, "subgroup_size": 4}),
    ],
    ids=str,
)
def test_every_tuning_gives_the_same_numbers(lab: Lab, lab_url: str, case: str, tuning: dict[str, Any]) -> None:
    """Whole models on the adapters that others have; the kernels themselves are tested over more of it."""
    check(lab, lab_url, case, "f32", quick=True, tuning=tuning)


@pytest.mark.parametrize(
    ("case", "precision", "most"),
    [("plain-f32", "f32", 5_000), ("silu-separate-head", "f16", 5_000), ("wide-head-bf16", "f16", 50_000)],
)
def test_small_bindings_split_matrices_by_rows(lab: Lab, lab_url: str, case: str, precision: str, most: int) -> None:
    whole = check(lab, lab_url, case, precision, quick=True, limits="default")
    parts = check(lab, lab_url, case, precision, quick=True, limits="default", max_binding=most)
    assert parts["dispatches"]["decode"] > whole["dispatches"]["decode"]


@pytest.mark.parametrize("piece_bytes", [16384, 65536])
def test_weights_may_arrive_in_small_pieces(lab: Lab, lab_url: str, piece_bytes: int) -> None:
    check(lab, lab_url, "plain-f32", "f16", piece_bytes=piece_bytes)
    check(lab, lab_url, "wide-head-bf16", "f32", piece_bytes=piece_bytes)


def test_a_prompt_in_pieces_gives_the_same_logits(lab: Lab, lab_url: str) -> None:
    ids = expected("plain-f32")[-1]["ids"]
    difference = lab.call(
        "models",
        "split_invariance",
        url=f"{lab_url}fixtures/parity/plain-f32/",
        ids=ids,
        cuts=[1, 2, 9, len(ids) - 1],
        chunk=16,
    )
    assert difference <= 1e-4


def test_loading_ten_times_does_not_grow_memory(lab: Lab, lab_url: str) -> None:
    seen = lab.call("models", "reload", url=f"{lab_url}fixtures/parity/plain-f32/", times=10)
    assert seen == [seen[0]] * 10
    assert set(seen[0]) <= {"staging"}


def test_the_story_model_reproduces_its_reference(lab: Lab, lab_url: str) -> None:
    reference = json.loads((STORY / "reference.json").read_text())
    answer = lab.call(
        "models",
        "answers",
        url=f"{lab_url}models/story/",
        prompts=[prompt["ids"] for prompt in reference["prompts"][:3]],
        greedy=4,
        precision="f16",
    )
    for prompt, result in zip(reference["prompts"][:3], answer["results"], strict=True):
        logits = np.array(result["logits"])[prompt["top20_ids"]]
        assert np.abs(logits - prompt["top20_logits"]).max() <= 2e-3
        assert result["greedy"] == prompt["greedy_ids"][:4]
