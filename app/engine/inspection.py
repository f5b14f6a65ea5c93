"""What happens inside a model while it reads a text: attention, residual stream, logit lens, one token in detail.

Backends hand out tensors (`Inspector`); what people look at is made of them here, the same for all.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from app.engine.errors import CancelledError, OptionError
from app.engine.models import forward
from app.engine.ops.tap import PARTS
from app.engine.options import MAX_TOP, Options, parse_ids, whole
from app.engine.runner import Runner
from app.engine.sampling import sample, top
from app.engine.token_source import Token, uniforms
from app.engine.tokenizer import Tokenizer

Array = NDArray[np.float32]

MAX_MAP = 1 << 26
"""Weights that one answer holds at most: 256 MB."""
MAX_CELLS = 64
CELLS = 24
"""Side of an overview's thumbnails."""


class Inspector(Protocol):
    """Tensors of one step of a model, kept until the next."""

    chunk: int
    """Tokens that a step takes at most."""

    async def feed(self, ids: Sequence[int], *, parts: bool = False) -> None:
        """Read `ids` behind what the runner's cache holds, and keep what passes; `parts`: for one token, PARTS too."""

    async def stream(self) -> Array:
        """The residual stream [n_layer + 1, n, n_embd]: the embeddings, then what each layer made of them."""

    async def attention(self, layers: Sequence[int], heads: Sequence[int], *, cell: int, cells: int) -> Array:
        """Attention [layers, heads, n, cells], where a cell sums the weights on `cell` positions next to each other."""

    async def part(self, name: str, layer: int) -> Array:
        """One of PARTS for the step's last token: [heads, head_dim] or [width]. Only after a feed with `parts`."""

    async def lens(self, rows: Array) -> Array:
        """Residual streams [m, n_embd] through the model's final norm and output matrix: logits [m, n_vocab]."""

    def free(self) -> None:
        """Give its memory back."""


@runtime_checkable
class InspectableRunner(Runner, Protocol):
    """A runner that lets itself be looked into."""

    config: Any
    """Its shape: n_layer, n_head, n_embd and the like, whatever the family."""

    def inspector(self) -> Inspector:
        """The one inspector of this runner."""


@dataclass(frozen=True, kw_only=True)
class InspectOptions:
    """What to look at. `parse_inspect` checks them."""

    prompt: str | None = None
    ids: tuple[int, ...] | None = None
    layers_of_maps: tuple[int, ...] = ()
    heads_of_maps: tuple[int, ...] = ()
    overview: int = 0
    layers: bool = False
    lens: int = 0
    detail: int | None = None
    position: int | None = None


def parse_inspect(raw: object, config: Any) -> InspectOptions:
    """Validate the options of `inspect`; see `inspect`. Raises OptionError."""
    names = ("prompt", "ids", "attention", "overview", "layers", "lens", "detail", "position")
    if not isinstance(raw, Mapping):
        raise OptionError("inspect takes an object of options.")
    given = {name: value for name, value in raw.items() if value is not None and value is not False}
    if unknown := [name for name in given if name not in names]:
        raise OptionError(f"Unknown option {str(unknown[0])[:60]!r}. inspect takes {', '.join(names)}.")
    if ("prompt" in given) == ("ids" in given):
        raise OptionError("Give either prompt or ids.")
    if not isinstance(given.get("prompt", ""), str):
        raise OptionError("prompt must be a string.")
    maps = given.get("attention")
    if maps is not None and maps is not True and not (isinstance(maps, Mapping) and maps.keys() <= {"layers", "heads"}):
        raise OptionError("attention must be true or {layers, heads}, lists of numbers from 0 up.")
    chosen = maps if isinstance(maps, Mapping) else {}
    overview = given.get("overview", 0)
    lens = given.get("lens", 0)
    return InspectOptions(
        prompt=given.get("prompt"),
        ids=parse_ids("ids", given["ids"]) if "ids" in given else None,
        layers_of_maps=_numbers("attention.layers", chosen.get("layers"), config.n_layer) if maps else (),
        heads_of_maps=_numbers("attention.heads", chosen.get("heads"), config.n_head) if maps else (),
        overview=CELLS if overview is True else whole("overview", overview, 0, MAX_CELLS),
        layers=bool(given.get("layers", False)),
        lens=whole("lens", lens, 0, MAX_TOP),
        detail=whole("detail", given["detail"], 0, config.n_layer - 1) if "detail" in given else None,
        position=whole("position", given["position"], 0, config.n_ctx - 1) if "position" in given else None,
    )


