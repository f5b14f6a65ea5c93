"""The engine behind the page's API: holds one model and does one thing at a time. Knows nothing of the page."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import asdict, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from app.engine.backends import IN_BROWSER, Backend, NumpyBackend, WebGpuBackend, open_webgpu
from app.engine.bench import bench
from app.engine.conversation import with_ids
from app.engine.diagnosis import diagnosed
from app.engine.errors import (
    BusyError,
    CancelledError,
    DeviceLostError,
    GpuUnavailableError,
    NonFiniteLogitsError,
    NotLoadedError,
    OptionError,
    UnsupportedModelError,
)
from app.engine.generate import Result, Started, TokenEvent, generate, prefill
from app.engine.inspection import InspectableRunner, inspect, parse_inspect, watched
from app.engine.loading import Loader, Model
from app.engine.options import LoadOptions, parse_ids, parse_load_options, parse_options
from app.engine.profiling import profile
from app.engine.runner import Runner
from app.engine.tokenizer import Tokenizer
from app.engine.weights.cache import Store
from app.engine.weights.transport import Transport

MAX_LOSSES = 3
"""How often a call starts a lost GPU again before it gives up."""

LOOKING, PROFILING = "looking into the model", "looking where the time goes"
"""What makes way for whatever else is asked for."""

T = TypeVar("T")
Emit = Callable[[str, dict[str, Any]], None]
"""Takes an event's name ("status", "progress") and its data."""


