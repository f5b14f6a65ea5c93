"""The page's side of the engine: messages in, results, errors and events out. Nothing else knows about the page.

Runs under Pyodide, in the page's worker. A call is {id, method, args}; its answer {id, result} or {id, error: {name,
message}}; {event, data} may come at any time.
"""

import asyncio
import importlib
import importlib.util
import traceback
from collections.abc import Callable
from typing import Any

import js
from numpy import ascontiguousarray, ndarray
from pyodide.ffi import JsProxy, create_proxy, jsnull, to_js

from app.engine.engine import Engine
from app.engine.errors import ChatTemplateError, EngineError, OptionError
from app.engine.weights.browser import FetchTransport, FileTransport
from app.engine.weights.opfs import open_opfs

METHODS = (
    *("info", "load", "unload", "complete", "stop", "encode", "decode", "tokens", "logits", "memory"),
    *("storage", "forget", "bench", "inspect", "profile"),
)


def start(post: Any, site: str) -> Any:
    """Return the function that takes the page's calls (id, method, args). `post(message, transfer)` reaches the page.

    `site` is the page's base URL.
    """
    return create_proxy(Page(post, site).dispatch)


class Page:
    """Dispatches calls to the engine, each in a task of its own, in the order in which they came."""

    def __init__(self, post: Callable[..., None], site: str) -> None:
        """See `start`."""
        self._post = post
        self._engine = Engine(
            emit=self._emit,
            transport=FetchTransport(),
            site=site,
            open_store=open_opfs,
            log=js.console.info,
            authorized=lambda token, hub: FetchTransport(token=token, hub=hub),
            load_jinja=lambda: load_jinja(site),
        )
        self._tasks: set[asyncio.Task[None]] = set()

    def dispatch(self, call: int, method: str, args: JsProxy) -> None:
        """Begin a call; its answer is posted when it is there."""
        task = asyncio.ensure_future(self._answer(call, method, plain(args.to_py())))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, call: int, method: str, args: list[Any]) -> None:
        try:
            result = await self._run(call, method, args)
        except EngineError as error:
            self._send({"id": call, "error": {"name": type(error).__name__, "message": str(error)}})
        except Exception as error:
            js.console.error("".join(traceback.format_exception(error)))
            message = f"The engine failed unexpectedly: {_last_line(error)}. The console has the details."
            self._send({"id": call, "error": {"name": "InternalError", "message": message}})
        else:
            self._send_result(call, result)

    async def _run(self, call: int, method: str, args: list[Any]) -> Any:
        if method not in METHODS:
            raise OptionError(f"There is no method {method!r}.")
        if method == "complete":
            return await self._complete(call, *args)
        if method == "load" and args and isinstance(args[0], dict) and _are_files(args[0].get("files")):
            args[0]["files"] = FileTransport(args[0]["files"])
        if method == "stop":
            self._engine.stop()
            return await self._engine.idle()
        result = getattr(self._engine, method)(*args)
        return await result if asyncio.iscoroutine(result) else result

    async def _complete(self, call: int, options: dict[str, Any]) -> dict[str, Any]:
        last: dict[str, Any] = {}
        async for event in self._engine.stream(options):
            if isinstance(event, list):
                # One message for all that came at once: a thousand a second would be more than the page can take.
                self._emit("tokens", {"call": call, "tokens": event})
            else:
                last = event
        return last

    def _send_result(self, call: int, result: Any) -> None:
        if isinstance(result, ndarray):
            array = js.Float32Array.new(result.size)
            array.assign(result)
            self._post(
                to_js({"id": call, "result": array}, dict_converter=js.Object.fromEntries), to_js([array.buffer])
            )
        else:
            self._send({"id": call, "result": result})

    def _emit(self, event: str, data: dict[str, Any]) -> None:
        self._send({"event": event, "data": data})

    def _send(self, message: dict[str, Any]) -> None:
        # create_pyproxies=False: a value that is not plain data is our mistake, and would leak if it went out.
        self._post(to_js(with_nulls(message), dict_converter=js.Object.fromEntries, create_pyproxies=False))


async def load_jinja(site: str) -> None:
    """Install the wheels that chat templates need, which the page does not load before. Raises ChatTemplateError."""
    if importlib.util.find_spec("jinja2") is not None:
        return
    import micropip

    try:
        response = await js.fetch(f"{site}site.json")
        described = (await response.json()).to_py()
        await micropip.install([f"{site}{path}" for path in described["chat"]], deps=False)
        importlib.invalidate_caches()
        importlib.import_module("jinja2")
    except Exception as error:
        raise ChatTemplateError(
            f"Jinja, which chat templates are written in, could not be loaded ({_last_line(error)}). Check the "
            "connection to the server of this page, then load the model again."
        ) from error


def _are_files(value: Any) -> bool:
    """Whether these are JS Files; whatever else it is, the engine's options refuse it."""
    return isinstance(value, list) and all(hasattr(file, "slice") and hasattr(file, "name") for file in value)


def plain(value: Any) -> Any:
    """Return `value` as Python data: null becomes None, typed arrays become lists."""
    if value is jsnull:
        return None
    if isinstance(value, memoryview):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value


def with_nulls(value: Any) -> Any:
    """Return plain data with null for None, which would become undefined, and so vanish from JSON.

    Arrays become flat ones, which arrive as typed arrays.
    """
    if value is None:
        return jsnull
    if isinstance(value, ndarray):
        return ascontiguousarray(value).ravel()
    if isinstance(value, dict):
        return {key: with_nulls(item) for key, item in value.items()}
    if isinstance(value, list):
        # Token ids and logprobs: thousands of numbers, and nothing to replace among them.
        return value if all(isinstance(item, int | float) for item in value) else [with_nulls(item) for item in value]
    return value


def _last_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[-1][:300].rstrip(".")
