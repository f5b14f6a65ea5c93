"""`window.lm`, as tests, tools and other pages use it. One page for all: each test leaves the story model loaded."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.conftest import Console, Launch, OpenPage
from tests.browser.waiting import evaluate
from tests.browser.writing import Sheet
from tests.hub_double import Hub, hub_double
from tests.models import STORY, write_tiny

pytestmark = pytest.mark.browser

REFERENCE = json.loads((STORY / "reference.json").read_text())["prompts"]
EOS = 8191
CONTEXT = 512


@pytest.fixture(scope="module")
def story(site_url: str, launch: Launch) -> Iterator[Page]:
    """A page with the story model on NumPy, which is faster than a GPU in software."""
    console = Console()
    context = launch().new_context(service_workers="block")
    page = context.new_page()
    console.watch(page)
    Sheet(page).open(f"{site_url}?backend=numpy").ready()
    yield page
    context.close()
    assert console.unexpected() == []


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    write_tiny(folder / "me" / "tiny")
    with hub_double(folder) as running:
        yield running


def complete(page: Page, **options: object) -> dict[str, Any]:
    result: dict[str, Any] = evaluate(page, "(options) => lm.complete(options)", options, timeout_s=120)
    return result


def failure(page: Page, call: str, argument: object = None) -> dict[str, Any]:
    """Return {name, message, is_error} of what a call rejects with."""
    result: dict[str, Any] = evaluate(
        page,
        f"""async (argument) => {{
            try {{
                await (async () => {{ {call} }})();
            }} catch (error) {{
                return {{name: error.name, message: error.message, is_error: error instanceof Error}};
            }}
            return {{name: null}};
        }}""",
        argument,
    )
    return result


def test_ready_tells_what_there_is(story: Page) -> None:
    ready = evaluate(story, "() => lm.ready")
    assert ready["pyodide"].startswith("314.")
    assert ready["python"].startswith("3.14")
    assert ready["backend"] == "webgpu"
    assert ready["gpu"]["vendor"]
    assert ready["gpu"]["limits"]["maxBufferSize"] > 0
    assert ready["reason"] is None


def test_load_reports_the_model(story: Page) -> None:
    report = evaluate(story, "() => lm.load({model: 'story', backend: 'numpy'})", timeout_s=60)
    assert report["model"] == "story"
    assert report["revision"] is None
    assert report["family"] == "gpt2"
    assert report["parameters"] == 13_989_888
    assert (report["precision"], report["backend"]) == ("f32", "numpy")
    assert (report["context"], report["vocab"]) == (CONTEXT, EOS + 1)
    assert report["downloaded"] > 27_000_000
    assert report["seconds"] > 0
    assert report["memory"]["weights"] == 4 * 13_989_888


@pytest.mark.parametrize("prompt", REFERENCE, ids=lambda prompt: str(prompt["text"]))
def test_greedy_continuations_are_the_reference_s(story: Page, prompt: dict[str, Any]) -> None:
    result = complete(story, prompt=prompt["text"], temperature=0, max_new_tokens=24)
    assert result["prompt_ids"] == prompt["ids"]
    assert result["ids"] == prompt["greedy_ids"]
    assert result["text"] == prompt["greedy_text"]
    assert result["finish"] == "length"
    assert not result["truncated"]


def test_logits_are_the_reference_s(story: Page) -> None:
    prompt = REFERENCE[0]
    got = evaluate(
        story,
        """async ({ids, top}) => {
            const logits = await lm.logits({ids});
            return {is: logits instanceof Float32Array, length: logits.length, top: top.map((id) => logits[id])};
        }""",
        {"ids": prompt["ids"], "top": prompt["top20_ids"]},
    )
    assert got["is"]
    assert got["length"] == EOS + 1
    assert got["top"] == pytest.approx(prompt["top20_logits"], abs=2e-3)


def test_a_seed_writes_the_same_again(story: Page) -> None:
    options = {"prompt": "Once", "max_new_tokens": 10, "temperature": 1, "top_k": 40}
    first = complete(story, **options, seed=5)
    assert complete(story, **options, seed=5)["ids"] == first["ids"]
    assert complete(story, **options, seed=6)["ids"] != first["ids"]
    drawn = complete(story, **options)
    assert complete(story, **options, seed=drawn["seed"])["ids"] == drawn["ids"]


def test_stream_gives_every_token_and_then_the_result(story: Page) -> None:
    items = evaluate(
        story,
        """async () => {
            const items = [];
            for await (const item of lm.stream({prompt: "Lily found a", max_new_tokens: 8, seed: 3, logprobs: 2}))
                items.push(item);
            return items;
        }""",
    )
    *tokens, result = items
    assert [token["id"] for token in tokens] == result["ids"]
    assert "".join(token["text"] for token in tokens) == result["text"]
    assert [token["logprob"] for token in tokens] == pytest.approx(result["logprobs"])
    assert all(len(token["top"]) == 2 for token in tokens)
    assert set(tokens[0]["top"][0]) == {"id", "text", "logprob"}
    assert all(token["logprob"] <= 0 and math.isfinite(token["logprob"]) for token in tokens)
    assert result["finish"] == "length"
    same = complete(story, prompt="Lily found a", max_new_tokens=8, seed=3)
    assert same["ids"] == result["ids"]
    assert (same["logprobs"], same["top"]) == (None, None)


def test_leaving_a_stream_stops_it(story: Page) -> None:
    got = evaluate(
        story,
        """async () => {
            let tokens = 0;
            for await (const item of lm.stream({prompt: "Once", max_new_tokens: 500})) {
                if (++tokens === 3) break;
            }
            const next = await lm.complete({prompt: "Once", max_new_tokens: 2});
            return [tokens, next.finish];
        }""",
    )
    assert got == [3, "length"]


def test_a_stream_that_fails_rejects(story: Page) -> None:
    error = failure(story, "for await (const _ of lm.stream({top_p: 2})) ;")
    assert error["name"] == "OptionError"


def test_stop_ends_within_a_token_and_the_next_works_at_once(story: Page) -> None:
    got = evaluate(
        story,
        """async () => {
            let seen = 0, atStop = 0;
            const off = lm.on("token", () => {
                if (++seen === 4) { atStop = seen; lm.stop(); }
            });
            const result = await lm.complete({prompt: "Once", max_new_tokens: 500});
            off();
            const next = await lm.complete({prompt: "Once", max_new_tokens: 2});
            return {finish: result.finish, count: result.ids.length, text: result.text, seen, next: next.finish};
        }""",
    )
    assert got["finish"] == "cancelled"
    # One may be under way when the page's call arrives.
    assert 4 <= got["count"] <= 6
    assert got["text"]
    assert got["next"] == "length"


def test_stop_settles_once_nothing_runs(story: Page) -> None:
    got = evaluate(
        story,
        """async () => {
            const first = lm.complete({prompt: "Once", max_new_tokens: 500});
            await lm.stop();
            const second = await lm.complete({prompt: "Once", max_new_tokens: 1});
            return [(await first).finish, second.finish];
        }""",
    )
    assert got == ["cancelled", "length"]


def test_a_second_generation_is_refused_and_the_first_goes_on(story: Page) -> None:
    got = evaluate(
        story,
        """async () => {
            const first = lm.complete({prompt: "Once upon a time", max_new_tokens: 12, temperature: 0});
            const refused = await lm.complete({prompt: "b"}).catch((error) => error.name + ": " + error.message);
            const logits = await lm.logits({ids: [1]}).catch((error) => error.name);
            const ids = await lm.encode("What needs no cache works");
            return {refused, logits, ids, first: (await first).ids};
        }""",
    )
    assert got["refused"].startswith("BusyError: The engine is generating")
    assert got["logits"] == "BusyError"
    assert got["ids"]
    assert got["first"] == REFERENCE[0]["greedy_ids"][:12]


def test_stop_strings(story: Page) -> None:
    whole = complete(story, prompt="Once upon a time", temperature=0, max_new_tokens=24)["text"]
    for stop in (".", ["young boy", "zzz"], " named Mar"):
        result = complete(story, prompt="Once upon a time", temperature=0, max_new_tokens=24, stop=stop)
        first = stop if isinstance(stop, str) else stop[0]
        assert result["finish"] == "stop"
        assert result["text"] == whole.split(first)[0]


def test_the_end_of_text_is_not_shown(story: Page) -> None:
    result = complete(story, prompt="Once upon a time", temperature=0, max_new_tokens=400)
    assert result["finish"] == "eos"
    assert EOS not in result["ids"]
    assert "<|endoftext|>" not in result["text"]
    assert result["text"] == evaluate(story, "(ids) => lm.decode(ids)", result["ids"])


def test_text_and_ids(story: Page) -> None:
    text = "Party 🎉 at 東京,\tit's <|endoftext|>  fun\n"
    ids = evaluate(story, "(text) => lm.encode(text)", text)
    assert EOS not in ids
    assert evaluate(story, "(ids) => lm.decode(ids)", ids) == text
    assert evaluate(story, "(ids) => lm.decode(new Uint32Array(ids))", ids) == text
    tokens = evaluate(story, "() => lm.tokens('it was a dark night')")
    assert [token["id"] for token in tokens] == evaluate(story, "() => lm.encode('it was a dark night')")
    assert "".join(token["text"] for token in tokens) == "it was a dark night"
    assert evaluate(story, "() => lm.encode('')") == []


def test_streaming_never_shows_half_a_character(story: Page) -> None:
    """A model that says little else: with a prompt of parties, bytes of emoji are what comes; none is shown alone."""
    items = evaluate(
        story,
        """async () => {
            const items = [];
            for await (const item of lm.stream({prompt: "🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉🎉", temperature: 0, max_new_tokens: 24}))
                items.push(item);
            return items;
        }""",
    )
    *tokens, result = items
    assert "".join(token["text"] for token in tokens) == result["text"]
    decoded = evaluate(story, "(ids) => lm.decode(ids)", result["ids"])
    assert decoded.startswith(result["text"])
    assert set(decoded.removeprefix(result["text"])) <= {"\N{REPLACEMENT CHARACTER}"}


def test_an_over_long_prompt_keeps_its_last_tokens(story: Page) -> None:
    ids = [number % 8000 for number in range(CONTEXT + 100)]
    result = complete(story, ids=ids, max_new_tokens=1)
    assert result["truncated"]
    assert result["prompt_ids"] == ids[-(CONTEXT - 1) :]
    assert len(result["ids"]) == 1


def test_reaching_the_context_ends_it(story: Page) -> None:
    ids = evaluate(story, "() => lm.encode('and so on '.repeat(400))")[: CONTEXT - 4]
    result = complete(story, ids=ids, max_new_tokens=50, temperature=0)
    assert not result["truncated"]
    assert (result["finish"], len(result["ids"])) == ("context", 4)


def test_an_empty_prompt_starts_from_the_end_of_text(story: Page) -> None:
    empty: list[dict[str, Any]] = [{"prompt": ""}, {"ids": []}, {}]
    for options in empty:
        assert complete(story, **options, max_new_tokens=1)["prompt_ids"] == [EOS]


def test_null_and_undefined_count_as_not_given(story: Page) -> None:
    result = evaluate(
        story, "() => lm.complete({prompt: 'a', seed: null, top_k: undefined, stop: null, max_new_tokens: 1})"
    )
    assert result["finish"] == "length"


@pytest.mark.parametrize(
    ("call", "name", "says"),
    [
        ("await lm.complete({max_tokens: 1})", "OptionError", "Unknown option 'max_tokens'"),
        ("await lm.complete({temperature: -1})", "OptionError", "temperature must be a number from 0"),
        ("await lm.complete({temperature: NaN})", "OptionError", "temperature"),
        ("await lm.complete({prompt: 5})", "OptionError", "prompt must be a string"),
        ("await lm.complete({prompt: 'a', ids: [1]})", "OptionError", "not several"),
        ("await lm.complete({ids: [8192]})", "OptionError", "from 0 to 8191"),
        ("await lm.complete({prompt: () => 'a'})", "OptionError", "must be plain data"),
        ("await lm.complete('text')", "OptionError", "must be an object"),
        ("await lm.load(null)", "OptionError", "must be an object"),
        ("await lm.load({model: 'story', precision: 'f8'})", "OptionError", "precision must be one of"),
        ("await lm.load({modell: 'story'})", "OptionError", "Unknown option 'modell'"),
        ("await lm.logits({ids: []})", "OptionError", "1 to 512"),
        ("await lm.encode(5)", "OptionError", "text must be a string"),
        ("await lm.decode([9999])", "OptionError", "ids"),
        ("await lm.decode()", "OptionError", "ids"),
    ],
)
def test_errors_have_a_name_and_say_what_is_wrong(story: Page, call: str, name: str, says: str) -> None:
    error = failure(story, call)
    assert error["is_error"]
    assert error["name"] == name
    assert says in error["message"]


def test_events(story: Page) -> None:
    got = evaluate(
        story,
        """async () => {
            const seen = [], errors = [];
            const offs = [
                lm.on("status", ({state, text}) => seen.push(state + ": " + text)),
                lm.on("token", ({text}) => seen.push(text)),
                lm.on("error", ({name}) => errors.push(name)),
            ];
            await lm.complete({prompt: "Once upon a time", temperature: 0, max_new_tokens: 2});
            await lm.complete({top_p: 2}).catch(() => {});
            offs.forEach((off) => off());
            const before = seen.length;
            await lm.complete({prompt: "x", max_new_tokens: 1});
            return {seen, errors, quiet: seen.length === before};
        }""",
    )
    assert got["seen"][:5] == [
        "generating: Reading 4 tokens of text",
        "generating: Generating",
        ",",
        " there",
        "ready: Ready",
    ]
    assert got["errors"] == ["OptionError"]
    assert got["quiet"]


def test_a_listener_that_throws_harms_nobody(story: Page) -> None:
    got = evaluate(
        story,
        """async () => {
            const thrown = [];
            addEventListener("error", (event) => { thrown.push(event.message); event.preventDefault(); }, {once: true});
            const off = lm.on("token", () => { off(); throw new Error("mine"); });
            let others = 0;
            const also = lm.on("token", () => others++);
            const result = await lm.complete({prompt: "a", max_new_tokens: 2, temperature: 0});
            also();
            return {thrown: thrown.length, others, finish: result.finish};
        }""",
    )
    assert got == {"thrown": 1, "others": 2, "finish": "length"}


def test_timings(story: Page) -> None:
    timings = complete(story, prompt="Once upon a time", max_new_tokens=6, temperature=0)["timings"]
    assert (timings["prompt_tokens"], timings["new_tokens"]) == (4, 6)
    assert 0 < timings["prefill_ms"] <= timings["first_token_ms"]
    assert timings["tokens_per_second"] == pytest.approx(5000 / timings["decode_ms"], rel=1e-6)


def test_loading_another_model_and_coming_back(story: Page, hub: Hub) -> None:
    """The page follows a model that someone else loads, and a load that fails leaves none."""
    tiny = {"model": "me/tiny", "hub": hub.url, "backend": "numpy"}
    report = evaluate(story, "(options) => lm.load(options)", tiny)
    assert (report["model"], report["revision"], report["context"]) == ("me/tiny", "main", 64)
    assert story.locator("#tab-name").text_content() == "me/tiny"
    missing = failure(story, "await lm.load(argument)", tiny | {"model": "me/nothing"})
    assert missing["name"] == "NotFoundError"
    assert failure(story, "await lm.complete({})")["name"] == "NotLoadedError"
    report = evaluate(story, "() => lm.load({backend: 'numpy'})")
    assert report["model"] == "story"
    assert complete(story, prompt="Once upon a time", temperature=0, max_new_tokens=1)["ids"] == [11]


def test_unload(story: Page) -> None:
    evaluate(story, "() => lm.unload()")
    for call in ("await lm.complete({})", "await lm.encode('a')", "await lm.logits({ids: [1]})"):
        error = failure(story, call)
        assert error["name"] == "NotLoadedError"
        assert "Load one" in error["message"]
    evaluate(story, "() => lm.unload()")
    evaluate(story, "() => lm.load({backend: 'numpy'})")


def test_a_load_can_be_cancelled(story: Page, hub: Hub) -> None:
    hub.fail("model.safetensors", "slow")
    error = failure(
        story,
        """const loading = lm.load(argument);
           await new Promise((resolve) => { const off = lm.on("progress", () => { off(); resolve(); }); });
           await lm.stop();
           await loading;""",
        {"model": "me/tiny", "hub": hub.url, "backend": "numpy", "cache": "off"},
    )
    hub.heal()
    assert error["name"] == "CancelledError"
    evaluate(story, "() => lm.load({backend: 'numpy'})")


def test_pending_calls_reject_if_the_engine_dies(site_url: str, open_page: OpenPage, console: Console) -> None:
    console.allow("worker|boom")
    page = open_page()
    page.route(
        "**/worker.js",
        lambda route: route.fulfill(
            body="setTimeout(() => { throw new Error('boom') }, 300);", content_type="text/javascript"
        ),
    )
    Sheet(page).open(site_url)
    error = failure(page, "await lm.complete({})")
    assert error["name"] == "WorkerError"
    assert "boom" in error["message"]
    assert failure(page, "await lm.ready")["name"] == "WorkerError"
    assert failure(page, "await lm.encode('later')")["name"] == "WorkerError"


def test_webgpu_writes_what_the_reference_says(site_url: str, open_page: OpenPage) -> None:
    page = open_page()
    Sheet(page).open(f"{site_url}?precision=f32").ready()
    prompt = REFERENCE[0]
    got = evaluate(
        page,
        """async ({ids, text}) => {
            const logits = await lm.logits({ids});
            const done = await lm.complete({prompt: text, temperature: 0, max_new_tokens: 12});
            return {ids: done.ids, logits: [...logits]};
        }""",
        prompt,
        timeout_s=240,
    )
    assert got["ids"] == prompt["greedy_ids"][:12]
    assert [got["logits"][token] for token in prompt["top20_ids"]] == pytest.approx(prompt["top20_logits"], abs=2e-3)
