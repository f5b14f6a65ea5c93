"""Models of every family from a hub to a text, by the engine as the page has it, in NumPy."""

from pathlib import Path

import numpy as np
import pytest

from app.engine.engine import Engine
from app.engine.errors import OptionError
from app.engine.models import FAMILIES
from tests import models
from tests.engine.weights.http_transport import HttpTransport
from tests.hub_double import hub_double
from weights_tool.__main__ import main
from weights_tool.measure import logits


def test_there_is_a_tiny_model_of_every_family() -> None:
    assert {*models.FAMILIES, "gpt2"} == FAMILIES.keys()


@pytest.mark.parametrize("family", ["qwen3", "gpt_neox"])
def test_a_quantised_folder_gives_the_same_in_q8(tmp_path: Path, family: str) -> None:
    """Codes and scales of queries, keys and values are put together as the weights are."""
    models.write_family(tmp_path / "me" / "plain", family)
    assert main(["quantize", str(tmp_path / "me" / "plain"), "--to", "q8", "--out", str(tmp_path / "me" / "q8")]) == 0
    ids = [5, 900, 8000, 77]
    plain, q8 = (logits(tmp_path / "me" / name, ids) for name in ("plain", "q8"))
    assert 0 < np.sqrt(np.square(plain - q8).mean()) < 0.02


async def test_every_family_loads_and_writes(tmp_path: Path) -> None:
    for family in models.FAMILIES:
        models.write_family(tmp_path / "me" / family, family, seed=3)
    transport = HttpTransport()
    engine = Engine(emit=lambda *_: None, transport=transport, site=None)
    with hub_double(tmp_path) as hub:
        for family in models.FAMILIES:
            report = await engine.load({"model": f"me/{family}", "hub": hub.url, "context": 48})
            assert (report["family"], report["context"], report["vocab"]) == (family, 48, 8192)
            assert report["memory"]["weights"] == 4 * report["parameters"]
            written = await engine.complete({"prompt": "Once upon a time", "max_new_tokens": 6, "temperature": 0})
            # The same text, read at once rather than token by token, has the same next token.
            ids = [*written["prompt_ids"], *written["ids"]]
            assert int(np.argmax(await engine.logits({"ids": ids[:-1]}))) == ids[-1]
            sampled = {"prompt": "The", "max_new_tokens": 40, "seed": 5}
            again = [(await engine.complete(sampled))["ids"] for _ in range(2)]
            assert again[0] == again[1]
        with pytest.raises(OptionError, match="from 1 to 64 for this model, not 65"):
            await engine.load({"model": "me/gpt_neo", "hub": hub.url, "context": 65})
    await transport.client.aclose()
