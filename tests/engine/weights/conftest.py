from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from app.engine.weights.hub import Source, open_source
from tests.engine.weights.http_transport import HttpTransport
from tests.hub_double import Hub, hub_double


@pytest.fixture(scope="package")
def running_hub() -> Iterator[Hub]:
    with hub_double(Path()) as running:
        yield running


@pytest.fixture
def hub(running_hub: Hub, tmp_path: Path) -> Hub:
    """The hub's double, serving what a test puts into its folder."""
    running_hub.reset(tmp_path)
    return running_hub


@pytest.fixture
async def transport() -> AsyncIterator[HttpTransport]:
    made = HttpTransport()
    yield made
    await made.client.aclose()


class Naps:
    """Stands in for asyncio.sleep: takes no time, remembers how long it should have."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def naps() -> Naps:
    return Naps()


@pytest.fixture
def source(hub: Hub, transport: HttpTransport, naps: Naps) -> Callable[..., Source]:
    """Open a model on the double."""

    def open_it(model: str = "some/model") -> Source:
        return open_source(model, hub=hub.url, transport=transport, sleep=naps, chance=lambda: 1.0)

    return open_it
