"""Writing with the page: stories of one page, one after the other, in a real browser with the story model."""

import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Locator, Page, ViewportSize, expect

from app.engine.sampling import Rules, candidates
from tests.browser.accessibility import violations
from tests.browser.conftest import Launch, shared_page
from tests.browser.waiting import evaluate
from tests.browser.writing import SLOW_MS, Sheet

pytestmark = pytest.mark.browser

DESKTOP: ViewportSize = {"width": 1280, "height": 800}
PHONE: ViewportSize = {"width": 390, "height": 844}
SETTINGS = "?backend=numpy&max_new_tokens=8&seed=7"
LONG_TASKS = """globalThis.longTasks = [];
new PerformanceObserver((list) => longTasks.push(...list.getEntries().map(({ duration }) => duration)))
    .observe({ type: "longtask", buffered: true });"""
COMPLETIONS = "() => completions.splice(0)"


@pytest.fixture(scope="module")
def desk(site_url: str, launch: Launch) -> Iterator[Page]:
    """One page with the story model on the CPU, which notes what the engine is asked and answers."""
    permissions = ["clipboard-read", "clipboard-write"]
    with shared_page(launch(webgpu=False), viewport=DESKTOP, permissions=permissions) as (page, _):
        page.add_init_script(LONG_TASKS)
        sheet = Sheet(page).open(f"{site_url}{SETTINGS}").ready()
        spy(page)
        sheet.run()  # the first one is slow
        yield page
        longest = evaluate(page, "() => Math.max(0, ...longTasks)")
    # On an idle machine none is longer than the 50 ms from which browsers call a task long; a busy one stretches all,
    # so this is only told (pytest -s).
    print(f"\nThe page's longest task took {longest:.0f} ms")


@pytest.fixture
def sheet(desk: Page) -> Sheet:
    """The page with an empty sheet, plain view and the settings of the address."""
    desk.keyboard.press("Escape")
    desk.set_viewport_size(DESKTOP)
    sheet = Sheet(desk)
    if desk.locator("#tokens").get_attribute("aria-pressed") == "true":
        desk.locator("#tokens").click()
    desk.get_by_role("button", name="Reset").click()
    for label, value in (("Max new tokens", "8"), ("Seed", "7")):
        desk.get_by_label(label, exact=True).fill(value)
    sheet.text.fill("")
    evaluate(desk, COMPLETIONS)
    return sheet


def spy(page: Page) -> None:
    """Keep what `lm.complete` is asked and answers."""
    evaluate(
        page,
        """() => {
            const complete = lm.complete.bind(lm);
            globalThis.completions = [];
            lm.complete = async (options) => {
                const result = await complete(options);
                completions.push({ options, result });
                return result;
            };
        }""",
    )


def completions(page: Page) -> list[dict[str, Any]]:
    found = evaluate(page, COMPLETIONS)
    assert isinstance(found, list)
    return found


def caret(page: Page) -> int:
    return int(evaluate(page, "() => document.getElementById('text').selectionEnd"))


def put_caret(page: Page, at: int) -> None:
    evaluate(
        page,
        "(at) => { const area = document.getElementById('text'); area.focus(); area.setSelectionRange(at, at) }",
        at,
    )
    page.wait_for_timeout(30)


def chips(page: Page) -> Locator:
    return page.locator(".chip")


def test_the_text_goes_on_where_the_caret_is(sheet: Sheet) -> None:
    page = sheet.page
    sheet.text.fill("Lily had a red ball.\n\nThe end.")
    put_caret(page, len("Lily had a red ball."))
    expect(sheet.generate).to_contain_text("Write here")
    middle = sheet.run()
    expect(sheet.text).to_have_value(f"Lily had a red ball.{middle}\n\nThe end.")
    assert caret(page) == len(f"Lily had a red ball.{middle}")
    (only,) = completions(page)
    assert only["options"]["ids"] == evaluate(page, "() => lm.encode('Lily had a red ball.')")

    # On from there: what the engine has read is not read again.
    more = sheet.run()
    expect(sheet.text).to_have_value(f"Lily had a red ball.{middle}{more}\n\nThe end.")
    (second,) = completions(page)
    assert second["options"]["ids"] == only["options"]["ids"] + only["result"]["ids"]
    assert second["result"]["timings"]["reused"] >= len(second["options"]["ids"]) - 1


