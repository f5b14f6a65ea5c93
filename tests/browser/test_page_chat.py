"""Talking with a model that has a chat template: stories of one page, one after the other."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.accessibility import violations
from tests.browser.conftest import Launch, shared_page
from tests.browser.waiting import evaluate
from tests.browser.writing import SLOW_MS, Sheet
from tests.hub_double import hub_double
from tests.models import write_family, write_tiny

pytestmark = pytest.mark.browser

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_talker(folder: Path) -> None:
    """Write a tiny Llama with random weights, two special tokens more, and a chat template."""
    write_family(folder, "llama", vocab_size=8194, max_position_embeddings=256)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for id_, text in ((8192, "<|im_start|>"), (8193, "<|im_end|>")):
        added = {**tokenizer["added_tokens"][0], "id": id_, "content": text, "special": True}
        tokenizer["added_tokens"].append(added)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    for name in ("vocab.json", "merges.txt"):
        (folder / name).unlink()
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}))


@pytest.fixture(scope="module")
def desk(site_url: str, launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """One page with the talker loaded from a hub."""
    folder = tmp_path_factory.mktemp("hub")
    write_talker(folder / "me" / "talker")
    write_tiny(folder / "me" / "tiny")
    with hub_double(folder) as hub, shared_page(launch(webgpu=False)) as (page, _):
        query = f"?backend=numpy&hub={hub.url}&model=me/talker&max_new_tokens=5&seed=1"
        Sheet(page).open(f"{site_url}{query}").ready()
        evaluate(
            page,
            """() => {
                globalThis.told = [];
                document.addEventListener("document-changed", ({ detail }) => told.push(detail));
                const complete = lm.complete.bind(lm);
                globalThis.asked = [];
                lm.complete = (options) => {
                    asked.push(options);
                    return complete(options);
                };
            }""",
        )
        yield page


def turns(page: Page) -> Locator:
    return page.get_by_role("log", name="Conversation").get_by_role("article")


def contents(page: Page) -> list[str]:
    return [turn.locator(".turn-text").text_content() or "" for turn in turns(page).all()]


def test_a_conversation(desk: Page) -> None:
    page = desk
    expect(page.get_by_role("button", name="Chat", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(Sheet(page).text).to_be_hidden()
    expect(page.get_by_role("button", name="Focused")).to_have_attribute("aria-pressed", "true")
    assert violations(page) == []

    page.get_by_text("System prompt", exact=True).click()
    page.get_by_label("System prompt", exact=True).and_(page.get_by_role("textbox")).fill("Be short.")
    message = page.get_by_label("Message", exact=True)
    message.fill("Hello <b>you</b>")
    message.press("Enter")
    expect(turns(page)).to_have_count(2)
    Sheet(page).ready()
    expect(turns(page).nth(1).get_by_role("button", name="Regenerate")).to_be_enabled()
    asked, answer = contents(page)
    assert asked == "Hello <b>you</b>"
    assert answer
    (first,) = evaluate(page, "() => asked.splice(0)")
    assert first["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Hello <b>you</b>"},
    ]
    assert (first["max_new_tokens"], first["seed"], first["temperature"]) == (5, 1, 0.2)
    # What looks inside is told of the conversation as the model read it.
    told = evaluate(page, "() => told.pop()")
    assert told["text"] == answer
    read = evaluate(page, "(ids) => lm.decode(ids)", told["ids"][: told["prompt_length"]])
    assert "user\nHello <b>you</b>" in read
    assert read.endswith("assistant\n")

    # The next turn comes with all before it.
    message.fill("And\nthen?")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(turns(page)).to_have_count(4)
    Sheet(page).ready()
    (second,) = evaluate(page, "() => asked.splice(0)")
    assert [one["content"] for one in second["messages"]] == ["Be short.", asked, answer, "And\nthen?"]
    assert violations(page) == []


def test_a_turn_is_edited_and_answered_anew(desk: Page) -> None:
    page = desk
    turns(page).nth(0).get_by_role("button", name="Edit").click()
    field = page.get_by_label("Your message")
    expect(field).to_be_focused()
    field.press("Escape")
    expect(field).to_be_hidden()
    turns(page).nth(0).get_by_role("button", name="Edit").click()
    assert violations(page) == []
    field.fill("Good")
    field.press("Shift+Enter")
    field.press_sequentially("evening")
    field.press("Enter")
    expect(turns(page)).to_have_count(2)
    Sheet(page).ready()
    (asked,) = evaluate(page, "() => asked.splice(0)")
    assert [one["content"] for one in asked["messages"]] == ["Be short.", "Good\nevening"]
    first = contents(page)[1]
    page.get_by_role("button", name="Wild").click()
    turns(page).nth(1).get_by_role("button", name="Regenerate").click()
    Sheet(page).ready()
    expect(turns(page)).to_have_count(2)
    second = contents(page)[1]
    assert second != first
    (asked,) = evaluate(page, "() => asked.splice(0)")
    assert asked["seed"] == 2


def test_versions_are_kept(desk: Page) -> None:
    page = desk
    edited, answers = contents(page)[0], turns(page).nth(1).get_by_role("group", name="Versions")
    expect(answers).to_contain_text("2/2")
    expect(answers.get_by_role("button", name="Next version")).to_be_disabled()
    second = contents(page)[1]
    page.keyboard.press("Alt+Comma")
    expect(answers).to_contain_text("1/2")
    assert contents(page)[1] != second
    answers.get_by_role("button", name="Next version").click()
    expect(answers.get_by_role("button", name="Previous version")).to_be_focused()
    assert contents(page)[1] == second

    # The first question comes back with all that followed it.
    questions = turns(page).nth(0).get_by_role("group", name="Versions")
    questions.get_by_role("button", name="Previous version").click()
    expect(turns(page)).to_have_count(4)
    assert contents(page)[0] == "Hello <b>you</b>"
    assert violations(page) == []
    # What looks inside follows.
    page.wait_for_timeout(300)
    told = evaluate(page, "() => told.pop()")
    assert "user\nHello <b>you</b>" in evaluate(page, "(ids) => lm.decode(ids)", told["ids"])
    questions.get_by_role("button", name="Next version").click()
    assert contents(page) == [edited, second]


def test_an_open_edit_is_not_lost(desk: Page) -> None:
    page = desk
    before = contents(page)
    turns(page).nth(0).get_by_role("button", name="Edit").click()
    page.keyboard.type(" and more")
    page.keyboard.press("Alt+Comma")
    page.keyboard.press("Control+Shift+Enter")
    expect(page.get_by_label("Your message")).to_have_value(f"{before[0]} and more")
    expect(turns(page).nth(1).get_by_role("button", name="Regenerate")).to_be_disabled()
    page.get_by_role("button", name="Cancel", exact=True).click()
    assert contents(page) == before


def test_an_answer_that_fails_leaves_the_one_before(desk: Page) -> None:
    page = desk
    before = contents(page)
    evaluate(page, "() => { lm.kept = lm.complete; lm.complete = async () => { throw new Error('no answer'); }; }")
    turns(page).nth(1).get_by_role("button", name="Regenerate").click()
    expect(page.get_by_role("alert")).to_contain_text("no answer")
    assert contents(page) == before
    # A question without an answer can be answered.
    page.get_by_label("Message", exact=True).fill("Well?")
    page.keyboard.press("Enter")
    expect(turns(page).last.get_by_role("button", name="Answer")).to_be_enabled()
    evaluate(page, "() => { lm.complete = lm.kept; }")
    turns(page).last.get_by_role("button", name="Answer").click()
    expect(turns(page)).to_have_count(4)
    Sheet(page).ready()
    assert contents(page)[3]


def test_an_answer_is_stopped_and_what_is_there_stays(desk: Page) -> None:
    page = desk
    page.get_by_label("Max new tokens", exact=True).fill("200")
    page.get_by_label("Message", exact=True).fill("Tell me everything")
    page.keyboard.press("Enter")
    expect(turns(page).last.locator(".live")).not_to_be_empty(timeout=SLOW_MS)
    page.get_by_role("button", name="Stop", exact=True).click()
    Sheet(page).ready()
    expect(Sheet(page).status).to_contain_text("Stopped after")
    assert contents(page)[5]


def test_it_is_remembered_and_other_models_have_no_chat(desk: Page) -> None:
    page = desk
    before = contents(page)
    page.get_by_role("button", name="Text", exact=True).click()
    expect(Sheet(page).text).to_be_visible()
    page.reload()
    Sheet(page).ready()
    expect(Sheet(page).text).to_be_visible()
    page.get_by_role("button", name="Chat", exact=True).click()
    assert contents(page) == before
    expect(page.get_by_label("System prompt", exact=True).and_(page.locator("textarea"))).to_have_value("Be short.")
    page.set_viewport_size({"width": 390, "height": 844})
    assert violations(page) == []
    assert evaluate(page, "() => document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="New", exact=False).click()
    expect(turns(page)).to_have_count(0)
    page.get_by_role("button", name="Bring the last conversation back").click()
    assert contents(page) == before
    page.get_by_role("button", name="New", exact=False).click()
    expect(turns(page)).to_have_count(0)

    page.get_by_label("Repository or address").fill("me/tiny")
    page.get_by_role("button", name="Load").click()
    expect(page.locator("#tab-name")).to_have_text("me/tiny", timeout=SLOW_MS)
    expect(page.locator("#views")).to_be_hidden()
    expect(page.get_by_role("button", name="Wild")).to_have_attribute("aria-pressed", "true")
    expect(Sheet(page).text).to_be_visible()
