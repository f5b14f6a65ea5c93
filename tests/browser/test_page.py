"""What people do with the page, in a real browser with real models."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser.conftest import Console, Launch, OpenPage, shared_page
from tests.browser.waiting import evaluate
from tests.browser.writing import SLOW_MS, Sheet
from tests.hub_double import Hub, hub_double
from tests.models import write_tiny

pytestmark = pytest.mark.browser

LONG = "The little fox walked on and on. " * 200


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with me/tiny."""
    folder: Path = tmp_path_factory.mktemp("hub")
    write_tiny(folder / "me" / "tiny")
    with hub_double(folder) as running:
        yield running
        running.heal()


@pytest.fixture(scope="module")
def shared(site_url: str, launch: Launch, hub: Hub) -> Iterator[tuple[Page, Console]]:
    with shared_page(launch(webgpu=False), permissions=["clipboard-read", "clipboard-write"]) as (page, watched):
        Sheet(page).open(f"{site_url}?backend=numpy&hub={hub.url}").ready()
        yield page, watched


@pytest.fixture
def desk(shared: tuple[Page, Console]) -> Page:
    """One page on the CPU for all tests that need no other; each leaves a model loaded."""
    return shared[0]


@pytest.fixture
def watched(shared: tuple[Page, Console]) -> Console:
    """What that page complains about."""
    return shared[1]


@pytest.fixture
def sheet(desk: Page) -> Sheet:
    """That page with the settings of the first visit and an empty sheet."""
    desk.get_by_role("button", name="Reset").click()
    sheet = Sheet(desk)
    sheet.text.fill("")
    return sheet


@pytest.fixture
def still(open_page: OpenPage) -> OpenPage:
    """Opens pages without an engine, for what needs none: it would keep the machine busy to no end."""

    def open_still(*args: Any, **options: Any) -> Page:
        page = open_page(*args, **options)
        page.route("**/worker.js", lambda route: None)  # never answered
        return page

    return open_still


def set_tokens(page: Page, count: int) -> None:
    page.get_by_label("Max new tokens", exact=True).fill(str(count))


def load_custom(page: Page, model: str) -> None:
    Sheet(page).model.select_option("custom")
    page.get_by_label("Repository or address").fill(model)
    page.get_by_role("button", name="Load").click()


def test_a_user_writes_stops_changes_the_model_and_goes_on_without_a_network(
    site_url: str, open_page: OpenPage, hub: Hub
) -> None:
    page = open_page()
    sheet = Sheet(page).open(f"{site_url}?hub={hub.url}")
    expect(sheet.text).to_be_focused()

    # Type, Ctrl+Enter, and text streams.
    sheet.text.fill("Once upon a time")
    page.keyboard.press("Control+Enter")
    sheet.writing()
    live = page.locator("#ink > .live")
    early = live.text_content() or ""
    expect(live).not_to_have_text(early, timeout=SLOW_MS, use_inner_text=False)

    # Stop: what is there stays.
    page.keyboard.press("Escape")
    text = sheet.written()
    assert text.startswith(early)
    expect(sheet.status).to_contain_text("Stopped after")
    expect(page.get_by_text("tokens/s")).to_be_visible()
    expect(sheet.text).to_have_value(f"Once upon a time{text}")

    # Another model, from the hub.
    load_custom(page, "me/tiny")
    expect(page.get_by_text("289,664 parameters")).to_be_visible(timeout=SLOW_MS)
    sheet.ready()
    assert hub.requests("model.safetensors")
    page.get_by_label("Max new tokens", exact=True).fill("5")
    more = sheet.run()
    expect(sheet.status).to_contain_text("Wrote 5 tokens")

    # Come back, and write without a network.
    page.reload()
    expect(page.get_by_label("Max new tokens", exact=True)).to_have_value("5")
    expect(sheet.text).to_have_value(f"Once upon a time{text}{more}")
    sheet.ready()
    page.context.set_offline(True)
    sheet.run()
    expect(sheet.status).to_contain_text("Wrote 5 tokens")


def test_generating_may_be_asked_for_before_python_is_there(site_url: str, open_page: OpenPage) -> None:
    sheet = Sheet(open_page()).open(f"{site_url}?backend=numpy&max_new_tokens=3&prompt=Hello")
    sheet.generate.click()
    expect(sheet.status).to_contain_text("Wrote 3 tokens", timeout=SLOW_MS)


