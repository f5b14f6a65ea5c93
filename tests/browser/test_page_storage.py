"""The page and what it keeps: storage, downloads, tokens, mirrors, folders, and coming back."""

import base64
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.conftest import Console, Launch, OpenPage, shared_page
from tests.browser.waiting import evaluate
from tests.browser.writing import SLOW_MS, Sheet
from tests.hub_double import Hub, hub_double
from tests.models import write_tiny

pytestmark = pytest.mark.browser

TOKEN = "hf_secretSecret"
BIG = "model.safetensors"


@pytest.fixture(scope="module")
def running_hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    write_tiny(folder / "me" / "tiny")
    write_tiny(folder / "openai-community" / "gpt2")
    with hub_double(folder) as running:
        yield running


@pytest.fixture
def hub(running_hub: Hub) -> Hub:
    running_hub.reset(running_hub.folder)
    return running_hub


@pytest.fixture(scope="module")
def cpu(launch: Launch) -> Browser:
    """Chromium without a GPU: nothing here computes for long."""
    return launch(webgpu=False)


@pytest.fixture
def page(open_page: OpenPage, cpu: Browser) -> Page:
    return open_page(cpu)


@pytest.fixture(scope="module")
def shared(site_url: str, cpu: Browser, running_hub: Hub) -> Iterator[tuple[Page, Console]]:
    with shared_page(cpu) as (page, watched):
        Sheet(page).open(address(site_url, running_hub)).ready()
        yield page, watched


@pytest.fixture
def watched(shared: tuple[Page, Console]) -> Console:
    """What the page that several tests share complains about."""
    return shared[1]


@pytest.fixture
def desk(shared: tuple[Page, Console], hub: Hub) -> Page:
    """One page for all tests that need no other: the story is loaded, nothing kept, nothing remembered."""
    page, _ = shared
    page.keyboard.press("Escape")
    evaluate(
        page,
        """async () => {
            await lm.load({ backend: "numpy" });
            await lm.forget();
            localStorage.clear();
            sessionStorage.clear();
        }""",
        timeout_s=60,
    )
    page.get_by_label("Max new tokens", exact=True).fill("2")
    hub.asked.clear()
    return page


def address(site_url: str, hub: Hub, more: str = "") -> str:
    return f"{site_url}?backend=numpy&hub={hub.url}{more}"


def load_custom(page: Page, model: str) -> None:
    Sheet(page).model.select_option("custom")
    page.get_by_label("Repository or address").fill(model)
    page.get_by_role("button", name="Load").click()


def loaded(page: Page, model: str) -> None:
    expect(page.locator("#tab-name")).to_have_text(model, timeout=60_000)
    Sheet(page).ready()


def open_storage(page: Page) -> Locator:
    page.get_by_role("button", name="Storage").click()
    return page.get_by_role("dialog", name="Storage")


