"""Another browser: the page works in Firefox, at least on NumPy."""

import json
from pathlib import Path

import pytest

from tests.browser.bidi import find_firefox, firefox
from tests.models import STORY

pytestmark = pytest.mark.browser

REFERENCE = json.loads((STORY / "reference.json").read_text())["prompts"][0]


# A second browser, which not everyone who runs the tests has; .ci/run installs it.
@pytest.mark.skipif(find_firefox() is None, reason="no Firefox here; get one with `apt-get install firefox-esr`")
def test_the_story_is_written_in_firefox(site_url: str, tmp_path: Path) -> None:
    executable = find_firefox()
    assert executable is not None
    with firefox(executable, tmp_path) as tab:
        tab.open(site_url)
        ready = tab.evaluate("() => lm.ready", timeout_s=120)
        assert ready["python"].startswith("3.14")
        loaded = tab.evaluate("() => lm.load({model: 'story', backend: 'numpy'})", timeout_s=120)
        assert loaded["backend"] == "numpy"
        options = {"prompt": REFERENCE["text"], "temperature": 0, "max_new_tokens": 12}
        written = tab.evaluate("(options) => lm.complete(options)", options, timeout_s=120)
        assert written["ids"] == REFERENCE["greedy_ids"][:12]
        # The page itself shows its model and is ready to write.
        title = tab.evaluate("() => document.title")
        assert "tabgpt" in title
