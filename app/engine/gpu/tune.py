"""Tries a handful of kernel parameters on this adapter, for the loaded model's shapes, and remembers the best.

The defaults are good everywhere; what is found here is worth some percent. Software adapters are left alone, and so are
browsers without timestamps, whose clocks say too little about a fraction of a millisecond.
"""

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, fields, replace
from typing import Any

import js
from pyodide.ffi import JsException, to_js

from app import __version__
from app.engine.errors import OptionError
from app.engine.gpu.device import Device, js_object
from app.engine.gpu.select import Tuning
from app.engine.models.config import Config

VARIANTS: tuple[dict[str, int | None], ...] = (
    {"matvec_threads": 256},
    {"matvec_threads": 64},
    {"lanes": 64},
    {"most_lanes": 32},
    {"subgroup_size": None},
    {"combine_threads": 128},
)
"""Changes to the adapter's defaults, each tried alone: rows to a workgroup, threads to a row, subgroups or not."""
BUDGET_S = 0.8
"""No variant is begun after this time."""
GAIN = 0.97
"""The share of the default's time that a variant must stay below: what is closer is noise."""
_FILE = "tabgpt-tuning.json"

WORTH_BYTES = 64_000_000
"""A smaller model is loaded sooner than it is tuned, and its tokens take as long as their launches."""

Compare = Callable[[Tuning], Awaitable[float]]
"""The time of a token under a tuning, as a share of what it takes with the default."""


def changed(base: Tuning, change: Mapping[str, Any]) -> Tuning:
    """`base` with other numbers."""
    return replace(base, **change)


def can_tune(device: Device, weight_bytes: int) -> bool:
    """Whether measuring makes sense: on a real GPU with timestamps, for weights worth a second of anyone's time."""
    real = device.info()["architecture"] != "swiftshader"
    return real and "timestamp-query" in device.features and weight_bytes >= WORTH_BYTES


def parse_tuning(text: str, base: Tuning) -> Tuning:
    """Read "name=value, ..." over `base`. Raises OptionError."""
    known = [field.name for field in fields(Tuning)]
    changes: dict[str, int | None] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in known or not (value == "none" or (value.isascii() and value.isdecimal() and int(value) <= 1024)):
            raise OptionError(f"tuning must be auto, default, or name=number, ...; the names are {', '.join(known)}.")
        changes[name] = None if value == "none" else int(value)
    tuning = changed(base, changes)
    powers = (tuning.lanes, tuning.most_lanes, tuning.matvec_threads, tuning.combine_threads, tuning.sampler_threads)
    fits = (
        all(0 < number <= 256 and number & (number - 1) == 0 for number in powers)
        and tuning.lanes <= min(tuning.matvec_threads, tuning.combine_threads)
        and 0 < tuning.side <= 16
        and 0 < tuning.tile <= 128
        and tuning.tile % (2 * max(1, tuning.side)) == 0
        and 0 < tuning.split <= 256
        and tuning.attend_threads in range(tuning.split, 257, tuning.split)
        and tuning.prefill_from >= 2
        and tuning.subgroup_size in (None, base.subgroup_size)
    )
    if not fits:
        raise OptionError(
            "tuning: threads and lanes must be powers of two up to 256, lanes at most threads, tile an even "
            "multiple of side, attend_threads one of split, prefill_from at least 2, and subgroup_size none or the "
            "adapter's own."
        )
    return tuning


async def tuned(device: Device, config: Config, precision: str, compare: Compare) -> tuple[Tuning, dict[str, Any]]:
    """The best tuning, remembered or measured now, and `report`'s report; if measured, with seconds and every share."""
    base = device.tuning()
    heads = (config.n_head, config.n_kv_head, config.head_dim)
    shape = (config.family, config.n_layer, config.n_embd, config.n_inner, *heads, config.n_vocab, precision)
    info = device.info()
    key = json.dumps([__version__, info["vendor"], info["architecture"], info["description"], asdict(base), *shape])
    known = await _recall()
    if isinstance(change := known.get(key), dict) and change in ({}, *VARIANTS):
        return changed(base, change), report("remembered", base, change)
    began = time.perf_counter()
    best: dict[str, int | None] = {}
    shares: dict[str, float] = {}
    for variant in VARIANTS:
        if time.perf_counter() - began > BUDGET_S:
            break
        shares[_name(variant)] = share = await compare(changed(base, variant))
        if share < min(GAIN, shares.get(_name(best), 1.0)):
            best = variant
    await _remember(known | {key: best})
    extra = {"seconds": time.perf_counter() - began, "shares": shares}
    return changed(base, best), report("measured", base, best) | extra


def report(source: str, base: Tuning, change: Mapping[str, int | None]) -> dict[str, Any]:
    """For people: where a tuning comes from ("default", "given", "remembered", "measured") and what it is."""
    return {"source": source, **asdict(changed(base, change))}


def _name(variant: Mapping[str, int | None]) -> str:
    return ", ".join(f"{name}={'none' if value is None else value}" for name, value in variant.items())


async def _recall() -> dict[str, Any]:
    """What earlier visits found; nothing where the page has no storage, or the file is damaged."""
    try:
        root = await js.navigator.storage.getDirectory()
        file = await (await root.getFileHandle(_FILE)).getFile()
        found = json.loads(await file.text())
    except (JsException, AttributeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


async def _remember(found: Mapping[str, Any]) -> None:
    """Keep it for the next visit. Not being able to costs a second then, and is no error."""
    try:
        root = await js.navigator.storage.getDirectory()
        handle = await root.getFileHandle(_FILE, js_object({"create": True}))
        access = await handle.createSyncAccessHandle()
    except (JsException, AttributeError):
        return
    try:
        access.truncate(0)
        access.write(to_js(json.dumps(dict(found)).encode()))
        access.flush()
    finally:
        access.close()