def test_storage_lists_what_is_kept_and_deletes_one_or_all(desk: Page, hub: Hub) -> None:
    page = desk
    storage = open_storage(page)
    expect(storage).to_contain_text("No downloaded model is kept here")
    expect(storage).to_contain_text(re.compile(r"in use of [\d.]+ [MG]B that the browser allows"))
    expect(storage).to_contain_text("The browser may clear this by itself")
    expect(storage.get_by_role("button", name="Delete all")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(storage).to_be_hidden()

    load_custom(page, "me/tiny")
    loaded(page, "me/tiny")
    Sheet(page).model.select_option("openai-community/gpt2")
    page.get_by_role("button", name="Load 498 MB").click()
    loaded(page, "GPT-2 124M")
    expect(page.locator("#model-facts")).to_contain_text("kept in storage")
    storage = open_storage(page)
    rows = storage.get_by_role("listitem")
    expect(rows).to_have_count(2)
    tiny, gpt2 = rows.filter(has_text="me/tiny"), rows.filter(has_text="GPT-2 124M")
    for row in (tiny, gpt2):
        expect(row).to_contain_text("1.49 MB · complete · 0123456")

    # Asked twice; changing one's mind deletes nothing.
    tiny.get_by_role("button", name="Delete me/tiny").click()
    tiny.get_by_role("button", name="Keep me/tiny").click()
    expect(tiny.get_by_role("button", name="Delete me/tiny")).to_be_focused()
    assert len(evaluate(page, "() => lm.storage()")["models"]) == 2
    tiny.get_by_role("button", name="Delete me/tiny").click()
    tiny.get_by_role("button", name="Yes, delete me/tiny").click()
    expect(rows).to_have_count(1)
    assert [model["model"] for model in evaluate(page, "() => lm.storage()")["models"]] == ["openai-community/gpt2"]

    storage.get_by_role("button", name="Delete all").click()
    expect(storage).to_contain_text("Delete all, 1.49 MB?")
    storage.get_by_role("button", name="Yes, delete all").click()
    expect(storage).to_contain_text("No downloaded model is kept here")
    assert evaluate(page, "() => lm.storage()")["models"] == []
    storage.get_by_role("button", name="Close").click()
    expect(storage).to_be_hidden()


def test_the_download_in_figures_and_what_a_cancelled_one_leaves(desk: Page, hub: Hub) -> None:
    page = desk
    sheet = Sheet(page)
    hub.bytes_per_s = 300_000
    load_custom(page, "me/tiny")
    figures = page.locator("#figures")
    expect(sheet.status).to_contain_text(re.compile(r"Downloading me/tiny: [\d.]+ kB of 1.16 MB"), timeout=SLOW_MS)
    expect(figures).to_contain_text(re.compile(r"embeddings|layer \d of \d|norm"))
    expect(figures).to_contain_text(re.compile(r"\d+ kB/s"), timeout=SLOW_MS)
    expect(figures).to_contain_text(re.compile(r"[\d.]+ m?s left"))
    page.get_by_role("button", name="Cancel").click()
    expect(sheet.status).to_contain_text("Loading was cancelled")
    expect(figures).to_be_empty()
    evaluate(page, "() => lm.stop()")

    storage = open_storage(page)
    expect(storage.get_by_role("listitem")).to_contain_text("partial")
    page.keyboard.press("Escape")
    hub.reset(hub.folder)
    page.get_by_role("button", name="Load").click()
    loaded(page, "me/tiny")
    # At least its description and its tokenizer had come whole.
    expect(figures).to_contain_text(re.compile(r"\d [kM]B from storage"))
    expect(figures).to_contain_text(re.compile(r"[kM]B downloaded"))
    expect(open_storage(page).get_by_role("listitem")).to_contain_text("complete")


def test_what_cannot_be_kept_is_said_and_not_remembered(desk: Page, hub: Hub) -> None:
    page = desk
    sheet = Sheet(page)
    hub.commit = None
    load_custom(page, "me/tiny")
    notice = page.get_by_role("note").filter(has_text="not kept for next time")
    expect(notice).to_contain_text("the hub does not tell which version its files are", timeout=SLOW_MS)
    notice.get_by_role("button", name="Understood").click()
    expect(notice).to_be_hidden()
    page.reload()
    sheet.ready()
    expect(sheet.model).to_have_value("story")


def test_the_model_is_there_again_without_a_network(desk: Page, hub: Hub) -> None:
    page = desk
    sheet = Sheet(page)
    load_custom(page, "me/tiny")
    loaded(page, "me/tiny")
    hub.asked.clear()
    hub.fail("config.json", "503")
    page.reload()
    loaded(page, "me/tiny")
    expect(page.locator("#figures")).to_contain_text("from storage")
    assert hub.asked == []
    assert sheet.run()
    # The button says where another visit to it would come from.
    sheet.model.select_option("story")
    page.get_by_role("button", name="Load").click()
    loaded(page, "Story 14M")
    sheet.model.select_option("custom")
    expect(page.get_by_role("button", name="Load from storage")).to_be_visible()
    # And the story is what was loaded last.
    page.reload()
    loaded(page, "Story 14M")


def test_a_visit_alone_downloads_nothing(desk: Page, hub: Hub) -> None:
    page = desk
    sheet = Sheet(page)
    sheet.model.select_option("openai-community/gpt2")
    page.get_by_role("button", name="Load 498 MB").click()
    loaded(page, "GPT-2 124M")
    evaluate(page, "() => lm.forget()")
    hub.asked.clear()
    page.reload()
    expect(sheet.problem).to_contain_text("The model is not stored here any more", timeout=SLOW_MS)
    assert hub.asked == []
    sheet.problem.get_by_role("button", name="Download 498 MB").click()
    loaded(page, "GPT-2 124M")
    assert hub.requests(BIG)


def test_where_the_hub_is_out_of_reach_the_story_is_offered(desk: Page, hub: Hub, watched: Console) -> None:
    page = desk
    watched.allow("blocked by CORS policy|Failed to load resource")
    sheet = Sheet(page)
    hub.fail("config.json", "no-cors")
    load_custom(page, "me/tiny")
    expect(sheet.problem).to_contain_text("No connection", timeout=SLOW_MS)
    sheet.problem.get_by_role("button", name="Use the story model").click()
    loaded(page, "Story 14M")
    expect(sheet.problem).to_be_hidden()
    expect(sheet.model).to_have_value("story")


def test_a_gated_model_with_a_token(site_url: str, desk: Page, hub: Hub, watched: Console) -> None:
    page = desk
    watched.allow("401")
    hub.token = TOKEN
    sheet = Sheet(page)
    load_custom(page, "me/tiny")
    expect(sheet.problem).to_contain_text("private or gated", timeout=SLOW_MS)
    sheet.problem.get_by_role("button", name="Enter a token").click()
    field = page.get_by_label("Access token")
    expect(field).to_be_focused()
    expect(field).to_have_attribute("type", "password")
    field.fill(TOKEN)
    field.press("Enter")
    loaded(page, "me/tiny")
    everything = "() => JSON.stringify([{...localStorage}, {...sessionStorage}, location.href, document.cookie])"
    assert TOKEN not in evaluate(page, everything)
    assert not any(TOKEN in f"{asked.file}{asked.range}" for asked in hub.asked)
    page.reload()
    expect(field).to_have_value("")

    # Remembered on request, for this hub alone: a link to another one must not get it.
    field.fill(TOKEN)
    page.get_by_label("Remember it in this browser").check()
    assert TOKEN in evaluate(page, everything)
    page.reload()
    expect(field).to_have_value(TOKEN)
    sheet.open(f"{site_url}?backend=numpy&hub=http://127.0.0.1:9")
    expect(field).to_have_value("")
    sheet.open(address(site_url, hub))
    expect(field).to_have_value(TOKEN)
    page.get_by_label("Remember it in this browser").uncheck()
    assert TOKEN not in evaluate(page, everything)


def test_mirrors(site_url: str, page: Page, hub: Hub, console: Console) -> None:
    console.allow("ERR_UNSAFE_PORT|ERR_CONNECTION_REFUSED")
    Sheet(page).open(f"{site_url}?backend=numpy").ready()
    page.get_by_text("Engine", exact=True).click()
    mirrors = page.get_by_label("Hub and mirrors")
    mirrors.fill(f"http://127.0.0.1:9, {hub.url}")
    mirrors.blur()
    load_custom(page, "me/tiny")
    loaded(page, "me/tiny")
    assert hub.requests(BIG)
    page.reload()
    expect(mirrors).to_have_value(f"http://127.0.0.1:9, {hub.url}")


def test_a_folder_that_is_chosen(desk: Page, hub: Hub) -> None:
    page = desk
    sheet = Sheet(page)
    sheet.model.select_option("folder")
    expect(page.get_by_role("button", name="Load")).to_be_hidden()
    with page.expect_file_chooser() as choosing:
        page.get_by_role("button", name="Choose a folder").click()
    choosing.value.set_files(hub.folder / "me" / "tiny")
    loaded(page, "tiny")
    expect(page.locator("#model-facts")).to_contain_text("289,664 parameters")
    expect(page.locator("#folder-name")).to_have_text("tiny")
    assert sheet.run()
    expect(page.locator("#tab-name")).to_have_text("tiny")
    assert hub.asked == []


DROP = """(files) => {
    const data = new DataTransfer();
    for (const [name, base64] of files)
        data.items.add(new File([Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0))], name));
    for (const type of ["dragover", "drop"]) {
        const event = new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true });
        if (document.getElementById("text").dispatchEvent(event)) throw new Error(`${type} was not taken`);
        if (type === "dragover" && document.getElementById("landing").hidden) throw new Error("nothing shows it");
    }
}"""


def dropped(folder: Path) -> list[list[str]]:
    return [[path.name, base64.b64encode(path.read_bytes()).decode()] for path in sorted(folder.iterdir())]


def test_a_folder_that_is_dropped(desk: Page, hub: Hub) -> None:
    page = desk
    devtools = page.context.new_cdp_session(page)
    data = {"items": [], "files": [str(hub.folder / "me")], "dragOperationsMask": 1}
    for type_ in ("dragEnter", "dragOver"):
        devtools.send("Input.dispatchDragEvent", {"type": type_, "x": 300, "y": 300, "data": data})
    expect(page.get_by_text("Drop the folder to load its model")).to_be_visible()
    devtools.send("Input.dispatchDragEvent", {"type": "drop", "x": 300, "y": 300, "data": data})
    loaded(page, "tiny")
    expect(page.locator("#landing")).to_be_hidden()
    assert hub.asked == []


def test_files_that_are_dropped(desk: Page, hub: Hub, tmp_path: Path) -> None:
    page = desk
    sheet = Sheet(page)
    evaluate(page, DROP, dropped(hub.folder / "me" / "tiny"))
    loaded(page, "Files")
    expect(page.locator("#landing")).to_be_hidden()
    assert sheet.run()
    assert hub.asked == []

    (tmp_path / "notes.txt").write_text("no model")
    evaluate(page, DROP, dropped(tmp_path))
    expect(sheet.problem).to_contain_text("no config.json among the files", timeout=SLOW_MS)
    sheet.problem.get_by_role("button", name="Use the story model").click()
    loaded(page, "Story 14M")


def test_the_new_parts_fit_the_screen(desk: Page, hub: Hub) -> None:
    page, sheet = desk, Sheet(desk)
    load_custom(page, "me/tiny")
    loaded(page, "me/tiny")
    for width, height in ((390, 844), (320, 568), (1280, 800)):
        page.set_viewport_size({"width": width, "height": height})
        storage = open_storage(page)
        storage.get_by_role("button", name="Delete me/tiny").click()
        expect(storage.get_by_role("button", name="Yes, delete me/tiny")).to_be_in_viewport(ratio=1)
        expect(storage.get_by_role("button", name="Delete all")).to_be_in_viewport(ratio=1)
        page.keyboard.press("Escape")
        for choice in ("custom", "folder"):
            sheet.model.select_option(choice)
            assert evaluate(page, "() => document.documentElement.scrollWidth") <= width


def test_a_promise_to_keep_is_told(site_url: str, desk: Page, hub: Hub) -> None:
    page = desk
    devtools = page.context.new_cdp_session(page)
    profile = devtools.send("Target.getTargetInfo")["targetInfo"]["browserContextId"]
    permission = {"origin": site_url.rstrip("/"), "permissions": ["durableStorage"], "browserContextId": profile}
    devtools.send("Browser.grantPermissions", permission)
    assert evaluate(page, "() => navigator.storage.persist()") is True
    expect(open_storage(page)).to_contain_text("The browser keeps this until you delete it.")
