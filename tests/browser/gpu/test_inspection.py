"""Looking into a model on the GPU shows what NumPy shows."""

import json

import pytest

from tests.browser.lab_page import FIXTURES, Lab
from tests.models import STORY

pytestmark = pytest.mark.browser

EVERYTHING = {"attention": {"layers": [0, 1]}, "overview": 4, "layers": True, "lens": 3, "detail": 1}


def check(lab: Lab, url: str, ids: list[int], *, precision: str, chunk: int) -> None:
    answer = lab.call(
        "inspection", "differences", url=url, precision=precision, ids=ids, chunk=chunk, options=EVERYTHING
    )
    parts = answer["differences"]
    assert {"attention.maps", "overview.maps", "layers.norms", "layers.cosines", "layers.strip", "lens"} <= set(parts)
    assert {"detail.q", "detail.k", "detail.v", "detail.attention", "detail.hidden", "detail.out"} <= set(parts)
    assert max(parts.values()) <= 1e-3, parts
    assert answer["logits"] <= 2e-3
    assert answer["memory"]["inspection"] > 0
    assert set(answer["memory_after"]) <= {"staging"}


@pytest.mark.parametrize("case", ["plain-f32", "qwen3-head-24", "neo-local-windows"])
def test_random_models(lab: Lab, lab_url: str, case: str) -> None:
    prompts = json.loads((FIXTURES / "parity" / case / "expected.json").read_text())["prompts"]
    check(lab, f"{lab_url}fixtures/parity/{case}/", prompts[-1]["ids"], precision="f32", chunk=7)


def test_the_story_model(lab: Lab, lab_url: str) -> None:
    ids = json.loads((STORY / "reference.json").read_text())["prompts"][0]["ids"]
    check(lab, f"{lab_url}models/story/", (ids * 20)[:21], precision="f16", chunk=128)


def test_what_is_shown_live_is_the_same_and_changes_nothing(lab: Lab, lab_url: str) -> None:
    answer = lab.call(
        "inspection", "watching", url=f"{lab_url}fixtures/parity/plain-f32/", ids=[3, 14, 15, 9, 2, 6], new=5
    )
    plain, on_gpu, in_numpy = answer["ids"]
    assert plain == on_gpu == in_numpy
    assert answer["most"] <= 1e-3
    decode, prefill = answer["profile"]["decode"], answer["profile"]["prefill"]
    assert decode["gpu_ms"] > 0
    assert sum(decode["kernels_ms"].values()) > 0
    assert {name.split()[0] for name in decode["kernels_ms"]} >= {"embed", "attend_split", "matvec", "sample"}
    assert prefill["tokens"] == 6
    assert prefill["dispatches"] > 10
