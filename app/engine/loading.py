"""How a model is loaded: where its files are, what of them is kept, and which backend takes them."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from app.engine.backends import IN_BROWSER, Backend
from app.engine.chat import Chat
from app.engine.chat_files import ChatFiles, read_chat_files
from app.engine.errors import (
    BusyError,
    ChangedError,
    ChatTemplateError,
    NetworkError,
    OptionError,
    ServerError,
)
from app.engine.models import weight_specs
from app.engine.options import LoadOptions
from app.engine.runner import Runner
from app.engine.tokenizer import Tokenizer
from app.engine.weights.cache import Cache, CachedFiles, Store, StoreError
from app.engine.weights.compact import check_precision
from app.engine.weights.files import ModelFiles
from app.engine.weights.hub import DEFAULT_HUB, Source, local_source, open_source
from app.engine.weights.loader import check_tensors, load_tokenizer, open_checkpoint, stream
from app.engine.weights.precision import counted, main_precision, mixed
from app.engine.weights.progress import LoadProgress
from app.engine.weights.spec import Sink
from app.engine.weights.transport import Transport


@dataclass(frozen=True, kw_only=True)
class Model:
    """What is loaded."""

    runner: Runner
    tokenizer: Tokenizer
    backend: Backend
    eos_id: int | None
    ends: frozenset[int]
    """Tokens that end a text or an answer."""
    chat: Chat | ChatTemplateError | None
    """The model's chat template, or why it cannot be used; None if it has none."""
    report: dict[str, Any]


