"""What axe-core finds wrong with a page."""

import fcntl
import functools
import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.browser.waiting import evaluate

FOLDER = Path(__file__).parents[1] / "js"


@functools.cache
def axe() -> str:
    """Return axe-core's source, installing it as `.ci/check` does if nobody has."""
    script = FOLDER / "node_modules" / "axe-core" / "axe.min.js"
    # Two processes of the suite may come here at once.
    with (FOLDER / "package.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not script.exists():
            if shutil.which("npm") is None:
                pytest.fail("npm is needed for axe-core, which looks for barriers on the page: install Node.js.")
            subprocess.run(
                ["npm", "ci", "--no-audit", "--no-fund", "--loglevel=error"], cwd=FOLDER, check=True, timeout=120
            )
    return script.read_text()


def violations(page: Page) -> list[str]:
    """Return what axe finds, one line each: the rule, and the elements that break it."""
    page.evaluate(axe())
    found = evaluate(
        page,
        """async () => (await axe.run(document, { resultTypes: ["violations"] })).violations
            .map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map(({ target }) => target).join(", ")}`)""",
    )
    assert isinstance(found, list)
    return found