def test_the_address_fills_the_controls(site_url: str, open_page: OpenPage) -> None:
    page = open_page()
    query = "prompt=A%20fox%0A&max_new_tokens=7&temperature=0&top_k=5&top_p=0.5&seed=9&min_p=0.1&stop=END"
    sheet = Sheet(page).open(f"{site_url}?backend=numpy&precision=f32&{query}")
    expect(sheet.text).to_have_value("A fox\n")
    for label, value in (
        ("Max new tokens", "7"),
        ("Temperature", "0"),
        ("Top-k", "5"),
        ("Top-p", "0.5"),
        ("Seed", "9"),
        ("Min-p", "0.1"),
        ("Stop at", "END"),
    ):
        expect(page.get_by_label(label, exact=True)).to_have_value(value)
    sheet.ready()
    first = sheet.run()
    assert first
    page.get_by_role("button", name="Undo").click()
    expect(sheet.text).to_have_value("A fox\n")
    assert sheet.run() == first
    # Nothing of it has replaced what the user had set.
    sheet.open(f"{site_url}?backend=numpy")
    expect(page.get_by_label("Top-k", exact=True)).to_have_value("40")


def test_a_value_out_of_range_is_brought_back(site_url: str, still: OpenPage) -> None:
    page = still()
    Sheet(page).open(f"{site_url}?backend=numpy&temperature=-3&top_k=2.6&seed=abc&precision=f64")
    for label, value in (("Temperature", "0"), ("Top-k", "3"), ("Seed", ""), ("Weights", "auto")):
        expect(page.get_by_label(label, exact=True)).to_have_value(value)
    top_p = page.get_by_label("Top-p", exact=True)
    top_p.fill("7")
    top_p.blur()
    expect(top_p).to_have_value("1")
    top_p.fill("")
    top_p.blur()
    expect(top_p).to_have_value("1")


def test_a_random_seed_is_shown_and_writes_the_same_again(sheet: Sheet) -> None:
    page = sheet.page
    set_tokens(page, 12)
    sheet.text.fill("The old")
    first = sheet.run()
    shown = page.get_by_role("button", name=re.compile(r"^Seed \d+$"))
    seed = (shown.text_content() or "").removeprefix("Seed ")
    shown.click()
    expect(page.get_by_label("Seed", exact=True)).to_have_value(seed)
    page.get_by_role("button", name="Undo").click()
    assert sheet.run() == first


def test_copy_takes_the_whole_text(sheet: Sheet) -> None:
    page = sheet.page
    set_tokens(page, 4)
    sheet.text.fill("Lily found a")
    text = sheet.run()
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert evaluate(page, "() => navigator.clipboard.readText()") == f"Lily found a{text}"


def test_what_is_shown_is_what_was_typed(site_url: str, still: OpenPage) -> None:
    """The letters are a copy below a transparent textarea: the two must lie exactly on each other."""
    for width, height in ((1280, 800), (390, 844)):
        page = still(viewport={"width": width, "height": height})
        sheet = Sheet(page).open(site_url)
        sheet.text.fill(f"{LONG[:900]}\n\n  two spaces, a\ttab and <b>no markup</b> & 🎉\n")
        boxes = evaluate(
            page,
            """() => {
                const area = document.getElementById("text");
                const ink = document.getElementById("ink");
                const styles = [area, ink].map((element) => getComputedStyle(element));
                return {
                    same: ["fontFamily", "fontSize", "lineHeight", "letterSpacing", "whiteSpace", "overflowWrap",
                           "paddingTop", "paddingLeft", "tabSize", "width"].filter((name) =>
                           styles[0][name] !== styles[1][name]),
                    hidden: area.scrollHeight - area.clientHeight,
                    text: ink.textContent === area.value,
                    markup: ink.querySelectorAll(":not(span)").length,
                };
            }""",
        )
        assert boxes == {"same": [], "hidden": 0, "text": True, "markup": 0}


