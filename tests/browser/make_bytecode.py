"""Makes app/server/bytecode.zip, after another runtime was pinned or the engine imports other modules.

    python -m tests.browser.make_bytecode

The page starts, loads the story model and writes; then the bytecode of all that it has imported is taken from it.
"""

import base64
import json
import zipfile
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from app.server.bytecode import BYTECODE
from app.server.runtime import ensure_runtime
from app.server.site import Site
from tests.browser.conftest import FLAGS, WEBGPU_FLAGS, find_chromium
from tests.browser.waiting import evaluate
from tests.browser.worker_prefix import with_worker_prefix
from tests.serving import serving

PROGRAM = (Path(__file__).parent / "lab" / "bytecode.py").read_text()
KEEP_PYTHON = {"python = pyodide;": "python = pyodide; globalThis.python = pyodide;"}


def in_page(browser: Browser, site: Site, call: str) -> dict[str, object]:
    """Use the page as people do, then call a function of lab/bytecode.py in it."""
    context = browser.new_context(service_workers="block")
    with serving(with_worker_prefix(site, "", edits=KEEP_PYTHON)) as url:
        page: Page = context.new_page()
        page.goto(url)
        evaluate(page, "() => lm.load()", timeout_s=240)
        evaluate(page, "() => lm.complete({ prompt: 'Once', max_new_tokens: 2 })", timeout_s=240)
        answer: str = page.workers[0].evaluate("(code) => globalThis.python.runPython(code)", f"{PROGRAM}\n{call}()")
    context.close()
    found: dict[str, object] = json.loads(answer)
    return found


def main() -> None:
    """Write the file."""
    site = Site(ensure_runtime())
    with sync_playwright() as playwright:
        arguments = [*FLAGS, *WEBGPU_FLAGS]
        browser = playwright.chromium.launch(
            executable_path=find_chromium(playwright), args=arguments, chromium_sandbox=False
        )
        made = in_page(browser, site, "made")
        browser.close()
    site.close()
    with zipfile.ZipFile(BYTECODE, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path, content in sorted(made.items()):
            archive.writestr(zipfile.ZipInfo(path[1:]), base64.b64decode(str(content)), zipfile.ZIP_DEFLATED)
    print(f"{BYTECODE}: {len(made)} modules, {BYTECODE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