class Engine:
    """One model, loaded, used and freed. Options come as mappings and results go as plain dicts and lists.

    Every method that needs the model raises NotLoadedError without one, and those that use its cache BusyError while
    another does. Events: "status" {state, text, model} (what `load` returned, or None) and "progress" (see
    `LoadProgress`).
    """

    def __init__(
        self,
        *,
        emit: Emit,
        transport: Transport,
        site: str | None,
        open_gpu: Callable[[str], Awaitable[WebGpuBackend]] = open_webgpu,
        open_store: Callable[[], Awaitable[Store]] | None = None,
        log: Callable[[str], None] = lambda _: None,
        authorized: Callable[[str, str], Transport] | None = None,
        load_jinja: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Fetch over `transport`; `site` is the page's base URL, where the embedded model is.

        `authorized(token, hub)` makes a transport that shows an access token to that hub's origin, and to no other.
        `load_jinja` makes sure that jinja2 can be imported; it is called for a model with a chat template only.

        What is downloaded is kept in the store that `open_store` opens, if it can. `log` is told what may interest
        whoever looks for a fault.
        """
        self._emit = emit
        self._open_gpu = open_gpu
        self._log = log
        self._loader = Loader(
            transport=transport,
            site=site,
            open_store=open_store,
            authorized=authorized,
            load_jinja=load_jinja,
            on_status=self._status,
            on_progress=lambda data: emit("progress", data),
            log=log,
        )
        self._gpu: WebGpuBackend | None = None
        self._gpu_reason: str | None = None
        # The page asks for `info` and loads a model at once: they must not open a device each.
        self._opening = asyncio.Lock()
        self._model: Model | None = None
        self._doing: str | None = None
        self._stopping = False
        self._loading: tuple[LoadOptions, asyncio.Task[Model]] | None = None
        self._loaded: LoadOptions | None = None
        self._reloading: asyncio.Task[Model] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    async def info(self) -> dict[str, Any]:
        """Return {pyodide, python, numpy, backend, gpu, reason}: what there is to compute with.

        `gpu` is None where there is none, and `reason` then says why.
        """
        async with self._opening:
            if self._gpu is None:
                await self._open_another("adapter")
        gpu = None if self._gpu is None else self._gpu.device.info()
        return {
            "pyodide": _pyodide_version(),
            "python": sys.version.split()[0],
            "numpy": np.__version__,
            "backend": "numpy" if gpu is None else "webgpu",
            "gpu": gpu,
            "reason": self._gpu_reason,
        }

    async def load(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Free what is loaded and load another model; if that fails, none is left.

        Options: model or files, precision, hub, backend, limits, cache, tuning, token (see `LoadOptions`).
        `hub` may be several addresses, separated by commas: the first that answers is used. While another load
        runs, the same options join it and other ones cancel it. Returns {model, revision, commit, family,
        parameters, precision, precisions, chat, backend, context, vocab, downloaded, cached, storage, seconds,
        memory, heap, peaks}, sizes in bytes. `precisions` counts the weights of matrices in each precision: a GGUF
        file may mix them. `chat` tells whether the model answers `messages`. `downloaded` came over the network
        and `cached` from the browser's storage; `storage` {kept, reason} tells whether the model will be there
        next time, and why not (None for what needs no keeping). `memory` is what the model occupies by purpose;
        `heap` {before, after} is Python's whole wasm memory, which never shrinks, so `after` is also its peak
        (None outside of Pyodide). `peaks` {files, gpu} are the most bytes held at once: of the files, in
        JavaScript's memory, and on the GPU.

        Raises BusyError while generating, OptionError (which leaves the model that is loaded alone), HubError,
        ModelFileError, UnsupportedModelError, GpuUnavailableError (backend "webgpu"), GpuError, and CancelledError
        after `stop`.
        """
        options = parse_load_options(raw)
        while self._loading is not None and self._loading[0] != options:
            self.stop()
            await asyncio.wait({self._loading[1]})
        if self._loading is None:
            task = asyncio.ensure_future(self._load_alone(options))
            task.add_done_callback(self._end_load)
            self._loading = options, task
        task = self._loading[1]
        await asyncio.wait({task})
        if task.cancelled():
            raise CancelledError("Loading was cancelled; no model is loaded.")
        return task.result().report

    async def unload(self) -> None:
        """Stop whatever runs, then free the model's memory."""
        while self._doing:
            self.stop()
            await self._idle.wait()
        self._free()
        self._status("idle", "No model is loaded")

    async def stream(self, raw: Mapping[str, Any]) -> AsyncGenerator[list[dict[str, Any]] | dict[str, Any], None]:
        """Yield lists of {text, id, logprob, top}, one for each token, then what `complete` returns.

        With the option `inspect` a token has `inside`, too: see `inspection.watched`.
        """
        await self._make_way()
        with self._alone("generating"):
            model = self._need_model()
            options, shortened = with_ids(model, parse_options(raw))
            events = generate(
                model.runner,
                model.tokenizer,
                options,
                eos_id=model.eos_id,
                ends=model.ends,
                prefill_chunk=model.backend.prefill_chunk,
                cancelled=lambda: self._stopping,
                recover=self._recovery("generating"),
                source=None if options.inspect is None else watched,
            )
            try:
                reading = True
                async with aclosing(events):
                    async for event in events:
                        if isinstance(event, Started):
                            self._status("generating", f"Reading {_tokens(len(event.prompt_ids))} of text")
                            continue
                        if isinstance(event, Result):
                            yield self._plain(replace(event, truncated=event.truncated or shortened), model.tokenizer)
                            continue
                        if reading:
                            reading = False
                            self._status("generating", "Generating")
                        yield [self._plain(token, model.tokenizer) for token in event]
            except NonFiniteLogitsError as error:
                self._status("generating", "Looking for what went wrong")
                raise await diagnosed(error, self._need_model().runner) from error
            finally:
                if self._model is not None:
                    self._status("ready", "Ready")

    async def complete(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Continue a prompt; options as in `parse_options`.

        Returns {text, ids, prompt_ids, finish, truncated, seed, logprobs, top, timings} (see `generate.Result`); each
        entry of `top` is a list of {id, text, logprob}.
        """
        last: dict[str, Any] = {}
        async with aclosing(self.stream(raw)) as events:
            async for event in events:
                if isinstance(event, dict):
                    last = event
        return last

    def stop(self) -> None:
        """End a generation at the next token, or cancel a load. Does nothing if neither runs."""
        self._stopping = True
        if self._loading is not None:
            self._loading[1].cancel()
        if self._reloading is not None:
            self._reloading.cancel()

    async def idle(self) -> None:
        """Wait until nothing runs."""
        await self._idle.wait()

    def encode(self, text: object) -> list[int]:
        """Return the ids of a text, or of messages as the model reads them before it answers.

        Special tokens that they spell are plain text.
        """
        model = self._need_model()
        if isinstance(text, list):
            options, _ = with_ids(model, parse_options({"messages": text, "max_new_tokens": 1}))
            assert options.ids is not None
            return list(options.ids)
        return model.tokenizer.encode(_text(text))

    def decode(self, ids: object) -> str:
        """Return the text of `ids`."""
        model = self._need_model()
        return model.tokenizer.decode(list(parse_ids("ids", ids, model.runner.n_vocab)))

    def tokens(self, text: str) -> list[dict[str, Any]]:
        """Return `text` in pieces: {id, text} for each token."""
        pieces = self._need_model().tokenizer.pieces(_text(text))
        return [{"id": token, "text": piece} for token, piece in pieces]

    async def logits(self, raw: Mapping[str, Any]) -> NDArray[np.float32]:
        """Return the logits [n_vocab] after the last of the option `ids` (at least one, at most the context)."""
        await self._make_way()
        with self._alone("computing logits"):
            model = self._need_model()
            if not isinstance(raw, Mapping) or set(raw) != {"ids"}:
                raise OptionError("logits takes one option, ids.")
            ids = list(parse_ids("ids", raw["ids"], model.runner.n_vocab))
            if not 1 <= len(ids) <= model.runner.n_ctx:
                raise OptionError(f"ids must hold 1 to {model.runner.n_ctx} tokens, not {len(ids)}.")

            async def compute(runner: Runner) -> NDArray[np.float32]:
                await prefill(runner, ids, model.backend.prefill_chunk)
                return await runner.logits()

            return await self._recovering("computing logits", compute)

    async def bench(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Measure the loaded model; see `bench.bench`. The report names the adapter."""
        with self._alone("measuring"):
            self._need_model()
            self._status("generating", "Measuring")
            try:
                figures = await self._recovering("measuring", lambda runner: bench(runner, raw))
            finally:
                if self._model is not None:
                    self._status("ready", "Ready")
            gpu = None if self._gpu is None else self._gpu.device.info()
            return {"gpu_info": gpu, **self._named("model", "parameters", "precision", "backend", "seconds"), **figures}

    async def inspect(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Look into the model while it reads a text (`inspection.inspect`). Makes way for whatever else is asked for.

        {release: true} gives back the memory that looking took, and returns {}.
        """
        with self._alone(LOOKING):
            model = self._need_model()

            async def look(runner: Runner) -> dict[str, Any]:
                if not isinstance(runner, InspectableRunner):
                    raise UnsupportedModelError("This model cannot be looked into.")
                if isinstance(raw, Mapping) and raw.get("release") is True:
                    runner.inspector().free()
                    return {}
                options = parse_inspect(raw, runner.config)
                return await inspect(runner, model.tokenizer, options, cancelled=lambda: self._stopping)

            return await self._recovering(LOOKING, look)

    async def profile(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Measure where a text's time goes (`profiling.profile`). Makes way for whatever else is asked for."""
        with self._alone(PROFILING):
            tokenizer = self._need_model().tokenizer

            async def measure(runner: Runner) -> dict[str, Any]:
                return await profile(runner, tokenizer, raw, cancelled=lambda: self._stopping)

            report = await self._recovering(PROFILING, measure)
            return {**self._named("model", "parameters", "precision", "backend"), **report}

    def memory(self) -> dict[str, int]:
        """Return the bytes in use by purpose; empty without a model."""
        return {} if self._model is None else self._model.runner.memory()

    async def storage(self) -> dict[str, Any]:
        """Return what is kept of models; see `Loader.storage`."""
        return await self._loader.storage()

    async def forget(self, model: str | None = None) -> None:
        """Delete what is kept of a model, or of all models. One that is loaded stays loaded. Raises BusyError."""
        if self._loading is not None:
            raise BusyError("A model is being loaded. Wait for it, or stop it first.")
        await self._loader.forget(model)

    async def _load_alone(self, options: LoadOptions) -> Model:
        await self._make_way()
        with self._alone("loading a model"):
            self._loader.check(options)
            self._free()
            losses = 0
            try:
                while self._model is None:
                    try:
                        self._model = await self._loader.load(options, await self._backend(options))
                    except DeviceLostError as error:
                        losses += 1
                        self._lost(error, losses, "loading")
                self._loaded = options
            except MemoryError as error:
                raise UnsupportedModelError(
                    "There is not enough memory for this model. Choose a smaller one, or a browser with WebGPU."
                ) from error
            finally:
                if self._model is None:
                    self._status("idle", "No model is loaded")
        self._status("ready", "Ready")
        return self._model

    def _end_load(self, _: asyncio.Task[Model]) -> None:
        self._loading = None

    async def _backend(self, options: LoadOptions) -> Backend:
        if options.backend == "numpy":
            return NumpyBackend()
        async with self._opening:
            if self._gpu is None or self._gpu.limits != options.limits or self._gpu.device.lost is not None:
                await self._open_another(options.limits)
        if self._gpu is not None:
            self._gpu.tuning = options.tuning
            return self._gpu
        if options.backend == "webgpu":
            raise GpuUnavailableError(self._gpu_reason)
        return NumpyBackend()

    async def _open_another(self, limits: str) -> None:
        """Open a device, or remember why there is none. Only under `_opening`."""
        if self._gpu is not None:
            self._gpu.close()
        self._gpu, self._gpu_reason = None, None
        try:
            self._gpu = await self._open_gpu(limits)
        except GpuUnavailableError as error:
            self._gpu_reason = str(error)

    def _recovery(self, doing: str) -> Callable[[DeviceLostError], Awaitable[Runner]]:
        """Return what to do for one call when the GPU is lost: the model is loaded again, onto another device.

        That raises DeviceLostError if it happened too often or there is no other device; then no model is loaded.
        """
        losses = 0

        async def recover(error: DeviceLostError) -> Runner:
            nonlocal losses
            assert self._loaded is not None
            while True:
                losses += 1
                self._lost(error, losses, doing)
                try:
                    self._reloading = asyncio.ensure_future(self._reload(self._loaded))
                    self._model = await self._reloading
                except DeviceLostError as again:
                    error = again
                except asyncio.CancelledError as cancelled:
                    raise CancelledError("The GPU was lost, and loading the model again was stopped.") from cancelled
                finally:
                    self._reloading = None
                    if self._model is None:
                        self._status("idle", "No model is loaded")
                if self._model is not None:
                    self._status("generating", "Going on")
                    return self._model.runner

        return recover

    async def _recovering(self, doing: str, work: Callable[[Runner], Awaitable[T]]) -> T:
        """Do what begins anew when the GPU is lost meanwhile."""
        runner, recover = self._need_model().runner, self._recovery(doing)
        lost = False
        try:
            while True:
                try:
                    return await work(runner)
                except DeviceLostError as error:
                    lost = True
                    runner = await recover(error)
        finally:
            if lost and self._model is not None:
                self._status("ready", "Ready")

    async def _reload(self, options: LoadOptions) -> Model:
        async with self._opening:
            await self._open_another(options.limits)
        if self._gpu is None:
            raise GpuUnavailableError(
                f"The GPU was lost, and there is no other: {self._gpu_reason} Load the model with backend numpy, or "
                "restart the browser."
            )
        self._gpu.tuning = options.tuning
        return await self._loader.load(options, self._gpu)

    def _lost(self, error: DeviceLostError, losses: int, doing: str) -> None:
        """Forget a device that is lost, and the model on it. Raises DeviceLostError if that happened too often."""
        self._model = self._gpu = None
        if losses > MAX_LOSSES:
            self._status("idle", "No model is loaded")
            raise DeviceLostError(
                f"The GPU was lost {losses} times while {doing}, the last time with: {error} Choose a smaller model or "
                "precision (q8 or q4), or backend numpy."
            ) from error
        self._log(f"{error} (loss {losses} while {doing})")
        self._status("loading", "The GPU was lost; starting it again")

    def _free(self) -> None:
        if self._model is not None:
            self._model.runner.free()
            self._model = None

    async def _make_way(self) -> None:
        """End what only looks."""
        while self._doing in (LOOKING, PROFILING):
            self._stopping = True
            await self._idle.wait()

    @contextmanager
    def _alone(self, doing: str) -> Iterator[None]:
        if self._doing:
            raise BusyError(f"The engine is {self._doing} and does one thing at a time. Wait for it, or stop it first.")
        self._doing, self._stopping = doing, False
        self._idle.clear()
        try:
            yield
        finally:
            self._doing = None
            self._idle.set()

    def _need_model(self) -> Model:
        if self._model is None:
            raise NotLoadedError("No model is loaded. Load one first, for example the model 'story'.")
        return self._model

    def _named(self, *names: str) -> dict[str, Any]:
        report = self._need_model().report
        return {name: report[name] for name in names}

    def _status(self, state: str, text: str) -> None:
        self._emit(
            "status", {"state": state, "text": text, "model": None if self._model is None else self._model.report}
        )

    def _plain(self, event: TokenEvent | Result, tokenizer: Tokenizer) -> dict[str, Any]:
        def named(top: list[tuple[int, float]]) -> list[dict[str, Any]]:
            return [{"id": token, "text": tokenizer.decode([token]), "logprob": logprob} for token, logprob in top]

        if isinstance(event, TokenEvent):
            plain = {"text": event.text, "id": event.id, "logprob": event.logprob, "top": named(event.top)}
            if event.inside is None:
                return plain
            lens = [named(top) for top in event.inside["lens"]]
            return {**plain, "inside": {**event.inside, "lens": lens}}
        return asdict(event) | {"top": None if event.top is None else [named(top) for top in event.top]}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise OptionError(f"text must be a string, not {type(value).__name__}.")
    return value


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"


def _pyodide_version() -> str | None:
    if not IN_BROWSER:
        return None
    import pyodide

    return str(pyodide.__version__)
