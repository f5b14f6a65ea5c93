"""Playwright's evaluate() waits for a promise without end; this one does not."""

from typing import Any

from playwright.sync_api import Page

_RACE = """async ([source, argument, milliseconds]) => {
    const late = new Promise((_, reject) =>
        setTimeout(() => reject(new Error(`no answer within ${milliseconds / 1000} s: ${source}`)), milliseconds));
    return await Promise.race([(0, eval)(`(${source})`)(argument), late]);
}"""


def evaluate(page: Page, function: str, argument: object = None, *, timeout_s: float = 60) -> Any:
    """Call a JavaScript function (`"async (argument) => ..."`) in the page and return its result."""
    return page.evaluate(_RACE, [function, argument, timeout_s * 1000])
