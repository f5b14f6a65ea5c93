"""How long the page takes to start: from opening it to the loaded story model, and to its first token.

    python -m tests.browser.start_time [RUNS]

On the CPU, in headless Chromium, each time in a profile that has never seen the page (the files are on this machine).
"""

import sys
import time
from statistics import median

from playwright.sync_api import sync_playwright

from app.server.asgi import make_app
from app.server.runtime import ensure_runtime
from app.server.site import Site
from tests.browser.conftest import FLAGS, find_chromium
from tests.browser.waiting import evaluate
from tests.serving import serving

READY = """() => new Promise((done) => {
    const look = () => document.body.dataset.engine === "ready" && done();
    new MutationObserver(look).observe(document.body, { attributeFilter: ["data-engine"] });
    look();
})"""
FIRST = "() => new Promise((done) => { lm.on('token', done); document.getElementById('generate').click(); })"


def main(runs: int) -> None:
    """Print both, in seconds: medians and all."""
    site = Site(ensure_runtime())
    ready, first = [], []
    with serving(make_app(site)) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(playwright), args=FLAGS, chromium_sandbox=False
        )
        for _ in range(runs):
            context = browser.new_context(service_workers="block")
            page = context.new_page()
            start = time.perf_counter()
            page.goto(f"{url}?backend=numpy")
            evaluate(page, READY, timeout_s=120)
            ready.append(time.perf_counter() - start)
            evaluate(page, FIRST, timeout_s=60)
            first.append(time.perf_counter() - start)
            context.close()
        print(f"Chromium {browser.version}")
        browser.close()
    site.close()
    for name, times in (("model loaded", ready), ("first token", first)):
        print(f"{name}: {median(times):.2f} s ({', '.join(f'{seconds:.2f}' for seconds in times)})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
