"""The page as its user meets it: what is on the sheet, and waiting for what it says."""

from playwright.sync_api import Page, expect

from tests.browser.waiting import evaluate

SLOW_MS = 120_000
"""A software adapter compiles for many seconds."""


class Sheet:
    """The page's controls, by what they are called."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.text = page.get_by_label("Text", exact=True).and_(page.get_by_role("textbox"))
        self.continuation = page.locator("#ink > .model").last
        """What the model wrote last; the text itself holds it as well."""
        self.generate = page.locator("#generate")
        """Generate, Continue, or Write here."""
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
        expect(self.page.locator("#ink > .live")).not_to_be_empty(timeout=SLOW_MS)
        return self

    def written(self) -> str:
        """Wait for the end of a generation and return its text."""
        self.ready()
        return self.continuation.text_content() or ""

    def run(self, button: str = "generate") -> str:
        """Press Generate, wait for the end however soon it comes, and return what the model wrote."""
        evaluate(
            self.page,
            """(id) => new Promise((done) => {
                const generating = () => document.body.dataset.engine === "generating";
                let runs = false;
                const look = new MutationObserver(() => {
                    if (runs && !generating()) done(look.disconnect());
                    runs ||= generating();
                });
                look.observe(document.body, { attributeFilter: ["data-engine"] });
                document.getElementById(id).click();
            })""",
            button,
            timeout_s=SLOW_MS / 1000,
        )
        return self.written()
