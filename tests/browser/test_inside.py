"""Looking inside: stories of one page with a small random model on the software GPU."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, ViewportSize, expect

from app.server.site import Site
from tests.browser.accessibility import violations
from tests.browser.conftest import Console, Launch
from tests.browser.waiting import evaluate
from tests.browser.worker_prefix import with_worker_prefix
from tests.browser.writing import SLOW_MS, Sheet
from tests.hub_double import hub_double
from tests.models import write_tiny
from tests.serving import serving

pytestmark = pytest.mark.browser

DESKTOP: ViewportSize = {"width": 1280, "height": 860}
PHONE: ViewportSize = {"width": 390, "height": 844}
LAYERS, HEADS = 3, 2
COUNT = """
const counts = { dispatches: 0, readbacks: 0, submits: 0 };
for (const [type, method, name] of [
    [GPUComputePassEncoder, "dispatchWorkgroups", "dispatches"], [GPUBuffer, "mapAsync", "readbacks"],
    [GPUQueue, "submit", "submits"]]) {
  const plain = type.prototype[method];
  type.prototype[method] = function (...args) { counts[name] += 1; return plain.apply(this, args); };
}
const channel = new BroadcastChannel("counts");
channel.onmessage = ({ data }) => { if (data === "tell") channel.postMessage({ ...counts }); };
"""
"""Counts in the worker what a generation costs."""
TELL = """() => new Promise((done) => {
    const channel = new BroadcastChannel("counts");
    channel.onmessage = ({ data }) => { channel.close(); done(data); };
    channel.postMessage("tell");
})"""
MOUNT = """async () => {
    document.body.append(document.createElement("tabgpt-inside"));
    await import(new URL("inside/inside.js", location.href).href);
}"""
GENERATE = "() => lm.complete({ prompt: 'Once upon a time', max_new_tokens: 5, seed: 1, depth: 1 })"


ABSENT: dict[str, Any] = {}
"""What a generation costs on a page without anything that looks inside."""


@pytest.fixture(scope="module")
def desk(site: Site, launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One page with a model of 3 layers. What looks inside comes only after its absence was measured."""
    console = Console()
    folder: Path = tmp_path_factory.mktemp("hub")
    write_tiny(folder / "me" / "tiny", n_layer=LAYERS, n_head=HEADS)
    with hub_double(folder) as hub, serving(with_worker_prefix(site, COUNT)) as url:
        context = launch().new_context(
            viewport=DESKTOP, permissions=["clipboard-read", "clipboard-write"], service_workers="block"
        )
        context.set_default_timeout(60_000)
        context.on("page", console.watch)
        page = context.new_page()

        def without(route: Route) -> None:
            html = site.files()["index.html"].read_text()
            html, count = re.subn(r"<(tabgpt-inside|script [^>]*inside/inside.js).*?</[a-z-]+>", "", html)
            assert count == 2
            route.fulfill(body=html, content_type="text/html")

        page.route("**/absent.html**", without)
        query = f"?hub={hub.url}&model=me/tiny&max_new_tokens=4&seed=7&prompt=Once upon a time there was a fox"
        sheet = Sheet(page).open(f"{url}absent.html{query}").ready()
        ABSENT.update(cost(page))
        evaluate(page, MOUNT)
        expect(page.locator(".in-tab").first).to_be_visible()
        sheet.run()  # from what happens from now on it learns what there is to look at
        page.keyboard.press("Control+z")
        page.wait_for_timeout(800)
        yield page
        context.close()
    assert console.unexpected() == []


def cost(page: Page) -> dict[str, Any]:
    """What one generation takes, and what came of it."""
    evaluate(page, GENERATE)  # the first one compiles
    page.wait_for_timeout(1500)  # the page looks at its text when it has rested
    before = evaluate(page, TELL)
    result = evaluate(page, GENERATE)
    after = evaluate(page, TELL)
    return {name: after[name] - before[name] for name in before} | {"ids": result["ids"]}


