"""Looks into one model on both backends, and says by how much they differ."""

from typing import Any

import numpy as np

from app.engine.backends import NumpyBackend
from app.engine.inspection import InspectableRunner, inspect, parse_inspect, watched
from app.engine.models import weight_specs
from app.engine.ops.eager import EagerRunner
from app.engine.options import parse_options
from app.engine.profiling import profile
from app.engine.token_source import Token, TokenSource, source_for
from app.engine.weights.browser import FetchTransport
from app.engine.weights.hub import open_source
from app.engine.weights.loader import open_checkpoint, stream
from app.engine.weights.spec import Sink
from tests.browser.lab.models import load


class Words:
    """Stands for a tokenizer."""

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


async def numpy_runner(url: str) -> EagerRunner:
    source = open_source(url, transport=FetchTransport())
    checkpoint = await open_checkpoint(source)
    specs = weight_specs(checkpoint.config)

    async def fill(sink: Sink) -> None:
        await stream(checkpoint, specs, sink, source=source)

    runner = await NumpyBackend().make(checkpoint.config, "f32", fill, lambda: None)
    assert isinstance(runner, EagerRunner)
    return runner


def arrays(report: Any, path: str = "") -> dict[str, Any]:
    """Every number of a report by its place, without ids, which may differ where two are as likely."""
    if isinstance(report, dict):
        found: dict[str, Any] = {}
        for key, value in report.items():
            if key not in ("id", "text", "tokens", "ids", "source"):
                found |= arrays(value, f"{path}.{key}".strip("."))
        return found
    if isinstance(report, list) and report and isinstance(report[0], list | dict):
        return {
            key: value for index, item in enumerate(report) for key, value in arrays(item, f"{path}.{index}").items()
        }
    return {path: np.asarray(report, np.float64)}


async def differences(*, url: str, precision: str, ids: list[int], chunk: int, options: dict[str, Any]) -> Any:
    """The largest difference of each part, relative to its largest number where that is above 1; and the memory."""
    gpu: InspectableRunner = await load(url, precision=precision)
    cpu: InspectableRunner = await numpy_runner(url)
    words: Any = Words()
    found: dict[str, float] = {}
    try:
        gpu.inspector().chunk = chunk
        for position in {len(ids) - 1, len(ids) // 2}:
            raw = {**options, "ids": ids, "position": position}
            first, second = [
                arrays(await inspect(runner, words, parse_inspect(raw, runner.config))) for runner in (gpu, cpu)
            ]
            assert first.keys() == second.keys()
            for path, value in first.items():
                expected = second[path]
                assert value.shape == expected.shape, path
                name = path.split(".")[0] if path.startswith("lens") else path
                scale = max(1.0, float(np.abs(expected).max()))
                found[name] = max(found.get(name, 0.0), float(np.abs(value - expected).max()) / scale)
        same = float(np.abs(await gpu.logits() - await cpu.logits()).max())
        memory = gpu.memory()
    finally:
        gpu.free()
    return {"differences": found, "logits": same, "memory": memory, "memory_after": gpu.memory()}


async def watching(*, url: str, ids: list[int], new: int) -> Any:
    """What `watched` shows of one generation on each backend: how far it differs, and the ids of all, unwatched too."""
    words: Any = Words()
    options = parse_options({"ids": ids, "max_new_tokens": new, "seed": 5, "temperature": 0.7, "inspect": {"lens": 2}})

    async def run(runner: InspectableRunner, source: TokenSource | None) -> list[Token]:
        tokens: list[Token] = []
        runner.rewind(0)
        await runner.feed(ids)
        async for group in (source or source_for(runner, options))(runner, ids, options, new, 0):
            tokens += group
        return tokens

    gpu: InspectableRunner = await load(url, precision="f32")
    cpu: InspectableRunner = await numpy_runner(url)
    try:
        plain, first, second = await run(gpu, None), await run(gpu, watched), await run(cpu, watched)
        most = 0.0
        for one, other in zip(first, second, strict=True):
            here, there = arrays(one.inside), arrays(other.inside)
            assert here.keys() == there.keys()
            for path, value in here.items():
                if not path.startswith("lens"):
                    most = max(most, float(np.abs(value - there[path]).max() / max(1.0, np.abs(there[path]).max())))
        report = await profile(gpu, words, {"ids": ids, "new_tokens": 4})
    finally:
        gpu.free()
    return {
        "ids": [[token.id for token in tokens] for tokens in (plain, first, second)],
        "most": most,
        "profile": report,
    }