def _numbers(name: str, value: object, count: int) -> tuple[int, ...]:
    if value is None:
        return tuple(range(count))
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise OptionError(f"{name} must be a list of numbers from 0 to {count - 1}.")
    return tuple(whole(name, item, 0, count - 1) for item in value)


async def inspect(
    runner: InspectableRunner,
    tokenizer: Tokenizer,
    options: InspectOptions,
    *,
    cancelled: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Read a text and return what was asked for.

    Always {ids, tokens, n, position, n_layer, n_head, n_kv_head, source}, where source is the model's file. Arrays are
    f32, flat or of the shape given here:

    - attention {layers, heads, maps [layers, heads, n, n]}: the weight of query (row) on key (column)
    - overview {cells, cell, maps [n_layer, n_head, cells, cells]}: the same for all, each cell the mean over its
      queries of their weight on `cell` neighbouring keys
    - layers {norms, cosines: [n_layer + 1, n], strip [n_layer + 1, n_embd]}: the residual stream's length, and its
      cosine to the final one of the same token, before the first layer and after each; strip is that of `position`
    - lens: for each of these places the `lens` likeliest tokens [{id, text, probability}], if the model ended there
    - detail {layer, embedding [n_embd], q, k, v [heads, head_dim], attention [n_head, position + 1], attended, hidden,
      out [n_embd]}: the token at `position` in the layer `detail`

    `position` is the text's last unless given. The runner's cache holds the text afterwards. Raises OptionError for an
    empty text, or one that is longer than the context; CancelledError.
    """
    ids = tokenizer.encode(options.prompt or "") if options.ids is None else list(options.ids)
    ids = list(parse_ids("ids", ids, runner.n_vocab))
    n, config = len(ids), runner.config
    if not 1 <= n <= runner.n_ctx:
        raise OptionError(f"There must be 1 to {runner.n_ctx} tokens to look at, not {n}.")
    if options.position is not None and options.position >= n:
        raise OptionError(f"position must be from 0 to {n - 1}, not {options.position}.")
    position = n - 1 if options.position is None else options.position
    if n * n * len(options.layers_of_maps) * len(options.heads_of_maps) > MAX_MAP:
        raise OptionError(f"These are too many attention maps of {n}×{n} at once: ask for fewer layers or heads.")

    inspector = runner.inspector()
    maps, overviews, norms, cosines = [], [], [], []
    strip: Array | None = None
    cell = -(-n // options.overview) if options.overview else 1
    wants_stream = options.layers or options.lens or options.detail is not None
    detail: dict[str, Any] | None = None
    runner.rewind(0)
    for start, stop in _chunks(n, inspector.chunk, position if options.detail is not None else None):
        await asyncio.sleep(0)
        if cancelled():
            raise CancelledError("Looking into the model was stopped.")
        single = options.detail is not None and start == position
        await inspector.feed(ids[start:stop], parts=single)
        if options.layers_of_maps:
            maps.append(await inspector.attention(options.layers_of_maps, options.heads_of_maps, cell=1, cells=n))
        if options.overview:
            every = range(config.n_layer), range(config.n_head)
            overviews.append(await inspector.attention(*every, cell=cell, cells=-(-n // cell)))
        if wants_stream and (options.layers or start <= position < stop):
            stream = await inspector.stream()
            lengths, alike = shape_of(stream)
            norms.append(lengths)
            cosines.append(alike)
            if start <= position < stop:
                strip = np.ascontiguousarray(stream[:, position - start])
        if single and options.detail is not None and strip is not None:
            detail = await _detail(inspector, options.detail, strip, config.n_head, stop)

    report: dict[str, Any] = {
        "ids": ids,
        "tokens": pieces(tokenizer, ids),
        "n": n,
        "position": position,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "source": f"{forward(config).__module__.replace('.', '/')}.py",
        "n_kv_head": getattr(config, "n_kv_head", config.n_head),
    }
    if options.layers_of_maps:
        chosen = {"layers": list(options.layers_of_maps), "heads": list(options.heads_of_maps)}
        report["attention"] = {**chosen, "maps": np.concatenate(maps, axis=2)}
    if options.overview:
        thumbnails = pooled(np.concatenate(overviews, axis=2), cell)
        report["overview"] = {"cell": cell, "cells": -(-n // cell), "maps": thumbnails}
    if options.layers:
        joined = (np.concatenate(norms, axis=1), np.concatenate(cosines, axis=1))
        report["layers"] = {"norms": joined[0], "cosines": joined[1], "strip": strip}
    if options.lens and strip is not None:
        report["lens"] = ranked(await inspector.lens(strip), options.lens, tokenizer)
    if detail is not None:
        report["detail"] = detail
    return report


async def watched(
    runner: Runner, ids: Sequence[int], options: Options, limit: int, done: int = 0
) -> AsyncGenerator[list[Token], None]:
    """A `TokenSource` that goes token by token and shows with each what the model looked like that chose it.

    That is `inside` {position, attention [n_layer, n_head, position + 1], norms, cosines: [n_layer + 1], strip
    [n_layer + 1, n_embd], lens}: the last token's row of every map, its residual stream as in `inspect`, and, if the
    options ask for it, for each place of the stream the likeliest tokens as (id, log-probability).
    """
    inspector = cast(InspectableRunner, runner).inspector()
    config, history = cast(InspectableRunner, runner).config, list(ids)
    runner.rewind(len(history) - 1)  # the last token is read once more, to be seen
    for uniform in uniforms(options.seed, limit, skip=done).tolist():
        await inspector.feed(history[-1:])
        logits = await runner.logits()
        stream = await inspector.stream()
        every = range(config.n_layer), range(config.n_head)
        weights = await inspector.attention(*every, cell=1, cells=len(history))
        lens: Sequence[Array] = list(await inspector.lens(stream[:, 0])) if options.inspect else []
        norms, cosines = shape_of(stream)
        inside = {
            "position": len(history) - 1,
            "attention": weights[:, :, 0],
            "norms": norms[:, 0],
            "cosines": cosines[:, 0],
            "strip": np.ascontiguousarray(stream[:, 0]),
            "lens": [top(row, options.inspect or 0) for row in lens],
        }
        chosen = sample(logits, options.rules, uniform, history=history)
        best = top(logits, options.top) if options.top else []
        yield [Token(id=chosen.id, logprob=chosen.logprob, top=best, inside=inside)]
        history.append(chosen.id)


def _chunks(n: int, size: int, alone: int | None) -> list[tuple[int, int]]:
    """Cut [0, n) into chunks of at most `size`, the position `alone` into one of its own."""
    edges = [0, n] if alone is None else [0, alone, alone + 1, n]
    return [(start, min(start + size, stop)) for first, stop in pairwise(edges) for start in range(first, stop, size)]


async def _detail(inspector: Inspector, layer: int, strip: Array, n_head: int, length: int) -> dict[str, Any]:
    found = {name: await inspector.part(name, layer) for name in PARTS}
    weights = (await inspector.attention([layer], range(n_head), cell=1, cells=length))[0, :, 0]
    return {"layer": layer, "embedding": strip[0], "attention": weights, "out": strip[layer + 1], **found}


def shape_of(stream: Array) -> tuple[Array, Array]:
    """The stream's lengths, and its cosines to the last one of the same token: [layers, n] each."""
    wide = stream.astype(np.float64)
    lengths = np.sqrt((wide * wide).sum(axis=-1))
    products = (wide * wide[-1]).sum(axis=-1)
    cosines = products / np.maximum(lengths * lengths[-1], 1e-30)
    return lengths.astype(np.float32), cosines.astype(np.float32)


def pooled(rows: Array, cell: int) -> Array:
    """Average the queries [layers, heads, n, cells] in groups of `cell`."""
    starts = np.arange(0, rows.shape[2], cell)
    counts = np.minimum(cell, rows.shape[2] - starts).astype(np.float32)
    return np.asarray(np.add.reduceat(rows, starts, axis=2) / counts[:, None], dtype=np.float32)


def ranked(logits: Array, count: int, tokenizer: Tokenizer) -> list[list[dict[str, Any]]]:
    """The likeliest tokens of each row of logits."""
    return [
        [
            {"id": token, "text": tokenizer.decode([token]), "probability": float(np.exp(logprob))}
            for token, logprob in top(row, count)
        ]
        for row in logits
    ]


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Each token with its own text; what is no whole character by itself shows as U+FFFD."""
    return [{"id": token, "text": tokenizer.decode([token])} for token in ids]