def test_undo_and_redo_know_what_the_model_wrote(sheet: Sheet) -> None:
    page = sheet.page
    page.keyboard.type("A fox")
    text = sheet.run()
    sheet.text.focus()
    page.keyboard.type(" Yes.")
    expect(sheet.text).to_have_value(f"A fox{text} Yes.")
    page.keyboard.press("Control+z")
    expect(sheet.text).to_have_value(f"A fox{text}")
    page.keyboard.press("Control+z")
    expect(sheet.text).to_have_value("A fox")
    page.get_by_role("button", name="Redo").click()
    expect(sheet.text).to_have_value(f"A fox{text}")
    assert sheet.written() == text
    sheet.text.focus()
    page.keyboard.press("Control+Shift+z")
    expect(sheet.text).to_have_value(f"A fox{text} Yes.")
    expect(page.get_by_role("button", name="Redo")).to_be_disabled()


def test_regenerating_keeps_the_others_to_flip_through(sheet: Sheet) -> None:
    page = sheet.page
    sheet.text.fill("The old man")
    texts = [sheet.run(), sheet.run("regenerate"), sheet.run("regenerate")]
    assert len(set(texts)) == 3
    seeds = [one["result"]["seed"] for one in completions(page)]
    assert seeds == [7, 8, 9]
    expect(page.locator("#take")).to_have_text("3/3")
    page.get_by_role("button", name="Next continuation").click()
    expect(sheet.text).to_have_value(f"The old man{texts[0]}")
    page.keyboard.press("Alt+Comma")
    expect(sheet.text).to_have_value(f"The old man{texts[2]}")
    # The seed below is that of the one which is shown.
    page.keyboard.press("Alt+Comma")
    page.locator("#figures").get_by_role("button", name="Seed 8", exact=True).click()
    expect(page.get_by_label("Seed", exact=True)).to_have_value("8")
    page.keyboard.press("Alt+Period")
    expect(page.locator("#figures").get_by_role("button")).to_have_text("Seed 9")
    # Words behind it leave them standing, and come along.
    put_caret(page, len(f"The old man{texts[2]}"))
    page.keyboard.type(" Good.")
    page.keyboard.press("Alt+Comma")
    expect(sheet.text).to_have_value(f"The old man{texts[1]} Good.")


def test_a_token_tells_of_itself_and_another_may_be_chosen(sheet: Sheet) -> None:
    page = sheet.page
    sheet.text.fill("Once upon a time")
    text = sheet.run()
    (first,) = completions(page)
    page.keyboard.press("Alt+t")
    expect(chips(page)).to_have_count(len(first["result"]["ids"]))
    shades = [int(chip.get_attribute("data-shade") or -1) for chip in chips(page).all()]
    by_likelihood = sorted(zip(first["result"]["logprobs"], shades, strict=True), reverse=True)
    assert [shade for _, shade in by_likelihood] == sorted(shades)

    # The pointer over a token.
    box = chips(page).nth(3).bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    card = page.get_by_role("group", name="Token", exact=True)
    expect(card).to_be_visible()
    chosen, top = first["result"]["ids"][3], first["result"]["top"][3]
    rank = [one["id"] for one in top].index(chosen) + 1
    expect(card).to_contain_text(f"rank {rank}, token {chosen}")
    expect(card).to_contain_text(f"{100 * math.exp(first['result']['logprobs'][3]):.1f} %")
    rows = card.get_by_role("button")
    expect(rows).to_have_count(10)

    # The caret at a token, and the way into its list and out of it.
    page.mouse.move(2, 2)
    expect(card).to_be_hidden()
    widths = [len(chip.text_content() or "") for chip in chips(page).all()]
    at = len("Once upon a time") + sum(widths[:5])
    put_caret(page, at + 1)
    expect(card).to_contain_text(f"token {first['result']['ids'][5]}")
    page.keyboard.press("Alt+ArrowDown")
    expect(rows.first).to_be_focused()
    other = next(place for place, one in enumerate(first["result"]["top"][5]) if one["id"] != first["result"]["ids"][5])
    for _ in range(other):
        page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    sheet.ready()
    expect(sheet.text).not_to_have_value(f"Once upon a time{text}")
    (second,) = completions(page)
    candidate = first["result"]["top"][5][other]
    assert second["options"]["ids"] == [*first["result"]["prompt_ids"], *first["result"]["ids"][:5], candidate["id"]]
    assert second["result"]["timings"]["reused"] == len(second["options"]["ids"]) - 1
    assert sheet.text.input_value().startswith(f"Once upon a time{text}"[:at] + candidate["text"])
    page.keyboard.press("Control+z")
    expect(sheet.text).to_have_value(f"Once upon a time{text}")