class Loader:
    """Finds, fetches and keeps models. One load at a time."""

    def __init__(
        self,
        *,
        transport: Transport,
        site: str | None,
        open_store: Callable[[], Awaitable[Store]] | None,
        authorized: Callable[[str, str], Transport] | None,
        on_status: Callable[[str, str], None],
        on_progress: Callable[[dict[str, Any]], None],
        log: Callable[[str], None],
        load_jinja: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """See `Engine`. `on_status` is told a state and a text, `on_progress` what LoadProgress gives.

        `load_jinja` makes sure that jinja2 can be imported, or raises ChatTemplateError.
        """
        self._load_jinja = load_jinja or _nothing
        self._transport = transport
        self._site = site
        self._open_store = open_store
        self._authorized = authorized
        self._status = on_status
        self._progress = on_progress
        self._log = log
        self._cache: Cache | None = None
        self._opening = asyncio.Lock()
        self._not_kept: str | None = None

    def check(self, options: LoadOptions) -> None:
        """Raise OptionError if `options` name no place where a model could be. Asks nobody."""
        self._sources(options)

    async def load(self, options: LoadOptions, backend: Backend) -> Model:
        """Load what `options` ask for onto `backend`; errors as in `Engine.load`."""
        self._status("loading", "Reading the model's description")
        sources = self._sources(options)
        for source in sources:
            try:
                return await self._load_from(source, backend, options)
            except (NetworkError, ServerError) as error:
                if source is sources[-1]:
                    raise
                self._log(f"{error} Trying the next hub.")
            except ChangedError as error:
                self._log(f"{error} Starting over.")
                source.start_over()
                return await self._load_from(source, backend, options)
        raise AssertionError("there is always a source")

    async def storage(self) -> dict[str, Any]:
        """Return {models: [{model, revision, bytes, complete}], usage, quota, persisted, reason}: what is kept here.

        `reason` says why nothing is or can be kept, else it is None.
        """
        cache = await self._open_cache()
        if cache is None:
            return {"models": [], "usage": None, "quota": None, "persisted": None, "reason": self._not_kept}
        return {"models": await cache.models(), **await cache.estimate(), "reason": cache.trouble}

    async def forget(self, model: str | None = None) -> None:
        """Delete what is kept of a model, or of all models. Raises BusyError while another tab writes it."""
        cache = await self._open_cache()
        if cache is not None:
            try:
                await cache.forget(model)
            except StoreError as error:
                raise BusyError(f"Not all could be deleted: {error}. Close other tabs of this page first.") from error

    def _sources(self, options: LoadOptions) -> list[Source]:
        """Return where the model may be, in the order in which to try."""
        if options.files is not None:
            return [local_source(options.files, str(getattr(options.files, "name", "files")))]
        sources = []
        for hub in options.hubs:
            source = open_source(options.model, hub=hub, transport=self._transport, site=self._site)
            if options.token is not None and source.repository is not None:
                if self._authorized is None:
                    raise OptionError("This engine has no way to send a token.")
                transport = self._authorized(options.token, hub or DEFAULT_HUB)
                source = open_source(options.model, hub=hub, transport=transport, site=self._site)
            sources.append(source)
        return sources

    async def _load_from(self, source: Source, backend: Backend, options: LoadOptions) -> Model:
        started, heap = time.perf_counter(), heap_bytes()
        source.on_wait = lambda text: self._status("loading", text)
        kept = await self._kept(source, options)
        files: ModelFiles = kept or source
        try:
            checkpoint = await open_checkpoint(files)
            config = checkpoint.config
            specs = weight_specs(config)
            check_tensors(checkpoint, specs)
            parameters = sum(int(np.prod(spec.shape, dtype=np.int64)) for spec in specs)
            check_precision(options.precision, checkpoint.scheme, model=source.model)
            dtypes = {checkpoint.tensors[spec.name].dtype for spec in checkpoint.stored(specs)}
            mix = mixed(checkpoint, specs, asked=options.precision)
            scheme = checkpoint.scheme or main_precision(mix, specs)
            precision = backend.precision(options.precision, dtypes, parameters, scheme)
            tokenizer = await load_tokenizer(files, config, checkpoint.gguf)
            chat_files = await read_chat_files(files, tokenizer, checkpoint.gguf)
            chat = await self._chat(chat_files, tokenizer)

            here = kept is not None and kept.complete
            self._status("loading", "Reading the weights from storage" if here else "Downloading the weights")
            progress = LoadProgress(
                self._progress,
                source.model,
                config.n_layer,
                downloaded=lambda: source.downloaded,
                cached=lambda: 0 if kept is None else kept.cached,
            )

            held = 0

            async def fill(sink: Sink) -> None:
                nonlocal held
                held = await stream(checkpoint, specs, sink, source=files, on_progress=progress)

            compiling = partial(self._status, "compiling", "Compiling kernels")
            backend.context = options.context
            runner = await backend.make(config, precision, fill, compiling, mix)
        except ChangedError:
            if kept is not None:
                await kept.discard()
            raise
        if kept is not None:
            try:
                await kept.check(lambda file: self._status("loading", f"Checking {file}"))
            except BaseException:
                runner.free()
                raise
            await kept.finish()
        eos_id = tokenizer.eos_id if config.eos_id is None else config.eos_id
        ends = chat_files.ends | (chat.turn_ends() if isinstance(chat, Chat) else set())
        return Model(
            runner=runner,
            tokenizer=tokenizer,
            backend=backend,
            eos_id=eos_id,
            ends=frozenset(ends if eos_id is None else {*ends, eos_id}),
            chat=chat,
            report={
                "model": source.model,
                "revision": source.revision,
                "commit": source.commit,
                "family": config.family,
                "parameters": parameters,
                "precision": precision,
                "precisions": counted(mix, specs, precision),
                "chat": isinstance(chat, Chat),
                "backend": backend.name,
                "tuning": backend.tuned,
                "context": runner.n_ctx,
                "vocab": runner.n_vocab,
                "downloaded": source.downloaded,
                "cached": 0 if kept is None else kept.cached,
                "storage": self._storage_report(source, kept),
                "seconds": time.perf_counter() - started,
                "memory": runner.memory(),
                "heap": None if heap is None else {"before": heap, "after": heap_bytes()},
                "peaks": {"files": held, "gpu": backend.peak},
            },
        )

    async def _chat(self, files: ChatFiles, tokenizer: Tokenizer) -> Chat | ChatTemplateError | None:
        """Make the chat of a model that has a template."""
        if files.template is None:
            return None
        try:
            await self._load_jinja()
            return Chat(files.template, tokenizer, names=files.names)
        except ChatTemplateError as error:
            self._log(str(error))
            return error

    async def _kept(self, source: Source, options: LoadOptions) -> CachedFiles | None:
        """Return the files of `source` through the cache, where there is one and they are worth it."""
        if source.repository is None or options.cache == "off":
            return None
        cache = await self._open_cache()
        return None if cache is None else await cache.open(source)

    def _storage_report(self, source: Source, kept: CachedFiles | None) -> dict[str, Any]:
        if source.repository is None:
            return {"kept": False, "reason": None}
        if kept is None or self._cache is None:
            return {"kept": False, "reason": self._not_kept}
        nameless = None if source.commit else "the hub does not tell which version its files are"
        return {"kept": kept.complete, "reason": self._cache.trouble or nameless}

    async def _open_cache(self) -> Cache | None:
        # Asked by a load and by the storage view at once: with two of them, one would not know of the other's trouble.
        async with self._opening:
            if self._cache is None and self._open_store is not None:
                try:
                    self._cache = Cache(await self._open_store(), log=self._log)
                except StoreError as error:
                    self._not_kept = str(error)
        return self._cache


async def _nothing() -> None:
    pass


def heap_bytes() -> int | None:
    """Return the size of Python's wasm memory; None outside of Pyodide."""
    if not IN_BROWSER:
        return None
    import pyodide_js

    return int(pyodide_js._module.HEAP8.length)
