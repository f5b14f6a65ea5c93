"""The page over plain http from another machine, where a browser hides WebGPU, storage and more."""

import pytest

from app.server.asgi import make_app
from app.server.site import Site
from tests.browser.conftest import Launch
from tests.browser.waiting import evaluate
from tests.serving import serving

pytestmark = pytest.mark.browser


def test_plain_http_is_blamed_and_not_the_gpu(site: Site, launch: Launch) -> None:
    # A name that is not the machine's own, as that of another one on the network.
    browser = launch(flags=("--host-resolver-rules=MAP tabgpt.example 127.0.0.1",))
    page = browser.new_context(service_workers="block").new_page()
    with serving(make_app(site, allowed_hosts=["*"])) as address:
        page.goto(address.replace("127.0.0.1", "tabgpt.example"))
        assert evaluate(page, "() => isSecureContext") is False
        ready = evaluate(page, "() => lm.ready", timeout_s=120)
        assert (ready["backend"], ready["gpu"]) == ("numpy", None)
        assert "plain http" in ready["reason"]
        assert "localhost or over https" in ready["reason"]
        # All else works.
        evaluate(page, "() => lm.load({model: 'story'})", timeout_s=120)
        assert len(evaluate(page, "async () => (await lm.complete({ids: [1], max_new_tokens: 3})).ids")) == 3
        assert evaluate(page, "() => lm.storage()")["models"] == []
        page.context.close()
