"""The page without a network, and a new version of it: a static host under a sub-path that changes and goes away."""

import hashlib
import json
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Request, expect
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from app.server.build import build
from app.server.site import Site
from tests.browser.conftest import Console, Launch, OpenPage
from tests.browser.waiting import evaluate
from tests.browser.writing import SLOW_MS, Sheet
from tests.serving import serving

pytestmark = pytest.mark.browser

MARK = "// another version\n"


def change(folder: Path, name: str) -> None:
    """Deploy a new version, in which one file is another one."""
    (folder / name).write_text(MARK + (folder / name).read_text())
    listing = folder / "sw-files.js"
    site = json.loads(listing.read_text().removeprefix("self.SITE = ").removesuffix(";\n"))
    site["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    site["version"] = "another"
    listing.write_text(f"self.SITE = {json.dumps(site)};\n")


def test_it_works_offline_after_one_visit_and_offers_a_new_version(
    site: Site, tmp_path: Path, launch: Launch, open_page: OpenPage, console: Console
) -> None:
    build(site, tmp_path / "dist")
    page = open_page(launch(webgpu=False), service_workers="allow")
    asked: list[str] = []

    def note(request: Request) -> None:
        if request.service_worker:
            asked.append(request.url)

    page.context.on("request", note)
    sheet = Sheet(page)
    offline = page.locator("body[data-offline]")
    with ExitStack() as network:
        host = Starlette(routes=[Mount("/some/repo", StaticFiles(directory=tmp_path / "dist", html=True))])
        address = f"{network.enter_context(serving(host))}some/repo/"
        sheet.open(f"{address}?backend=numpy&max_new_tokens=4&seed=1").ready()
        expect(offline).to_be_attached(timeout=SLOW_MS)
        manifest = evaluate(page, "async () => (await fetch(document.querySelector('link[rel=manifest]').href)).json()")
        assert {icon["sizes"] for icon in manifest["icons"]} >= {"192x192", "512x512"}
        first = sheet.run()

        # A new version is told of, while nothing is taken from whoever writes.
        asked.clear()
        change(tmp_path / "dist", "format.js")
        page.reload()
        notice = page.get_by_role("note").filter(has_text="A new version of this page is ready")
        expect(notice).to_be_visible(timeout=SLOW_MS)
        assert [url for url in asked if "/sw" not in url] == [f"{address}format.js"]
        sheet.ready()
        get = "async () => (await fetch('format.js')).text()"
        assert not evaluate(page, get).startswith(MARK)
        second = sheet.run()
        notice.get_by_role("button", name="Change to it").click()
        expect(notice).to_be_hidden()
        sheet.ready()
        assert evaluate(page, get).startswith(MARK)
        expect(sheet.text).to_have_value(f"Once upon a time{first}{second}")
        assert len(evaluate(page, "() => caches.keys()")) == 1

    # The host is gone.
    console.allow("ERR_CONNECTION_REFUSED")
    page.goto(address + "?backend=numpy&max_new_tokens=4&seed=1")
    sheet.ready()
    assert sheet.run()
    part = evaluate(
        page,
        """async () => {
            const response = await fetch("models/story/model.safetensors", { headers: { Range: "bytes=8-15" } });
            return [response.status, response.headers.get("content-range"), (await response.arrayBuffer()).byteLength];
        }""",
    )
    size = (tmp_path / "dist" / "models" / "story" / "model.safetensors").stat().st_size
    assert part == [206, f"bytes 8-15/{size}", 8]
    assert evaluate(page, "async () => fetch('nowhere').then(() => true, () => false)") is False

    # Something else is at its address.
    console.allow("404")
    port = urlsplit(address).port
    assert port
    with serving(Starlette(), port=port):
        page.reload()
        expect(sheet.text).to_be_visible()
        evaluate(
            page,
            """async () => {
                while ((await navigator.serviceWorker.getRegistrations()).length)
                    await new Promise((resolve) => setTimeout(resolve, 50));
            }""",
        )
        answer = page.reload()
        assert answer
        assert answer.status == 404
