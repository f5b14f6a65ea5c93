"""The GPU is taken away at any moment, and the text goes on as if nothing had happened. Its other faults are named."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from app.server.site import Site
from tests.browser.conftest import Console, Launch
from tests.browser.waiting import evaluate
from tests.browser.worker_prefix import with_worker_prefix
from tests.hub_double import Hub, hub_double
from tests.models import write_tiny
from tests.serving import serving

pytestmark = pytest.mark.browser

# `left` counts down the submits until the device is destroyed, `losses` how often that is to happen.
SABOTAGE = """
globalThis.left = globalThis.losses = globalThis.opened = 0;
globalThis.devices = [];
const requestDevice = GPUAdapter.prototype.requestDevice;
GPUAdapter.prototype.requestDevice = async function (...args) {
    if (globalThis.refusal) throw new DOMException(globalThis.refusal, "OperationError");
    const device = await requestDevice.apply(this, args);
    opened += 1;
    devices.push(device);
    return device;
};
const submit = GPUQueue.prototype.submit;
GPUQueue.prototype.submit = function (...args) {
    submit.apply(this, args);
    if (losses > 0 && --left <= 0) {
        losses -= 1;
        left = 1;
        devices.at(-1).destroy();
    }
};
"""
# `fault` is one of the faults that a GPU reports: it has no memory, its compiler refuses a kernel, a call is not valid.
SABOTAGE += """
globalThis.held = () => {
    const ours = [...alive].filter((buffer) => buffer.device === devices.at(-1));
    return ours.reduce((sum, buffer) => sum + buffer.size, 0);
};
const createBuffer = GPUDevice.prototype.createBuffer, destroyBuffer = GPUBuffer.prototype.destroy;
const alive = new Set();
GPUDevice.prototype.createBuffer = function (descriptor) {
    const invalid = globalThis.fault === "validation" ? { usage: 0 } : {};
    const buffer = createBuffer.call(this, { ...descriptor, ...invalid });
    buffer.device = this;
    alive.add(buffer);
    return buffer;
};
GPUBuffer.prototype.destroy = function () {
    alive.delete(this);
    return destroyBuffer.apply(this);
};
const popErrorScope = GPUDevice.prototype.popErrorScope;
GPUDevice.prototype.popErrorScope = async function () {
    const error = await popErrorScope.apply(this);
    return globalThis.fault === "memory" ? new GPUOutOfMemoryError("no room") : error;
};
const createShaderModule = GPUDevice.prototype.createShaderModule;
GPUDevice.prototype.createShaderModule = function ({ code, ...rest }) {
    const wrong = globalThis.fault === "compiler" ? "\\nfn broken() -> f32 { return nothing; }" : "";
    return createShaderModule.call(this, { code: code + wrong, ...rest });
};
"""
GENERATE = {"ids": list(range(40)), "max_new_tokens": 20, "temperature": 1, "seed": 5, "top_k": 50}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    write_tiny(folder / "me" / "tiny")
    with hub_double(folder) as running:
        yield running


@pytest.fixture(scope="module")
def page(launch: Launch, site: Site, hub: Hub) -> Iterator[Page]:
    console = Console()
    # What the browser itself says about work for a device that is gone.
    console.allow("[Dd]estroyed|[Ll]ost|nothing|usage|[Ii]nvalid")
    context = launch().new_context(service_workers="block")
    made = context.new_page()
    console.watch(made)
    with serving(with_worker_prefix(site, SABOTAGE)) as url:
        made.goto(f"{url}?model=me/tiny&hub={hub.url}")
        evaluate(made, "() => lm.ready", timeout_s=120)
        load(made, hub)
        yield made
        context.close()
    assert console.unexpected() == []


def load(page: Page, hub: Hub, **options: object) -> dict[str, Any]:
    asked = {"model": "me/tiny", "hub": hub.url, "backend": "webgpu", **options}
    loaded: dict[str, Any] = evaluate(page, "(options) => lm.load(options)", asked, timeout_s=120)
    return loaded


def complete(page: Page) -> dict[str, Any]:
    done: dict[str, Any] = evaluate(page, "(options) => lm.complete(options)", GENERATE, timeout_s=120)
    return done


def sabotage(page: Page, *, left: int, losses: int = 1) -> int:
    """Destroy the device at the submit number `left` from now; return how many devices there were so far."""
    opened: int = page.workers[0].evaluate(
        "([left, losses]) => { Object.assign(globalThis, {left, losses}); return opened; }", [left, losses]
    )
    return opened


def opened(page: Page) -> int:
    count: int = page.workers[0].evaluate("() => { losses = 0; return opened; }")
    return count


def test_a_loss_at_any_moment_changes_nothing(page: Page) -> None:
    whole = complete(page)
    # In the prompt, with several tokens in flight, near the end.
    for left in (1, 9):
        before = sabotage(page, left=left)
        again = complete(page)
        assert opened(page) == before + 1, left
        assert (again["ids"], again["text"], again["finish"]) == (whole["ids"], whole["text"], whole["finish"]), left


def test_a_loss_while_nothing_runs(page: Page) -> None:
    whole = complete(page)
    page.workers[0].evaluate("() => devices.at(-1).destroy()")
    assert complete(page)["ids"] == whole["ids"]
    page.workers[0].evaluate("() => devices.at(-1).destroy()")
    logits = evaluate(page, "async () => [...await lm.logits({ids: [1, 2, 3]})]")
    assert len(logits) == 8192


def test_a_loss_while_loading(page: Page, hub: Hub) -> None:
    whole = complete(page)
    for left in (3,):
        before = sabotage(page, left=left)
        assert load(page, hub)["backend"] == "webgpu"
        assert opened(page) == before + 1, left
        assert complete(page)["ids"] == whole["ids"]


def test_a_gpu_that_does_not_stay_is_given_up_and_numpy_offered(page: Page, hub: Hub) -> None:
    sabotage(page, left=1, losses=99)
    outcome = evaluate(page, "(o) => lm.complete(o).catch(({name, message}) => ({name, message}))", GENERATE)
    opened(page)
    assert outcome["name"] == "DeviceLostError"
    assert "backend numpy" in outcome["message"]
    assert "smaller model or precision" in outcome["message"]
    assert "[object" not in outcome["message"]
    assert load(page, hub, backend="numpy")["backend"] == "numpy"
    assert len(complete(page)["ids"]) == 20
    load(page, hub)


def test_without_another_gpu_it_says_why(page: Page, hub: Hub) -> None:
    page.workers[0].evaluate("() => { devices.at(-1).destroy(); globalThis.refusal = 'the GPU process is gone'; }")
    outcome = evaluate(page, "(o) => lm.complete(o).catch(({name, message}) => ({name, message}))", GENERATE)
    page.workers[0].evaluate("() => { delete globalThis.refusal; }")
    assert outcome["name"] == "GpuUnavailableError"
    assert "the GPU process is gone" in outcome["message"]
    assert load(page, hub)["backend"] == "webgpu"
    assert len(complete(page)["ids"]) == 20


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (
            "memory",
            r"ran out of memory while making room for the weights \([\d,]+ MB asked for\).*precision",
        ),
        ("compiler", r"wgsl/\w+\.wgsl did not compile on this GPU: .*\d+.*nothing"),
        ("validation", r"The GPU .*"),
    ],
)
def test_what_a_gpu_refuses_is_named_and_all_is_given_back(page: Page, hub: Hub, fault: str, says: str) -> None:
    evaluate(page, "() => lm.unload()")
    worker = page.workers[0]
    # A device of its own, on which nothing is compiled yet.
    worker.evaluate("(fault) => { devices.at(-1).destroy(); globalThis.fault = fault; }", fault)
    options = {"model": "me/tiny", "hub": hub.url, "backend": "webgpu"}
    outcome = evaluate(page, "(o) => lm.load(o).catch(({name, message}) => ({name, message}))", options, timeout_s=60)
    worker.evaluate("() => { globalThis.fault = null; }")
    assert outcome["name"] == "GpuError", outcome
    assert re.search(says, outcome["message"], re.DOTALL), outcome
    assert "[object" not in outcome["message"]
    assert load(page, hub)["backend"] == "webgpu"
    assert len(complete(page)["ids"]) == 20
    evaluate(page, "() => lm.unload()")
    kept = worker.evaluate("() => held()")
    assert kept < 100_000, "what the failed load had allocated is still there"
    load(page, hub)
