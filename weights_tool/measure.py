"""What a model's folder computes, on the CPU: logits, and its perplexity on a text."""

import asyncio
from itertools import pairwise
from pathlib import Path

import numpy as np

from app.engine.errors import ModelFileError
from app.engine.models import weight_specs
from app.engine.ops.eager import EagerRunner, NumpySink
from app.engine.weights.loader import load_tokenizer, open_checkpoint, stream
from weights_tool.folder import folder_source
from weights_tool.writing import Floats


async def read_params(folder: Path) -> NumpySink:
    """Read a model's weights with the engine's own loader."""
    source = folder_source(folder)
    checkpoint = await open_checkpoint(source)
    sink = NumpySink(checkpoint.config)
    await stream(checkpoint, weight_specs(checkpoint.config), sink, source=source)
    return sink


async def open_runner(folder: Path) -> EagerRunner:
    """Load a model with the engine's own loader and NumPy operations."""
    sink = await read_params(folder)
    return EagerRunner(sink.config, sink.params)


def logits(folder: Path, ids: list[int]) -> Floats:
    """Return the logits after the last of `ids`."""

    async def compute() -> Floats:
        runner = await open_runner(folder)
        await runner.feed(ids)
        return await runner.logits()

    return asyncio.run(compute())


def perplexity(folder: Path, text: str, tokens: int) -> float:
    """Return exp of the mean of -log p over a text's first tokens, read in stretches as long as the context.

    Raises ModelFileError if there is nothing to predict.
    """
    return asyncio.run(_perplexity(folder, text, tokens))


async def _perplexity(folder: Path, text: str, tokens: int) -> float:
    runner = await open_runner(folder)
    ids = (await load_tokenizer(folder_source(folder), runner.config)).encode(text)[:tokens]
    losses: list[float] = []
    for start in range(0, len(ids), runner.n_ctx):
        runner.rewind(0)
        stretch = ids[start : start + runner.n_ctx]
        for given, wanted in pairwise(stretch):
            await runner.feed([given])
            scores = (await runner.logits()).astype(np.float64)
            scores -= scores.max()
            losses.append(float(np.log(np.exp(scores).sum()) - scores[wanted]))
    if not losses:
        raise ModelFileError("The text has fewer than two tokens, so there is nothing to predict in it.")
    return float(np.exp(np.mean(losses)))
