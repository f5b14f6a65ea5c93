"""The worker breaks or hangs: what was asked fails with a reason, and another worker takes over with the same model."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from app.server.site import Site
from tests.browser.conftest import Console, Launch
from tests.browser.waiting import evaluate
from tests.browser.worker_prefix import with_worker_prefix
from tests.serving import serving

pytestmark = pytest.mark.browser

# The page's clock: a test lets its beats come faster than every two seconds.
HURRY = "() => { const real = setInterval; globalThis.setInterval = (work, ms) => real(work, ms / 100); }"
FAULTS = """
addEventListener("message", (event) => {
    if (!event.data.fault) return;
    event.stopImmediatePropagation();
    if (event.data.fault === "hang") for (;;);
    if (event.data.fault === "python") {
        try { globalThis.python.runPython("import json; json.loads('[' * 100_000)"); } catch {}
        return;
    }
    setTimeout(() => { throw new Error("boom"); });
    setTimeout(() => { throw new Error("boom again"); });
});
"""
EDITS = {"python = pyodide;": "python = globalThis.python = pyodide;"}
# What a call comes to when the fault happens meanwhile.
BROKEN = """async (fault) => {
    const errors = [];
    const off = lm.on("error", (error) => errors.push(error));
    const call = lm.complete({ids: [1, 2, 3], max_new_tokens: 400});
    await new Promise((resolve) => { const heard = lm.on("token", () => { heard(); resolve(); }); });
    for (const worker of workers) worker.postMessage({fault});
    const failure = await call.catch(({name, message}) => ({name, message}));
    off();
    return {failure, errors};
}"""
REMEMBER = """() => {
    globalThis.workers = [];
    const Real = Worker;
    globalThis.Worker = class extends Real {
        constructor(...args) { super(...args); workers.push(this); }
    };
}"""
NEXT = """async () => {
    await lm.ready;
    while (true) {
        try { return await lm.complete({ids: [1, 2, 3], max_new_tokens: 4, temperature: 0}); }
        catch (error) { if (!/NotLoaded|Busy/.test(error.name)) throw error; }
        await new Promise((resolve) => setTimeout(resolve, 100));
    }
}"""


@pytest.fixture(scope="module")
def page(launch: Launch, site: Site) -> Iterator[Page]:
    console = Console()
    console.allow("boom|fatal|Maximum call stack")
    context = launch(webgpu=False).new_context(service_workers="block")
    made = context.new_page()
    console.watch(made)
    for script in (HURRY, REMEMBER):
        made.add_init_script(f"({script})()")
    with serving(with_worker_prefix(site, FAULTS, edits=EDITS)) as url:
        made.goto(url)
        evaluate(made, "() => lm.load({model: 'story'})", timeout_s=120)
        yield made
        context.close()
    assert console.unexpected() == []


@pytest.mark.parametrize(
    ("fault", "name", "says"),
    [
        ("crash", "WorkerError", "boom"),
        ("hang", "WorkerError", "has not answered"),
        ("python", "EngineCrash", "fatally failed"),
    ],
)
def test_another_worker_takes_over(page: Page, fault: str, name: str, says: str) -> None:
    whole = evaluate(page, NEXT, timeout_s=120)
    outcome: dict[str, Any] = evaluate(page, BROKEN, fault, timeout_s=120)
    assert outcome["failure"]["name"] == name
    assert says in outcome["failure"]["message"]
    assert "started again" in outcome["failure"]["message"]
    assert outcome["errors"][-1]["message"] == outcome["failure"]["message"]
    # The same model is there again without anyone having asked for it.
    assert evaluate(page, NEXT, timeout_s=120)["ids"] == whole["ids"]


def test_a_frozen_tab_goes_on_when_it_wakes(page: Page) -> None:
    options = {"ids": [1, 2, 3], "max_new_tokens": 100, "temperature": 0}
    evaluate(page, "(options) => { window.going = lm.complete(options); }", options)
    session = page.context.new_cdp_session(page)
    session.send("Page.setWebLifecycleState", {"state": "frozen"})
    time.sleep(3)
    session.send("Page.setWebLifecycleState", {"state": "active"})
    done = evaluate(page, "() => window.going", timeout_s=120)
    assert done["finish"] in ("length", "eos")
    assert len(done["ids"]) == 100 or done["finish"] == "eos"


def test_a_worker_that_breaks_again_and_again_is_given_up(page: Page) -> None:
    # The fourth time in ten minutes.
    evaluate(page, NEXT, timeout_s=120)
    outcome = evaluate(page, BROKEN, "crash", timeout_s=120)
    assert "Reload the page" in outcome["failure"]["message"]
    again = evaluate(page, "() => lm.encode('a').catch(({name}) => name)")
    assert again == "WorkerError"