def test_the_rank_of_an_unlikely_token_is_found_out(sheet: Sheet) -> None:
    page = sheet.page
    for label, value in (("Temperature", "2"), ("Top-k", "0")):
        page.get_by_label(label, exact=True).fill(value)
    sheet.text.fill("Once upon a time")
    sheet.run()
    (only,) = completions(page)
    ids, prompt = only["result"]["ids"], only["result"]["prompt_ids"]
    place = next(
        at for at, top in enumerate(only["result"]["top"]) if ids[at] not in [candidate["id"] for candidate in top]
    )
    logits = evaluate(page, "async (ids) => Array.from(await lm.logits({ ids }))", prompt + ids[:place])
    rank = 1 + sum(logit > logits[ids[place]] for logit in logits)
    assert rank > 10
    page.keyboard.press("Alt+t")
    chip = chips(page).nth(place).bounding_box()
    assert chip
    page.mouse.move(chip["x"] + chip["width"] / 2, chip["y"] + chip["height"] / 2)
    card = page.get_by_role("group", name="Token", exact=True)
    expect(card).to_contain_text(f"rank {rank:,}, token {ids[place]}")


def test_any_edits_leave_the_text_and_whole_tokens(sheet: Sheet) -> None:
    """Random edits of a text of typed and written pieces, against the same edits of a string."""
    wrong = evaluate(
        sheet.page,
        """async () => {
            const { cut, difference, generated, join, splice, textOf, typed } =
                await import(new URL("document.js", document.baseURI).href);
            let seed = 1;
            const random = (below) => (seed = (seed * 48271) % 2147483647) % below;
            const texts = ["", "a", " b", "cd", "\\n", "é"];
            const token = () => ({ id: random(99), text: texts[random(6)], logprob: -1, top: [] });
            const wrong = [];
            for (let trial = 0; trial < 300; trial += 1) {
                let pieces = [];
                for (let count = random(4); count >= 0; count -= 1) {
                    const tokens = Array.from({ length: random(6) }, token);
                    pieces = join(pieces, typed(texts[random(6)]), generated(tokens, "m"));
                }
                for (let edit = 0; edit < 5; edit += 1) {
                    const text = textOf(pieces);
                    const start = random(text.length + 1);
                    const end = start + random(text.length - start + 1);
                    const put = texts[random(6)];
                    const wanted = text.slice(0, start) + put + text.slice(end);
                    const { start: from, end: to, text: middle } = difference(text, wanted, start + put.length);
                    if (text.slice(0, from) + middle + text.slice(to) !== wanted) wrong.push("difference");
                    pieces = splice(pieces, start, end, put);
                    if (textOf(pieces) !== wanted) wrong.push(`splice ${text} ${start} ${end} ${put}`);
                    const at = random(wanted.length + 1);
                    const [left, right] = cut(pieces, at);
                    if (textOf(left) !== wanted.slice(0, at) || textOf(join(left, right)) !== wanted) wrong.push("cut");
                    for (const { text, tokens } of [...left, ...right]) {
                        if (!text) wrong.push("empty piece");
                        if (tokens && tokens.map((token) => token.text).join("") !== text) wrong.push("tokens");
                        if (tokens && !tokens.at(-1).text) wrong.push("half a character at the end");
                    }
                }
            }
            return wrong;
        }""",
    )
    assert wrong == []


