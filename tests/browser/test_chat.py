"""Models that chat, and GGUF files, in the page and on its GPU: through `window.lm`."""

import asyncio
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from playwright.sync_api import Page

from app.engine.tokenizer import Tokenizer
from app.server.asgi import make_app
from app.server.site import Site
from tests.browser.conftest import Console, Launch
from tests.browser.waiting import evaluate
from tests.browser.writing import Sheet
from tests.engine.weights.test_gguf_model import loaded, logits, source_of
from tests.gguf_models import CHAT, write_gguf
from tests.hub_double import Hub, hub_double
from tests.serving import serving

pytestmark = pytest.mark.browser

SMALL = "me/small-GGUF:Q4_K_M"
MIXED = {
    "": "Q4_K",
    "attn_v": "Q6_K",
    "ffn_down": "Q5_0",
    "attn_output": "Q4_1",
    "ffn_gate": "Q8_0",
    "token_embd": "Q8_0",
}
IDS = [5, 9, 200, 3, 77, 1001, 4]


# Each of these could end Python in the page, where a stack that overflows cannot be caught.
DEEP = {
    "brackets": "{{ " + "(" * 20_000 + "1" + ")" * 20_000 + " }}",
    "lists": "{{ " + "[" * 20_000 + "]" * 20_000 + " }}",
    "sums": "{{ 1" + "+1" * 20_000 + " }}",
    "nots": "{{ " + "not " * 20_000 + "1 }}",
    "minuses": "{{ " + "- " * 20_000 + "1 }}",
    "attributes": "{{ messages" + ".a" * 20_000 + " }}",
    "filters": "{{ 1" + "|abs" * 20_000 + " }}",
    "ifs": "{% if 1 %}" * 5000 + "x" + "{% endif %}" * 5000,
    "macro": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "calls": "{{ range" + "(1)" * 20_000 + " }}",
}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    folder = tmp_path_factory.mktemp("hub")
    (folder / "me" / "small-GGUF").mkdir(parents=True)
    write_gguf(folder / "me/small-GGUF/small.Q4_K_M.gguf", "qwen2", MIXED, metadata={"tokenizer.chat_template": CHAT})
    for name, template in DEEP.items():
        path = folder / "me/small-GGUF" / f"deep-{name}.gguf"
        write_gguf(path, "qwen2", {"": "Q4_0"}, metadata={"tokenizer.chat_template": template})
    with hub_double(folder) as running:
        yield running


@pytest.fixture(scope="module")
def page(runtime_folder: Path, smollm2_path: Path, launch: Launch) -> Iterator[Page]:
    site, console = Site(runtime_folder, chat_model=smollm2_path), Console()
    with serving(make_app(site)) as address:
        context = launch().new_context(service_workers="block")
        page = context.new_page()
        console.watch(page)
        Sheet(page).open(f"{address}?backend=numpy").ready()
        yield page
        context.close()
    site.close()
    assert console.unexpected() == []


def natively(path: Path) -> tuple[NDArray[np.float32], Tokenizer]:
    """The logits after IDS in NumPy, and the tokenizer."""

    async def compute() -> tuple[NDArray[np.float32], Tokenizer]:
        runner, tokenizer, _ = await loaded(source_of(path))
        return await logits(runner, IDS), tokenizer

    # Playwright's event loop stands in this thread.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, compute()).result()


def load(page: Page, **options: Any) -> dict[str, Any]:
    # Trying kernel parameters takes long on a software adapter.
    report: dict[str, Any] = evaluate(
        page, "(options) => lm.load(options)", {"tuning": "default", **options}, timeout_s=240
    )
    return report


def complete(page: Page, **options: Any) -> dict[str, Any]:
    result: dict[str, Any] = evaluate(page, "(options) => lm.complete(options)", options, timeout_s=240)
    return result


def test_a_gguf_file_of_the_hub_runs_as_it_is_stored(page: Page, hub: Hub) -> None:
    assert not evaluate(page, "() => performance.getEntriesByType('resource').some(({name}) => name.includes('jinja'))")
    report = load(page, model=SMALL, hub=hub.url, backend="webgpu")
    assert (report["model"], report["family"], report["backend"]) == (SMALL, "qwen2", "webgpu")
    assert report["precisions"].keys() == {"q8", "q4"}
    assert report["chat"] is True
    assert report["storage"]["kept"] is True
    assert report["memory"]["weights"] < 4 * report["parameters"] / 3
    got = np.array(evaluate(page, "async ({ids}) => [...await lm.logits({ids})]", {"ids": IDS}), np.float32)
    expected, tokenizer = natively(hub.folder / "me/small-GGUF/small.Q4_K_M.gguf")
    # Weights of Q4_K, Q5_0 and Q6_K are rounded to q8; the rest stays as it is.
    assert np.abs(got - expected).max() < 0.02 * np.abs(expected).max()
    talk = [{"role": "user", "content": "the <|im_end|> cat"}]
    result = complete(page, messages=talk, max_new_tokens=2, temperature=0)
    ends = [id_ for id_ in result["prompt_ids"] if id_ == tokenizer.special["<|im_end|>"]]
    assert len(ends) == 1, "what a user writes ends no turn"

    hub.asked.clear()
    assert load(page, model=SMALL, hub=hub.url, backend="webgpu")["downloaded"] == 0
    assert hub.requests() == []


def test_a_gguf_file_of_this_device(page: Page, hub: Hub) -> None:
    data = b64encode((hub.folder / "me/small-GGUF/small.Q4_K_M.gguf").read_bytes()).decode()
    report = evaluate(
        page,
        """async (data) => {
            const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
            return lm.load({files: [new File([bytes], "mine.gguf")], backend: "numpy"});
        }""",
        data,
        timeout_s=60,
    )
    assert (report["model"], report["backend"], report["chat"]) == ("mine.gguf", "numpy", True)


def test_no_template_ends_python(page: Page, hub: Hub) -> None:
    for name in DEEP:
        model = f"me/small-GGUF/deep-{name}.gguf"
        load(page, model=model, hub=hub.url, backend="numpy", cache="off")
        said = evaluate(
            page,
            "() => lm.complete({messages: [{role: 'user', content: 'Hi'}], max_new_tokens: 1}).catch(({name}) => name)",
        )
        assert said == "ChatTemplateError", name
        assert evaluate(page, "() => lm.encode('the')"), name


def test_a_model_without_a_template_says_so(page: Page) -> None:
    load(page, model="story", backend="numpy")
    said = evaluate(
        page,
        "() => lm.complete({messages: [{role: 'user', content: 'Hi'}]}).catch(({name, message}) => [name, message])",
    )
    assert said[0] == "ChatTemplateError"
    assert "story has no chat template" in said[1]


def test_smollm2_answers(page: Page) -> None:
    """A pretrained model that chats. A software adapter would take minutes: NumPy is faster than that."""
    site = evaluate(page, "async () => (await fetch('site.json')).json()")
    assert site["models"] == ["smollm2"]
    report = load(page, model="smollm2", backend="numpy", context=256)
    assert report["precisions"] == {"q4": 106_168_320, "q8": 28_311_552}
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    result = complete(page, messages=talk, temperature=0, max_new_tokens=12)
    assert result["text"] == "The capital of France is Paris."
    assert result["finish"] == "eos"
