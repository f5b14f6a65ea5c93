"""The lab from the outside: calls functions of `lab/*.py` inside the page's Pyodide."""

from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Page
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

LAB = Path(__file__).parent / "lab"
FIXTURES = Path(__file__).parents[1] / "fixtures"


def with_lab(app: ASGIApp) -> ASGIApp:
    """The site with the lab beside it, under /lab/."""
    return Starlette(
        routes=[
            Mount("/lab", StaticFiles(directory=LAB)),
            Mount("/fixtures", StaticFiles(directory=FIXTURES)),
            Mount("/", app),
        ]
    )


class Lab:
    """A page in which the engine is installed."""

    def __init__(self, page: Page) -> None:
        self._page = page

    def call(self, module: str, function: str, **arguments: Any) -> Any:
        """Call a function of lab/MODULE.py; arguments and result are JSON."""
        return self._page.evaluate(
            "([module, name, args]) => window.call(module, name, args)", [module, function, arguments]
        )

    def run_kernel(
        self,
        name: str,
        *pieces: str,
        constants: dict[str, Any],
        bindings: dict[str, NDArray[Any]],
        step: tuple[int, int] | None = None,
        uniforms: dict[str, list[int]] | None = None,
        grid: tuple[int, int],
        outputs: tuple[str, ...] = ("out",),
    ) -> list[NDArray[Any]]:
        """Run a kernel once; returns the contents of `outputs` after it, in the dtypes that they were given in."""
        result = self.call(
            "kernels",
            "run",
            name=name,
            pieces=list(pieces),
            constants=constants,
            bindings={
                key: b64encode(np.ascontiguousarray(value).tobytes()).decode() for key, value in bindings.items()
            },
            uniforms={**({"step": [*step, 0, 0, 0, 0, 0, 0]} if step else {}), **(uniforms or {})},
            grid=list(grid),
            outputs=list(outputs),
        )
        arrays = []
        for output in outputs:
            given = bindings[output]
            flat = np.frombuffer(b64decode(result[output]), given.dtype)
            arrays.append(flat[: given.size].reshape(given.shape))
        return arrays
