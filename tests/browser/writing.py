"""The page as its user meets it: what is on the sheet, and waiting for what it says."""

from playwright.sync_api import Page, expect

from tests.browser.waiting import evaluate

SLOW_MS = 120_000
"""A software adapter compiles for many seconds."""


class Sheet:
    """The page's controls, by what they are called."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.prompt = page.get_by_label("Prompt", exact=True)
        self.continuation = page.get_by_label("Continuation")
        self.generate = page.get_by_role("button", name="Generate")
        self.stop = page.get_by_role("button", name="Stop")
        self.status = page.get_by_role("status")
        self.problem = page.get_by_role("alert")
        self.model = page.get_by_role("combobox", name="Model")

    def open(self, url: str) -> "Sheet":
        self.page.goto(url)
        return self

    def ready(self) -> "Sheet":
        """Wait until a model is loaded and nothing runs."""
        expect(self.page.locator("body")).to_have_attribute("data-engine", "ready", timeout=SLOW_MS)
        return self

    def writing(self) -> "Sheet":
        """Wait until text streams."""
        expect(self.continuation).not_to_be_empty(timeout=SLOW_MS)
        return self

    def written(self) -> str:
        """Wait for the end of a generation and return its text."""
        self.ready()
        return self.continuation.text_content() or ""

    def run(self) -> str:
        """Press Generate, wait for the end however soon it comes, and return the text."""
        evaluate(
            self.page,
            """() => new Promise((done) => {
                let runs = false;
                const off = lm.on("status", ({ state }) => {
                    if (runs && state !== "generating") done(off());
                    runs = state === "generating";
                });
                document.getElementById("generate").click();
            })""",
            timeout_s=SLOW_MS / 1000,
        )
        return self.written()