def test_a_word_finished_by_hand_is_read_as_one(sheet: Sheet) -> None:
    page = sheet.page
    sheet.text.fill("Once upon a time")
    sheet.run()
    put_caret(page, len(sheet.text.input_value()))
    page.keyboard.type("s and then")
    completions(page)
    sheet.run()
    text = sheet.text.input_value()
    (only,) = completions(page)
    assert evaluate(page, "(ids) => lm.decode(ids)", only["options"]["ids"]) == text[: -len(only["result"]["text"])]


def test_what_a_stop_text_cuts_is_not_read_on(sheet: Sheet) -> None:
    page = sheet.page
    page.get_by_text("More rules").click()
    page.get_by_label("Max new tokens", exact=True).fill("40")
    page.get_by_label("Stop at").fill("was a\n\\n\\n")
    sheet.text.fill("Once upon a time")
    written = sheet.run()
    assert "was a" not in written
    (first,) = completions(page)
    assert first["options"]["stop"] == ["was a", "\n\n"]
    assert first["result"]["finish"] == "stop"
    page.get_by_label("Stop at").fill("")
    sheet.run()
    (second,) = completions(page)
    ids = second["options"]["ids"]
    assert evaluate(page, "(ids) => lm.decode(ids)", ids) == f"Once upon a time{first['result']['text']}"
    page.get_by_text("More rules").click()


def test_several_are_written_side_by_side_and_one_is_kept(sheet: Sheet) -> None:
    page = sheet.page
    page.get_by_text("More rules").click()
    page.get_by_label("Continuations", exact=True).fill("3")
    sheet.text.fill("The little bird")
    sheet.run()
    side_by_side = page.get_by_role("region", name="Continuations side by side")
    expect(side_by_side.get_by_role("article")).to_have_count(3)
    expect(sheet.text).to_be_hidden()
    done = completions(page)
    assert [one["result"]["seed"] for one in done] == [7, 8, 9]
    total = sum(len(one["result"]["ids"]) for one in done)
    expect(sheet.status).to_contain_text(f"{total} tokens in all 3")
    # One reading of the text serves all.
    assert [one["result"]["timings"]["reused"] for one in done[1:]] == [len(done[0]["options"]["ids"]) - 1] * 2
    expect(side_by_side.get_by_role("button", name="Keep continuation 1")).to_be_focused()
    side_by_side.get_by_role("button", name="Keep continuation 2").click()
    expect(side_by_side).to_be_hidden()
    expect(sheet.text).to_have_value(f"The little bird{done[1]['result']['text']}")
    page.keyboard.press("Alt+c")
    expect(side_by_side).to_be_visible()
    page.keyboard.press("Escape")
    expect(side_by_side).to_be_hidden()
    page.get_by_text("More rules").click()


