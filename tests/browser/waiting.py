"""Playwright's evaluate() waits for a promise without end; this one does not."""

from typing import Any

from playwright.sync_api import Page

# Spelled out rather than passed along and evaluated there: the page's content security policy forbids eval.
_RACE = """async ([argument, milliseconds]) => {
    const late = new Promise((_, reject) =>
        setTimeout(() => reject(new Error(`no answer within ${milliseconds / 1000} s`)), milliseconds));
    return await Promise.race([(%s)(argument), late]);
}"""


def evaluate(page: Page, function: str, argument: object = None, *, timeout_s: float = 60) -> Any:
    """Call a JavaScript function (`"async (argument) => ..."`) in the page and return its result."""
    return page.evaluate(_RACE % function, [argument, timeout_s * 1000])
