"""Makes README's pictures of the real page, each in light and in dark: `python -m tests.browser.make_screenshots`.

They show whatever adapter and speed this machine has. `--flag=--FLAG` (several times) starts Chromium with these flags
instead of the software adapter's.
"""

import argparse
import sys
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, sync_playwright

from app.server.asgi import make_app
from app.server.runtime import ensure_runtime
from app.server.site import Site
from tests.browser.conftest import FLAGS, WEBGPU_FLAGS, find_chromium
from tests.browser.writing import SLOW_MS, Sheet
from tests.serving import serving

DOCS = Path(__file__).parents[2] / "docs"
MAX_BYTES = 250_000
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PROMPT = "Once upon a time"
SEED = 7


def take(page: Page, folder: Path, name: str, *, rest: bool = True) -> None:
    """Take a picture in light and in dark colours; `rest`: the pointer out of the way."""
    if rest:
        page.mouse.move(0, 0)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(500)  # for colours that change smoothly
        path = folder / f"{name}-{scheme}.png"
        page.screenshot(path=path)
        print(f"{path}: {path.stat().st_size:,} bytes, {Sheet(page).status.first.text_content()}")
        assert path.stat().st_size <= MAX_BYTES


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
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        sheet = Sheet(page).open(f"{url}?seed={SEED}&prompt={PROMPT.replace(' ', '%20')}").ready()
        length = page.get_by_label("Max new tokens", exact=True)
        length.fill("2")
        sheet.run()  # the first one waits for the GPU's compiler, which is not what the picture is about
        page.get_by_role("button", name="Undo").click()
        length.fill("110")
        sheet.run()
        sheet.text.focus()
        take(page, options.out, "screenshot")
        page.locator("#tokens").click()
        # The token that the model was least sure of, with what else it might have written.
        surprising = max(page.locator(".chip").all()[8:60], key=lambda chip: int(chip.get_attribute("data-shade") or 0))
        box = surprising.bounding_box()
        assert box
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.get_by_role("group", name="Token", exact=True).wait_for()
        take(page, options.out, "tokens", rest=False)
        page.locator("#tokens").click()
        page.get_by_role("group", name="Look inside").get_by_role("button", name="Attention").click()
        page.locator(".in-list li").first.wait_for(timeout=SLOW_MS)
        page.locator(".in-thumb").nth(20).click()
        page.locator(".in-list li").first.wait_for(timeout=SLOW_MS)
        take(page, options.out, "inside")
        browser.close()
    site.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