def show(page: Page, name: str) -> Locator:
    """Open a view, whatever was open."""
    button = page.get_by_role("group", name="Look inside").get_by_role("button", name=name)
    if button.get_attribute("aria-expanded") == "false":
        button.click()
    view = page.get_by_role("region", name=name, exact=True)
    expect(view).to_be_visible()
    return view


def close(page: Page) -> None:
    opened = page.locator(".in-tab[aria-expanded=true]")
    if opened.count():
        opened.click()
    expect(page.locator("#inside-view")).to_be_hidden()


def test_closed_it_costs_nothing(desk: Page) -> None:
    absent = dict(ABSENT)
    assert absent["dispatches"] > 5
    assert absent["readbacks"] >= 5
    assert cost(desk) == absent
    view = show(desk, "Attention")
    expect(view.locator(".in-list li").first).to_be_visible(timeout=SLOW_MS)
    watched = cost(desk)
    assert watched["ids"] == absent["ids"], "looking must not change what is written"
    assert watched["dispatches"] > absent["dispatches"]
    assert watched["readbacks"] > absent["readbacks"]
    close(desk)
    desk.wait_for_timeout(300)
    assert cost(desk) == absent


def test_attention_over_the_text_and_as_a_matrix(desk: Page) -> None:
    view = show(desk, "Attention")
    thumbs = view.get_by_role("group", name="All layers and heads").get_by_role("button")
    expect(thumbs).to_have_count(LAYERS * HEADS, timeout=SLOW_MS)
    tokens = view.get_by_role("group", name="The text: point at a token").get_by_role("button")
    ids = evaluate(desk, "() => lm.encode('Once upon a time there was a fox')")
    count = len(ids)
    expect(tokens).to_have_count(count, timeout=SLOW_MS)

    # By keyboard: the second head of the last layer, then the third token.
    expect(thumbs.first).to_have_attribute("aria-label", re.compile("Layer 1, head 1: .*% on the text"))
    thumbs.first.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        desk.keyboard.press(key)
    expect(view.get_by_role("heading", name=f"Layer {LAYERS}, head 2")).to_be_visible()
    expect(thumbs.last).to_have_attribute("aria-pressed", "true")
    tokens.first.focus()
    for _ in range(3):
        desk.keyboard.press("ArrowRight")
    expect(tokens.nth(3)).to_be_focused()

    # What it says is what the model does.
    row = evaluate(
        desk,
        """async (ids) => {
            const { attention, n } = await lm.inspect({ ids, attention: { layers: [2], heads: [1] } });
            return [...attention.maps.slice(3 * n, 4 * n)];
        }""",
        ids,
    )
    assert sum(row) == pytest.approx(1, abs=1e-4)
    best = max(range(4), key=lambda key: row[key])
    expect(view.locator(".in-list li").first.locator(".in-number")).to_have_text(shown(row[best]))
    expect(view.get_by_role("status")).to_contain_text(shown(row[best]))
    tinted = tokens.evaluate_all("(all) => all.map((item) => item.style.background !== '')")
    assert tinted == [True] * 4 + [False] * (count - 4)

    # In the matrix, with the pointer and with keys.
    matrix = view.locator("canvas.in-matrix")
    expect(matrix).to_have_attribute("aria-label", re.compile(f"{count} by {count} weights"))
    matrix.focus()
    desk.keyboard.press("ArrowUp")
    expect(tokens.nth(2)).to_have_attribute("data-current", "")
    box = matrix.bounding_box()
    assert box is not None
    side = box["height"]
    matrix.hover(position={"x": box["width"] - side + side / count / 2, "y": side - side / count / 2})
    expect(view.get_by_role("status")).to_contain_text("looks at “Once” with")
    expect(tokens.last).to_have_attribute("data-current", "")

    # Step by step.
    view.get_by_role("slider", name="Step").fill("2")
    expect(view.locator(".in-count")).to_have_text(f"2 of {count}")
    expect(tokens.nth(2)).to_have_attribute("data-later", "")
    view.get_by_role("button", name="Replay").click()
    expect(view.locator(".in-count")).to_have_text(f"{count} of {count}")
    expect(view.get_by_role("button", name="Replay")).to_be_visible()


