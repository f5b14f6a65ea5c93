"""Python that tests run inside the page's own Pyodide, beside the engine, without the page."""