def test_without_a_gpu_the_page_says_so_and_uses_numpy(site_url: str, launch: Launch, open_page: OpenPage) -> None:
    page = open_page(launch(webgpu=False))
    sheet = Sheet(page).open(f"{site_url}?max_new_tokens=5").ready()
    notice = page.get_by_role("note")
    expect(notice).to_contain_text("No GPU was found")
    expect(notice).to_contain_text("requestAdapter gave null")
    expect(page.get_by_text("NumPy on the CPU")).to_be_visible()
    sheet.run()
    expect(sheet.status).to_contain_text("Wrote 5 tokens")
    page.get_by_role("button", name="Understood").click()
    expect(notice).to_be_hidden()


def test_a_browser_without_webgpu_is_told_apart(site_url: str, open_page: OpenPage) -> None:
    page = open_page()
    page.context.add_init_script("delete Navigator.prototype.gpu")
    # Workers are out of the script's reach: their navigator gets the same through the engine's own look at it.
    page.route(
        "**/worker.js",
        lambda route: route.fulfill(
            response=(answer := route.fetch()),
            body=f"delete WorkerNavigator.prototype.gpu;\n{answer.text()}",
        ),
    )
    sheet = Sheet(page).open(f"{site_url}?max_new_tokens=2").ready()
    notice = page.get_by_role("note")
    expect(notice).to_contain_text("This browser has no WebGPU")
    expect(notice).to_contain_text("Chrome")
    sheet.generate.click()
    expect(sheet.status).to_contain_text("Wrote 2 tokens", timeout=SLOW_MS)


def test_choosing_numpy_is_no_cause_for_a_notice(desk: Page) -> None:
    expect(desk.get_by_role("note")).to_be_hidden()


def test_a_model_that_is_not_there_is_said_with_what_to_do(sheet: Sheet, watched: Console) -> None:
    watched.allow("404")
    page = sheet.page
    load_custom(page, "me/nothing")
    expect(sheet.problem).to_contain_text("There is no such model", timeout=SLOW_MS)
    expect(sheet.problem).to_contain_text("Check the spelling")
    # As for a backend that cannot be had, the page names the one it has.
    expect(page.locator("#device")).to_have_text("NumPy on the CPU")
    load_custom(page, "me/tiny")
    sheet.ready()
    expect(sheet.problem).to_be_hidden()


def test_retry_does_it_again(sheet: Sheet, hub: Hub, watched: Console) -> None:
    watched.allow("401")
    page = sheet.page
    evaluate(page, "async () => { await lm.load({ backend: 'numpy' }); await lm.forget(); }")
    hub.fail("config.json", "401", times=1)
    load_custom(page, "me/tiny")
    expect(sheet.problem).to_contain_text("private or gated", timeout=SLOW_MS)
    page.get_by_role("button", name="Retry").click()
    sheet.ready()
    expect(sheet.problem).to_be_hidden()


def test_a_download_shows_its_progress_and_can_be_cancelled(sheet: Sheet, hub: Hub) -> None:
    page = sheet.page
    evaluate(page, "async () => { await lm.load({ backend: 'numpy' }); await lm.forget(); }")
    hub.fail("model.safetensors", "slow")
    load_custom(page, "me/tiny")
    expect(sheet.status).to_contain_text(re.compile(r"Downloading me/tiny: [\d.]+ kB of 1.16 MB"), timeout=SLOW_MS)
    bar = page.get_by_role("progressbar")
    expect(bar).to_be_visible()
    assert 0 < float(evaluate(page, "() => document.getElementById('progress').position")) < 1
    # Another choice meanwhile does not rename what is loading.
    sheet.model.select_option("story")
    expect(page.locator("#tab-name")).to_have_text("me/tiny")
    sheet.model.select_option("custom")
    page.get_by_role("button", name="Cancel").click()
    expect(sheet.status).to_contain_text("Loading was cancelled")
    expect(bar).to_be_hidden()
    expect(sheet.problem).to_be_hidden()
    hub.heal()
    page.get_by_role("button", name="Load").click()
    sheet.ready()


def test_an_over_long_text_is_cut_and_that_is_said(sheet: Sheet) -> None:
    evaluate(sheet.page, "() => lm.load({ backend: 'numpy' })")
    set_tokens(sheet.page, 2)
    sheet.text.fill(LONG)
    sheet.generate.click()
    expect(sheet.status).to_contain_text("Wrote 2 tokens. The text was too long", timeout=SLOW_MS)
    expect(sheet.status).to_contain_text("its last 510 tokens")


