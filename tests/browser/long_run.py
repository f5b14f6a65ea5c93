"""What stays behind after long use: `python -m tests.browser.long_run`.

Writes tokens with the context sliding, loads and unloads three models in turn, and stops generations right after they
began; counts what the page and its worker hold before and after each. The suite runs a short version.
`--flag=--FLAG` (several times) starts Chromium with these flags instead of the software adapter's.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from app.server.runtime import ensure_runtime
from app.server.site import Site
from tests.browser.conftest import FLAGS, WEBGPU_FLAGS, find_chromium
from tests.browser.waiting import evaluate
from tests.browser.worker_prefix import with_worker_prefix
from tests.hub_double import Hub, hub_double
from tests.models import write_tiny
from tests.serving import serving

COLLECTABLE = ("--js-flags=--expose-gc", "--enable-precise-memory-info")
MODELS: dict[str, dict[str, Any]] = {"me/one": {}, "me/two": {"n_layer": 3}, "me/three": {"n_embd": 48, "n_head": 3}}

# Counts what only the worker sees: GPU buffers and their bytes, open files of the origin-private file system.
COUNTERS = """
globalThis.held = { buffers: 0, gpu_bytes: 0, files: 0 };
const createBuffer = GPUDevice.prototype.createBuffer, destroyBuffer = GPUBuffer.prototype.destroy;
const alive = new WeakSet();
GPUDevice.prototype.createBuffer = function (...args) {
    const buffer = createBuffer.apply(this, args);
    alive.add(buffer);
    held.buffers += 1;
    held.gpu_bytes += buffer.size;
    return buffer;
};
GPUBuffer.prototype.destroy = function () {
    if (alive.delete(this)) {
        held.buffers -= 1;
        held.gpu_bytes -= this.size;
    }
    return destroyBuffer.apply(this);
};
const open = FileSystemFileHandle.prototype.createSyncAccessHandle;
FileSystemFileHandle.prototype.createSyncAccessHandle = async function (...args) {
    const access = await open.apply(this, args);
    held.files += 1;
    const close = access.close.bind(access);
    access.close = () => { held.files -= 1; close(); };
    return access;
};
"""
EDITS = {"python = pyodide;": "python = globalThis.python = pyodide;"}
WORKER = """() => {
    globalThis.gc?.();
    return { ...held, wasm_bytes: python._module.HEAP8.length, proxies: python._module.hiwire?.num_keys?.() ?? null,
        worker_js_bytes: performance.memory?.usedJSHeapSize ?? null };
}"""
PAGE = """() => { globalThis.gc?.(); return { page_js_bytes: performance.memory.usedJSHeapSize,
    nodes: document.querySelectorAll("*").length }; }"""


def figures(page: Page) -> dict[str, int | None]:
    """What is held now, garbage collected as far as the browser lets us."""
    found: dict[str, int | None] = {**page.workers[0].evaluate(WORKER), **page.evaluate(PAGE)}
    return found


def load(page: Page, hub: Hub, model: str) -> None:
    options = {"model": model, "hub": hub.url, "backend": "webgpu", "tuning": "default"}
    evaluate(page, "(options) => lm.load(options)", options, timeout_s=120)


def write(page: Page, count: int) -> None:
    """Generate `count` tokens, many contexts long."""
    script = "(options) => lm.complete(options)"
    done = evaluate(page, script, {"ids": [1, 2, 3], "max_new_tokens": count, "on_full": "slide"}, timeout_s=3600)
    assert done["finish"] in ("length", "eos")


def cycle(page: Page, hub: Hub, count: int) -> None:
    """Load `count` models, one after the other, and write a little with each."""
    for number in range(count):
        load(page, hub, list(MODELS)[number % len(MODELS)])
        write(page, 3)
        evaluate(page, "() => lm.unload()")
    load(page, hub, next(iter(MODELS)))


def cancel(page: Page, count: int) -> None:
    """Begin `count` generations and stop each at its first token."""
    evaluate(
        page,
        """async (count) => {
            for (let number = 0; number < count; number++) {
                for await (const token of lm.stream({ids: [1, 2, 3], max_new_tokens: 50, seed: number})) break;
            }
        }""",
        count,
        timeout_s=3600,
    )


def measured(
    page: Page, hub: Hub, *, tokens: int, cycles: int, cancels: int, tell: Callable[[str], None] = lambda _: None
) -> dict[str, tuple[dict[str, int | None], dict[str, int | None]]]:
    """Do each of the three, after a little of all of them; return what was held before and after."""
    load(page, hub, next(iter(MODELS)))
    cycle(page, hub, len(MODELS))
    write(page, 100)
    cancel(page, 5)
    found = {}
    phases: dict[str, Callable[[], None]] = {
        f"{tokens:,} tokens with slides": lambda: write(page, tokens),
        f"{cycles:,} loads of three models": lambda: cycle(page, hub, cycles),
        f"{cancels:,} cancelled generations": lambda: cancel(page, cancels),
    }
    for name, work in phases.items():
        before, started = figures(page), time.perf_counter()
        work()
        found[name] = before, figures(page)
        tell(f"{name}: {time.perf_counter() - started:.0f} s, {json.dumps(found[name])}")
    return found


def write_models(folder: Path) -> None:
    for model, config in MODELS.items():
        write_tiny(folder / model, **config)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--cancels", type=int, default=1_000)
    parser.add_argument("--flag", action="append", default=[], metavar="FLAG")
    options = parser.parse_args()
    site = Site(ensure_runtime())
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        write_models(Path(folder))
        with hub_double(Path(folder)) as hub, serving(with_worker_prefix(site, COUNTERS, edits=EDITS)) as url:
            browser = playwright.chromium.launch(
                executable_path=find_chromium(playwright),
                args=[*FLAGS, *(options.flag or WEBGPU_FLAGS), *COLLECTABLE],
                chromium_sandbox=False,
            )
            page = browser.new_page()
            page.goto(url)
            evaluate(page, "() => lm.ready", timeout_s=120)
            counts: dict[str, Any] = {name: getattr(options, name) for name in ("tokens", "cycles", "cancels")}
            measured(page, hub, **counts, tell=lambda text: print(text, flush=True))
            browser.close()
    site.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
