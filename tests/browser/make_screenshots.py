"""Makes README's two pictures of the real page: `python -m tests.browser.make_screenshots`.

They show whatever adapter and speed this machine has. `--flag=--FLAG` (several times) starts Chromium with these flags
instead of the software adapter's.
"""

import argparse
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from app.server.asgi import make_app
from app.server.runtime import ensure_runtime
from app.server.site import Site
from tests.browser.conftest import FLAGS, WEBGPU_FLAGS, find_chromium
from tests.browser.writing import Sheet
from tests.serving import serving

DOCS = Path(__file__).parents[2] / "docs"
MAX_BYTES = 250_000
PROMPT = "Once upon a time"
SEED = 7


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flag", action="append", default=[], metavar="FLAG")
    parser.add_argument("--out", type=Path, default=DOCS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    site = Site(ensure_runtime())
    with serving(make_app(site)) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=find_chromium(playwright),
            args=[*FLAGS, *(options.flag or WEBGPU_FLAGS)],
            chromium_sandbox=False,
        )
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
            sheet = Sheet(page).open(f"{url}?seed={SEED}&prompt={PROMPT.replace(' ', '%20')}").ready()
            sheet.run()  # the first one waits for the GPU's compiler, which is not what the picture is about
            sheet.run()
            page.mouse.move(0, 0)
            page.wait_for_timeout(500)  # for colours that change smoothly
            path = options.out / f"screenshot-{scheme}.png"
            page.screenshot(path=path)
            print(f"{path}: {path.stat().st_size:,} bytes, {sheet.status.text_content()}")
            assert path.stat().st_size <= MAX_BYTES
            page.close()
        browser.close()
    site.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