def test_python_that_does_not_start_is_said(site_url: str, open_page: OpenPage, console: Console) -> None:
    console.allow("site.json|HTTP 500|500|BootError|failed")
    page = open_page()
    page.route("**/site.json", lambda route: route.fulfill(status=500, body="no"))
    sheet = Sheet(page).open(f"{site_url}?backend=numpy")
    expect(sheet.problem).to_contain_text("Python did not start")
    expect(sheet.problem).to_contain_text("site.json gave HTTP 500")
    expect(sheet.generate).to_be_disabled()
    page.unroute("**/site.json")
    page.get_by_role("button", name="Retry").click()
    sheet.ready()


@pytest.mark.parametrize("chosen", ["length", "0", 7, -1, None], ids=str)
def test_a_damaged_document_keeps_its_text(site_url: str, still: OpenPage, chosen: object) -> None:
    page = still()
    take = {"pieces": [" you"], "seed": 1, "finish": "length", "options": {}}
    saved = {"caret": 5, "pieces": ["Hello you"], "before": ["Hello"], "after": [], "takes": [take], "chosen": chosen}
    page.add_init_script(f"localStorage.setItem('tabgpt.document', {json.dumps(json.dumps(saved))})")
    sheet = Sheet(page).open(site_url)
    expect(sheet.text).to_have_value("Hello you")
    expect(page.locator("#regenerate")).to_be_hidden()


def test_the_page_is_there_before_python(site_url: str, open_page: OpenPage) -> None:
    page = open_page()
    page.route("**/pyodide/**", lambda route: route.abort())
    page.route("**/worker.js", lambda route: None)  # never answered
    sheet = Sheet(page).open(f"{site_url}?prompt=Hello")
    expect(sheet.text).to_have_value("Hello")
    expect(sheet.text).to_be_editable()
    expect(sheet.model).to_be_visible()
    sheet.text.fill("Something else")
    expect(page.locator("#ink")).to_have_text("Something else")
    page.unroute_all(behavior="ignoreErrors")


def test_every_control_has_a_name(site_url: str, still: OpenPage) -> None:
    page = still()
    Sheet(page).open(site_url)
    nameless = evaluate(
        page,
        """() => [...document.querySelectorAll("button, input, select, textarea, progress")]
            .filter((element) => !(element.labels?.length || element.ariaLabel || element.textContent.trim()))
            .map((element) => element.outerHTML)""",
    )
    assert nameless == []


def test_nothing_is_wider_than_the_screen(sheet: Sheet) -> None:
    page = sheet.page
    set_tokens(page, 1)
    for width, height in ((1280, 800), (390, 844), (320, 568)):
        page.set_viewport_size({"width": width, "height": height})
        sheet.text.fill("x" * 300)
        expect(sheet.generate).to_be_in_viewport()
        sheet.run()
        expect(page.locator("#regenerate")).to_be_in_viewport(ratio=1)
        assert evaluate(page, "() => document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(site_url: str, still: OpenPage, scheme: str) -> None:
    page = still(color_scheme=scheme)
    Sheet(page).open(site_url)
    ratios = evaluate(
        page,
        """() => {
            const colour = (name) => {
                const probe = document.createElement("i");
                probe.style.color = `var(--${name})`;
                document.body.append(probe);
                const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3).map(Number);
                probe.remove();
                return parts;
            };
            const luminance = (name) => {
                const [r, g, b] = colour(name).map((value) => value / 255)
                    .map((value) => value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
                return 0.2126 * r + 0.7152 * g + 0.0722 * b;
            };
            const pairs = [["ink", "paper"], ["ink", "desk"], ["muted", "paper"], ["muted", "desk"],
                           ["accent", "paper"], ["accent", "desk"], ["on-accent", "accent"],
                           ["danger", "danger-wash"], ["ink", "danger-wash"]];
            return pairs.map(([front, back]) => {
                const [a, b] = [luminance(front), luminance(back)].sort((x, y) => y - x);
                return [`${front} on ${back}`, (a + 0.05) / (b + 0.05)];
            });
        }""",
    )
    assert [pair for pair, ratio in ratios if ratio < 4.5] == []
