"""The built tree on a host that only hands out files, under a path that is not the root."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Request
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from app.server.build import build
from app.server.site import Site
from tests.browser.conftest import OpenPage
from tests.browser.waiting import evaluate
from tests.serving import serving

REFERENCE = Path(__file__).parents[2] / "static" / "models" / "story" / "reference.json"

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def deployed(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of /some/repo/ on a host without headers of ours and without an index.html for a folder."""
    folder = tmp_path_factory.mktemp("deploy") / "dist"
    build(site, folder)
    with serving(Starlette(routes=[Mount("/some/repo", StaticFiles(directory=folder))])) as address:
        yield f"{address}some/repo/"


def greedy_prompt() -> dict[str, Any]:
    prompt: dict[str, Any] = json.loads(REFERENCE.read_text())["prompts"][0]
    return prompt


GENERATE = """async ({model, ids, count}) => {
    await window.lm.ready;
    await window.lm.load({model});
    const done = await window.lm.complete({ids, max_new_tokens: count, temperature: 0});
    return {ids: done.ids, text: done.text, finish: done.finish};
}"""


def test_it_generates_under_a_sub_path_with_relative_addresses_only(deployed: str, open_page: OpenPage) -> None:
    page = open_page()
    asked: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    page.context.on("request", note)
    page.goto(f"{deployed}index.html")
    prompt = greedy_prompt()
    count = 16
    done = evaluate(page, GENERATE, {"model": "story", "ids": prompt["ids"], "count": count}, timeout_s=150)
    assert done["ids"] == prompt["greedy_ids"][:count]
    assert done["finish"] == "length"
    assert done["text"]
    fetched = [url for url in asked if not url.startswith(("data:", "blob:"))]
    assert [url for url in fetched if not url.startswith(deployed)] == []
    assert any(url.endswith("pyodide.asm.wasm") for url in fetched)
