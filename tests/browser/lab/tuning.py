"""The autotuner with a clock of its own, and one tuning after the other on a real model."""

from typing import Any

from app.engine.errors import OptionError
from app.engine.gpu.select import Tuning
from app.engine.gpu.tune import parse_tuning, tuned
from app.engine.models.config import GPT2Config
from tests.browser.lab.kernels import device
from tests.browser.lab.models import load


async def choose(*, times: dict[str, float], n_layer: int) -> dict[str, Any]:
    """Tune twice for a model of `n_layer` layers, where a variant takes the share that `times` says, else 1."""
    gpu = await device()
    config = GPT2Config(n_layer=n_layer, n_head=1, n_embd=16, n_vocab=100, n_ctx=8, n_inner=64)
    measured: list[dict[str, Any]] = []

    async def compare(tuning: Tuning) -> float:
        different = {
            name: getattr(tuning, name)
            for name in Tuning.__dataclass_fields__
            if getattr(tuning, name) != getattr(gpu.tuning(), name)
        }
        measured.append(different)
        return times.get(next(iter(different), "default"), 1.0)

    first, report = await tuned(gpu, config, "f16", compare)
    count = len(measured)
    second, again = await tuned(gpu, config, "f16", compare)
    return {
        "same": first == second,
        "lanes": first.lanes,
        "source": [report["source"], again["source"]],
        "measured": [count, len(measured)],
        "shares": report["shares"],
    }


async def parse(*, text: str) -> str | int:
    """`lanes` of a given tuning, or the error's message."""
    try:
        return parse_tuning(text, Tuning()).lanes
    except OptionError as error:
        return str(error)


async def on_a_model(*, url: str) -> dict[str, Any]:
    """What a software adapter, which is not tuned, reports; and that the model works afterwards."""
    runner = await load(url, precision="f32")
    try:
        report = await runner.tune("f32")
        await runner.feed([1, 2])
        return {"source": report["source"], "finite": bool(abs((await runner.logits()).sum()) < 1e6)}
    finally:
        runner.free()