def shown(share: float) -> str:
    value = 100 * share
    return f"{value:.0f}%" if value >= 10 else f"{value:.1f}%"


def test_it_is_live_while_the_model_writes(desk: Page) -> None:
    view = show(desk, "Attention")
    expect(view.locator(".in-list li").first).to_be_visible(timeout=SLOW_MS)
    before = len(evaluate(desk, "() => lm.encode('Once upon a time there was a fox')"))
    expect(view.locator(".in-token")).to_have_count(before, timeout=SLOW_MS)
    note = view.locator(".in-note")
    evaluate(
        desk,
        """() => {
            globalThis.notes = new Set();
            const note = document.querySelector(".in-heads .in-note");
            new MutationObserver(() => notes.add(note.textContent)).observe(note, { childList: true });
        }""",
    )
    Sheet(desk).run()
    expect(note).to_have_text("Rows are the tokens that look, columns what they look at.", timeout=SLOW_MS)
    notes = evaluate(desk, "() => [...notes]")
    assert any(text.startswith("Live: each small map has the last") for text in notes)
    expect(view.locator(".in-token")).to_have_count(before + 4)
    expect(view.locator(".in-token[data-written]")).to_have_count(4)

    # The layers, too: what is shown last chose the last token.
    view = show(desk, "Layers")
    expect(view.locator(".in-chip").first).to_be_visible(timeout=SLOW_MS)
    evaluate(
        desk,
        """() => {
            globalThis.said = [];
            const says = document.querySelector(".in-layers .in-says");
            new MutationObserver(() => said.push(says.textContent)).observe(says, { childList: true });
        }""",
    )
    result = evaluate(desk, "() => lm.complete({ ids: [5, 6, 7], max_new_tokens: 3, temperature: 0 })")
    expect(view.get_by_role("status")).to_contain_text("how the next token takes shape", timeout=SLOW_MS)
    assert len(result["ids"]) == 3
    assert any(text.startswith("Live, at 5: how") for text in evaluate(desk, "() => said"))
    desk.keyboard.press("Control+z")


def test_layers_and_the_logit_lens(desk: Page) -> None:
    view = show(desk, "Layers")
    rows = view.locator(".in-table tbody tr")
    expect(rows).to_have_count(LAYERS + 1, timeout=SLOW_MS)
    expect(rows.last.locator(".in-number").nth(1)).to_have_text("1.000")
    expect(rows.last.locator("canvas")).to_have_attribute("aria-label", re.compile("Layer 3: 32 numbers"))
    view.locator(".in-token").nth(2).click()
    expect(view.get_by_role("status")).to_contain_text("At 3 of", timeout=SLOW_MS)
    best = evaluate(
        desk,
        """async () => {
            const { ids } = await lm.inspect({ prompt: "Once upon a time there was a fox" });
            const logits = await lm.logits({ ids: ids.slice(0, 3) });
            return logits.indexOf(Math.max(...logits));
        }""",
    )
    chip = rows.last.locator(".in-chip").first
    expect(chip).to_have_attribute("title", re.compile(f"id {best},"))


