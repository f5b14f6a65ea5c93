"""The page without a network, and a new version of it: a static host under a sub-path that changes and goes away."""

import hashlib
import json
import shutil
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Request, expect
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from app.server.build import build
from app.server.site import Site, assets
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


def test_another_site_at_the_same_address_gets_through(
    tmp_path: Path, launch: Launch, open_page: OpenPage, console: Console
) -> None:
    """As on localhost, where one thing is served today and another tomorrow."""
    console.allow("404|ERR_CONNECTION_REFUSED")
    (tmp_path / "index.html").write_text("<title>ours</title>")
    shutil.copy(assets("static") / "sw.js", tmp_path)
    digest = hashlib.sha256((tmp_path / "index.html").read_bytes()).hexdigest()
    listing = {"version": "1", "files": {"index.html": digest}}
    (tmp_path / "sw-files.js").write_text(f"self.SITE = {json.dumps(listing)};\n")
    page = open_page(launch(webgpu=False), service_workers="allow")
    with serving(Starlette(routes=[Mount("/", StaticFiles(directory=tmp_path, html=True))])) as address:
        page.goto(address)
        evaluate(
            page,
            """async () => {
                await navigator.serviceWorker.register("sw.js");
                const { active } = await navigator.serviceWorker.ready;
                if (active.state !== "activated")
                    await new Promise((resolve) => active.addEventListener("statechange", resolve, { once: true }));
            }""",
        )
    # For its own host, which may only be away, it answers.
    page.goto(address)
    page.reload()
    expect(page).to_have_title("ours")
    port = urlsplit(address).port
    assert port
    with serving(Starlette(), port=port):
        for _ in range(50):
            answer = page.reload()
            assert answer
            if answer.status == 404:
                return
            page.wait_for_timeout(100)
    pytest.fail("the service worker keeps answering for what is not its own")