def test_the_next_token_is_shown_as_the_rules_cut_it(sheet: Sheet) -> None:
    page = sheet.page
    sheet.text.fill("The girl saw a")
    page.get_by_text("Next token", exact=True).click()
    told = page.locator("#outlook-text")
    rows = page.get_by_role("list", name="Likeliest next tokens").get_by_role("listitem")
    expect(rows).to_have_count(8)
    logits = evaluate(page, "async () => Array.from(await lm.logits({ ids: await lm.encode('The girl saw a') }))")
    best = evaluate(page, "(id) => lm.decode([id])", int(np.argmax(logits)))
    expect(rows.first).to_contain_text(best.replace(" ", "·"))
    for rules in (Rules(top_k=3, temperature=1.5), Rules(top_p=0.5), Rules(min_p=0.2, temperature=2.0)):
        for label, value in (("Temperature", rules.temperature), ("Top-k", rules.top_k), ("Top-p", rules.top_p)):
            page.get_by_label(label, exact=True).fill(str(value))
        evaluate(
            page,
            """(value) => {
                const input = document.getElementById("min_p");
                input.value = value;
                input.dispatchEvent(new Event("input", { bubbles: true }));
            }""",
            str(rules.min_p),
        )
        kept = len(candidates(np.asarray(logits), rules)[0])
        expect(told).to_contain_text("One token" if kept == 1 else f"{kept} of 8,192 tokens are left")
        expect(page.locator("#outlook-plot .kept")).to_have_count(min(kept, 64))
    page.get_by_role("button", name="Greedy").click()
    expect(told).to_contain_text("One token of 8,192 is left")
    expect(page.get_by_role("button", name="Greedy")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Balanced").click()
    expect(told).to_contain_text("40 of 8,192 tokens are left")
    # Generating while it looks gets in nobody's way.
    sheet.text.fill("The girl saw the")
    assert sheet.run()
    page.get_by_text("Next token", exact=True).click()
    evaluate(
        page,
        """() => {
            const logits = lm.logits.bind(lm);
            globalThis.looks = 0;
            lm.logits = (options) => {
                looks += 1;
                return logits(options);
            };
        }""",
    )
    sheet.text.fill("Closed, it costs nothing")
    page.wait_for_timeout(900)
    assert evaluate(page, "() => looks") == 0


def test_a_link_writes_the_same_again_and_no_server_sees_it(sheet: Sheet, site_url: str) -> None:
    page = sheet.page
    page.get_by_label("Temperature", exact=True).fill("1.1")
    sheet.text.fill("A dragon & <b>friend</b> 🐉")
    sheet.run()
    page.get_by_label("Seed", exact=True).fill("")
    sheet.run()  # not what the link would get by encoding the text anew
    *_, last = completions(page)
    page.locator("summary", has_text="Share").click()
    page.get_by_role("button", name="Copy link").click()
    expect(sheet.status).to_contain_text("The link is copied")
    link = evaluate(page, "() => navigator.clipboard.readText()")
    assert link.startswith(f"{site_url}#share=")

    asked: list[str] = []
    other = page.context.browser
    assert other
    context = other.new_context(service_workers="block")
    fresh = context.new_page()
    fresh.on("request", lambda request: asked.append(request.url))
    there = Sheet(fresh).open(link.replace("#", "?backend=numpy#")).ready()
    expect(fresh.get_by_label("Temperature", exact=True)).to_have_value("1.1")
    told = fresh.get_by_role("note").filter(has_text="This text came with a link")
    expect(told).to_contain_text("Generate writes the continuation again")
    assert violations(fresh) == []
    spy(fresh)
    there.run()
    expect(told).to_be_hidden()
    (again,) = completions(fresh)
    assert again["options"]["ids"] == last["options"]["ids"]
    assert again["result"]["ids"] == last["result"]["ids"]
    assert not [url for url in asked if "share=" in url or "dragon" in url]
    assert "#" not in fresh.url
    # What the receiver had is not lost.
    for _ in range(2):
        fresh.get_by_role("button", name="Undo").click()
    expect(there.text).to_have_value("Once upon a time")
    context.close()


def test_a_link_loses_no_text(sheet: Sheet) -> None:
    page = sheet.page

    def shared() -> str:
        page.keyboard.press("Alt+l")
        expect(sheet.status).to_contain_text("The link is copied")
        return str(
            evaluate(
                page,
                """async () => {
                    const [share, doc] = await Promise.all(
                        ["share.js", "document.js"].map((name) => import(new URL(name, document.baseURI).href)),
                    );
                    const link = await navigator.clipboard.readText();
                    return doc.textOf((await share.sharedBy(new URL(link).hash)).pieces);
                }""",
            )
        )

    sheet.text.fill("Two mice")
    text = sheet.run()
    assert shared() == "Two mice"
    # Words before it: the model would go on from others.
    put_caret(page, 0)
    page.keyboard.type("My ")
    assert shared() == f"My Two mice{text}"
    page.wait_for_timeout(600)
    saved = "async () => (await import(new URL('remember.js', document.baseURI).href)).savedDocument().generation"
    assert evaluate(page, saved)["takes"][0]["stale"] is True
    # By hand within it.
    sheet.text.fill("Two mice")
    text = sheet.run()
    put_caret(page, len("Two mice") + 2)
    page.keyboard.type("zz")
    assert shared() == sheet.text.input_value() == f"Two mice{text[:2]}zz{text[2:]}"
    # In the middle of the text.
    sheet.text.fill("Two mice. The end.")
    put_caret(page, len("Two mice."))
    text = sheet.run()
    assert shared() == f"Two mice.{text} The end."
    # Words after it.
    sheet.text.fill("Two mice")
    text = sheet.run()
    put_caret(page, len(f"Two mice{text}"))
    page.keyboard.type(" My own end.")
    assert shared() == f"Two mice{text} My own end."
    link = evaluate(page, "() => navigator.clipboard.readText()")
    assert page.context.browser
    context = page.context.browser.new_context(service_workers="block")
    there = Sheet(context.new_page()).open(link.replace("#", "?backend=numpy#"))
    expect(there.text).to_have_value(f"Two mice{text} My own end.")
    context.close()


def test_the_text_is_there_after_a_crash(sheet: Sheet, site_url: str) -> None:
    page = sheet.page
    sheet.text.fill("Tom had a boat")
    texts = [sheet.run(), sheet.run("regenerate")]
    page.wait_for_timeout(600)
    other = page.context.new_page()  # as after a crash: the first never said goodbye
    there = Sheet(other).open(f"{site_url}{SETTINGS}")
    expect(there.text).to_have_value(f"Tom had a boat{texts[1]}")
    expect(other.locator("#take")).to_have_text("2/2")
    there.ready()
    other.get_by_role("button", name="Previous continuation").click()
    expect(there.text).to_have_value(f"Tom had a boat{texts[0]}")
    # Damage is not believed.
    other.evaluate("() => localStorage.setItem('tabgpt.document', '{\"pieces\": [{\"tokens\": [[-1, 5]]}]}')")
    other.add_init_script("addEventListener('pagehide', (event) => event.stopImmediatePropagation(), true)")
    other.close()


def test_two_tabs_keep_their_own_texts(sheet: Sheet, site_url: str) -> None:
    page = sheet.page
    sheet.text.fill("Written in the first tab")
    other = page.context.new_page()
    second = Sheet(other).open(f"{site_url}{SETTINGS}")
    second.text.fill("Written in the second tab")
    page.wait_for_timeout(600)
    other.reload()
    expect(second.text).to_have_value("Written in the second tab")
    sheet.text.press("End")
    page.reload()
    expect(sheet.text).to_have_value("Written in the first tab")
    other.close()
    sheet.ready()
    spy(page)


def test_export(sheet: Sheet) -> None:
    page = sheet.page
    sheet.text.fill("My dog")
    text = sheet.run()
    (done,) = completions(page)
    menu = page.locator("summary", has_text="Share")
    menu.click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as text").click()
    assert download.value.path().read_text() == f"My dog{text}"
    assert download.value.suggested_filename.startswith("My-dog")
    menu.click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save as JSON").click()
    data = json.loads(download.value.path().read_text())
    assert data["text"] == f"My dog{text}"
    typed, written = data["pieces"]
    assert typed == {"text": "My dog", "by": "user"}
    assert [token["id"] for token in written["tokens"]] == done["result"]["ids"]
    probabilities = [token["probability"] for token in written["tokens"]]
    assert probabilities == pytest.approx(np.exp(done["result"]["logprobs"]), rel=1e-6)
    assert data["model"]["model"] == "story"
    assert data["continuations"][0]["seed"] == 7
    menu.click()
    page.get_by_role("button", name="Copy text").click()
    assert evaluate(page, "() => navigator.clipboard.readText()") == f"My dog{text}"


def test_the_picker_tells_what_a_model_needs(sheet: Sheet) -> None:
    page = sheet.page
    facts = page.locator("#model-facts")
    sheet.model.select_option("Qwen/Qwen3-0.6B")
    expect(facts).to_contain_text("596M parameters, 1.19 GB to download")
    expect(facts).to_contain_text("at least 2.38 GB of memory on the CPU, where it is slow")
    page.get_by_text("Engine", exact=True).click()
    page.get_by_label("Compute on").select_option("webgpu")
    told = evaluate(
        page,
        """async () => {
            const { known, needs } = await import(new URL("models.js", document.baseURI).href);
            const xl = known("openai-community/gpt2-xl");
            return [2 ** 33, 2 ** 32, 2 ** 28].map((maxBufferSize) => needs(xl, "auto", { maxBufferSize }))
                .concat(needs(xl, "q4", { maxBufferSize: 2 ** 31 }));
        }""",
    )
    assert told == [
        "about 3.12 GB of GPU memory in f16: should fit",
        "about 3.12 GB of GPU memory in f16: may fit",
        "about 3.12 GB of GPU memory in f16: may not fit",
        "about 974 MB of GPU memory in q4: should fit",
    ]
    labels = evaluate(
        page,
        """async () => {
            const { fillPicker, markKept, offerOnSite } = await import(new URL("models.js", document.baseURI).href);
            const select = document.createElement("select");
            fillPicker(select);
            offerOnSite(select, ["smollm2"]);
            const labels = () => [...select.options].map((option) => option.textContent);
            const before = labels();
            markKept(select, (id) => /smollm2/i.test(id));
            return [before, labels()].map((all) => all.filter((label) => label.startsWith("SmolLM2 Instruct 135M")));
        }""",
    )
    assert labels == [
        ["SmolLM2 Instruct 135M, on this server, 98.4 MB", "SmolLM2 Instruct 135M, 269 MB"],
        ["SmolLM2 Instruct 135M, on this server, in storage", "SmolLM2 Instruct 135M, in storage"],
    ]
    page.get_by_label("Compute on").select_option("numpy")
    page.get_by_text("Engine", exact=True).click()
    sheet.model.select_option("story")
    sheet.ready()
    expect(facts).to_contain_text("14M parameters, f32")


def test_by_keyboard_alone(sheet: Sheet) -> None:
    """Write, stop, look at a token, share: without touching the mouse."""
    page = sheet.page
    page.locator("body").press("Tab")
    sheet.text.focus()
    page.keyboard.type("One day")
    page.get_by_label("Max new tokens", exact=True).fill("400")
    sheet.text.focus()
    page.keyboard.press("Control+Enter")
    sheet.writing()
    page.keyboard.press("Escape")
    sheet.ready()
    expect(sheet.status).to_contain_text("Stopped after")
    page.get_by_label("Max new tokens", exact=True).fill("4")
    sheet.text.focus()
    page.keyboard.press("Control+Shift+Enter")
    expect(page.locator("#take")).to_have_text("2/2", timeout=SLOW_MS)
    sheet.ready()
    # From the text on, Tab reaches all that can be done, in the order in which it is seen.
    names = []
    for _ in range(9):
        page.keyboard.press("Tab")
        names.append(
            evaluate(page, "() => document.activeElement.ariaLabel || document.activeElement.textContent.trim()")
        )
    expected = [
        "Seed",
        "Continue",
        "Regenerate",
        "Previous continuation",
        "2/2",
        "Next continuation",
        "Cop",
        "Share",
        "Storage",
    ]
    assert [name for name, wanted in zip(names, expected, strict=True) if wanted not in name] == []
    # The list of all keys, and back.
    page.locator("body").press("?")
    keys = page.get_by_role("dialog", name="Keyboard")
    expect(keys).to_contain_text("Copy a link that writes the same again")
    page.keyboard.press("Escape")
    expect(keys).to_be_hidden()
    sheet.text.focus()
    page.keyboard.type("?")
    expect(keys).to_be_hidden()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_every_view_is_free_of_barriers(sheet: Sheet, scheme: Any, size: Any) -> None:
    page = sheet.page
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    page.set_viewport_size(size)
    sheet.text.fill("The old man")
    sheet.run()
    sheet.run("regenerate")
    found = {"text": violations(page)}
    page.locator("#tokens").click()
    put_caret(page, len("The old man") + 2)
    expect(page.locator("#token-card")).to_be_visible()
    found["tokens"] = violations(page)
    page.locator("#compare-open").click()
    found["side by side"] = violations(page)
    page.keyboard.press("Escape")
    page.locator("summary", has_text="Share").click()
    for summary in ("Next token", "More rules", "Engine"):
        page.get_by_text(summary, exact=True).click()
    found["menu and settings"] = violations(page)
    for summary in ("Next token", "More rules", "Engine"):
        page.get_by_text(summary, exact=True).click()
    page.locator("#help").click()
    found["keyboard"] = violations(page)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Storage").click()
    found["storage"] = violations(page)
    page.keyboard.press("Escape")
    assert {view: wrong for view, wrong in found.items() if wrong} == {}
    assert evaluate(page, "() => document.documentElement.scrollWidth") <= size["width"]