def test_time_says_what_it_is_bound_by(desk: Page) -> None:
    view = show(desk, "Time")
    expect(view.get_by_role("table").first).to_be_visible(timeout=SLOW_MS)
    expect(view.get_by_role("status")).to_have_text(
        re.compile(r"^(GPU-bound: the GPU is busy|CPU-bound: the GPU is busy only) \d+% of the time\..*a token")
    )
    expect(view.get_by_role("table").first).to_contain_text("matvec")
    memory = evaluate(desk, "async () => (await lm.profile({ ids: [1, 2] })).memory")
    total = sum(memory.values())
    expect(view.get_by_role("region", name="Memory").locator(".in-figure")).to_contain_text("MB")
    shown_mb = float((view.get_by_role("region", name="Memory").locator(".in-figure").text_content() or "0").split()[0])
    assert shown_mb == pytest.approx(total / 1e6, rel=0.02)
    found = evaluate(desk, "() => lm.profile({ prompt: 'Once upon a time', new_tokens: 4 })")
    decode = found["decode"]
    assert decode["dispatches"] > 10
    assert decode["weight_bytes"] > 4 * 8192 * 32
    assert decode["gb_per_second"] == pytest.approx(
        (decode["weight_bytes"] + decode["cache_bytes"]) / decode["gpu_ms"] / 1e6
    )
    for phase in (decode, found["prefill"]):
        assert phase["python_ms"] > 0
        assert phase["submit_ms"] > 0
        assert phase["ms"] == pytest.approx(phase["python_ms"] + phase["submit_ms"] + phase["waiting_ms"], rel=0.01)


def test_the_report_has_the_gpu_and_no_secret(desk: Page) -> None:
    view = show(desk, "GPU")
    expect(view.get_by_role("region", name="Limits")).to_contain_text("maxStorageBufferBindingSize")
    expect(view.get_by_role("region", name="Features")).to_contain_text("timestamp-query")
    view.get_by_role("button", name="Copy report").click()
    expect(view.get_by_role("status")).to_have_text("Copied.")
    text = evaluate(desk, "() => navigator.clipboard.readText()")
    report = json.loads(text)
    assert report["gpu"]["architecture"] == "swiftshader"
    assert report["model"]["model"] == "me/tiny"
    assert report["model"]["memory"]["weights"] > 0
    assert "Once upon" not in text
    assert not any("token" in key for key in [*report, *report["model"]])
    names = evaluate(
        desk,
        """async () => {
            const { publicName } = await import(new URL("inside/device.js", location.href).href);
            return ["story", "me/model-1.5", "https://host/secret?token=1", "C:/Users/me"].map(publicName);
        }""",
    )
    assert names == ["story", "me/model-1.5", "(an address or a folder)", "(an address or a folder)"]


def test_the_walk_leads_from_text_to_token_and_to_the_source(desk: Page) -> None:
    view = show(desk, "How it works")
    heading = view.get_by_role("heading").first
    expect(heading).to_have_text("1. Text to tokens", timeout=SLOW_MS)
    titles = []
    dialog = desk.get_by_role("dialog")
    for step in range(8):
        titles.append(heading.text_content())
        for link in view.locator(".in-source").all():
            link.click()
            path = dialog.get_by_role("heading").text_content() or ""
            assert path.startswith(("wgsl/", "app/engine/"))
            expect(dialog.locator(".in-comment")).not_to_be_empty()
            expect(dialog.locator(".in-code")).to_contain_text("def " if path.endswith(".py") else "fn ")
            if path.endswith(".py"):
                expect(dialog.locator("mark")).to_have_count(1)
            desk.keyboard.press("Escape")
            expect(dialog).to_be_hidden()
        if step < 7:
            view.get_by_role("button", name="Next", exact=True).click()
    assert [title and title[0] for title in titles] == list("12345678")
    expect(view.get_by_role("button", name="Next", exact=True)).to_be_disabled()
    says = view.locator(".in-text[role=status]")
    expect(says).to_contain_text("the number 0.500 falls on")
    view.get_by_role("slider", name="Temperature").fill("0.1")
    expect(says).to_contain_text("At temperature 0.10")
    view.get_by_role("button", name="Queries, keys, values").click()
    view.get_by_role("combobox", name="Head").select_option("1")
    expect(view.locator(".in-strip")).to_have_count(3)
    view.get_by_role("combobox", name="Layer").select_option("2")
    expect(view.locator(".in-strip").first).to_have_attribute("aria-label", re.compile("Query: 16 numbers"))


@pytest.mark.parametrize(("scheme", "size"), [("light", DESKTOP), ("dark", PHONE)], ids=["desktop", "phone"])
def test_every_view_is_free_of_barriers(desk: Page, scheme: Any, size: ViewportSize) -> None:
    found = {}
    desk.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    desk.set_viewport_size(size)
    for name, there in (
        ("Attention", ".in-list li"),
        ("Layers", ".in-chip"),
        ("GPU", ".in-specs"),
        ("How it works", ".in-source"),
    ):
        view = show(desk, name)
        expect(view.locator(there).first).to_be_visible(timeout=SLOW_MS)
        found[name] = violations(desk)
        assert evaluate(desk, "() => document.documentElement.scrollWidth") <= size["width"]
    desk.set_viewport_size(DESKTOP)
    assert {view: wrong for view, wrong in found.items() if wrong} == {}


def test_live_it_shows_no_token_of_a_text_that_was_replaced(desk: Page) -> None:
    view = show(desk, "Attention")
    expect(view.locator(".in-token").first).to_be_visible(timeout=SLOW_MS)
    expect(view.locator(".in-list li").first).to_be_visible(timeout=SLOW_MS)
    old = evaluate(desk, "() => [...document.querySelectorAll('.in-over .in-token')].map((item) => item.title)")
    evaluate(
        desk,
        """() => {
            globalThis.seen = [];
            const tokens = document.querySelector(".in-over .in-tokens");
            const look = new MutationObserver(() => {
                if (document.body.dataset.engine !== "generating") return;
                const items = [...tokens.querySelectorAll("button")];
                seen.push(items.map(({ title }) => Number(title.split(", id ").at(-1))));
            });
            look.observe(tokens, { childList: true });
        }""",
    )
    sheet = Sheet(desk)
    sheet.text.press("Control+a")
    desk.keyboard.insert_text("The queen of the bees")
    desk.keyboard.press("Control+Enter")
    new = evaluate(desk, "() => lm.encode('The queen of the bees')")
    assert not old[0].endswith(f"id {new[0]}")
    tokens = view.locator(".in-token")
    expect(tokens).to_have_count(len(new) + 4, timeout=SLOW_MS)
    expect(tokens.first).to_have_attribute("title", re.compile(f"id {new[0]}$"), timeout=SLOW_MS)
    seen = evaluate(desk, "() => seen")
    assert seen, "nothing was shown live"
    for ids in seen:
        assert all(token in (-1, new[place]) for place, token in enumerate(ids[: len(new)])), (ids, new)


def test_on_a_phone_a_view_is_scrolled_to_and_a_long_text_says_what_is_left_out(desk: Page) -> None:
    close(desk)
    Sheet(desk).text.fill("a fox and " * 40)
    desk.set_viewport_size(PHONE)
    desk.evaluate("() => scrollTo(0, 0)")
    view = show(desk, "How it works")
    view.get_by_role("button", name="Text to tokens").click()
    desk.evaluate("() => scrollTo(0, 0)")
    close(desk)
    show(desk, "How it works")
    expect(view.locator(".in-text").first).to_contain_text("Only the last 60 are shown.", timeout=SLOW_MS)
    expect(view.locator(".in-piece-id")).to_have_count(60)
    expect(view).to_be_in_viewport(ratio=0.3)
    desk.set_viewport_size(DESKTOP)


def test_layers_fill_live_without_a_lens(desk: Page) -> None:
    view = show(desk, "Layers")
    expect(view.locator(".in-chip").first).to_be_visible(timeout=SLOW_MS)
    rows = evaluate(
        desk,
        """async () => {
            const rows = [];
            const body = document.querySelector(".in-layers tbody");
            const chips = () => body.querySelectorAll(".in-chip").length;
            const look = new MutationObserver(() => rows.push([body.rows.length, chips()]));
            look.observe(body, { childList: true });
            // As a generation that began while another view was open.
            await lm.complete({ ids: [5, 6, 7], max_new_tokens: 3, inspect: { lens: 0 } });
            await new Promise(requestAnimationFrame);
            look.disconnect();
            return rows;
        }""",
    )
    assert [LAYERS + 1, 0] in rows
    assert all(count == LAYERS + 1 for count, _ in rows)
