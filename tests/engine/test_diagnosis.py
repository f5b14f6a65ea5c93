import numpy as np
import pytest

from app.engine.diagnosis import diagnosed
from app.engine.errors import NonFiniteLogitsError
from app.engine.inspection import InspectableRunner
from app.engine.models import weight_specs
from app.engine.models.config import config_from_dict
from app.engine.ops.eager import EagerRunner, NumpySink
from app.engine.weights.transport import BytesBlob
from tests.models import TINY


async def runner_with(bad: str | None, *, row: int | None = None) -> EagerRunner:
    """A random model with NaN all over the tensor `bad`, or in one row of it."""
    config = config_from_dict(TINY)
    sink, random = NumpySink(config), np.random.default_rng(0)
    for spec in weight_specs(config):
        values = random.normal(0, 0.1, spec.shape).astype(np.float32)
        if spec.name == bad:
            values[slice(None) if row is None else row] = np.nan
        rows = 1 if spec.kind == "vector" else spec.shape[0]
        await sink.write(spec, "F32", 0, rows, BytesBlob.of(values.tobytes()))
    return EagerRunner(config, sink.params)


@pytest.mark.parametrize(
    ("bad", "row", "says"),
    [
        ("h.1.mlp.c_fc.weight", None, "in layer 2 of 2, at token 1"),
        ("h.0.attn.c_attn.bias", None, "in layer 1 of 2, at token 1"),
        ("wpe.weight", 2, "already in the embeddings, at token 3"),
        ("ln_f.weight", None, "after all 2 layers"),
    ],
)
async def test_the_place_is_found(bad: str, row: int | None, says: str) -> None:
    runner = await runner_with(bad, row=row)
    assert isinstance(runner, InspectableRunner)
    await runner.feed([1, 2, 3, 4])
    assert not np.isfinite(await runner.logits()).all()
    found = await diagnosed(NonFiniteLogitsError("The model computed NaN logits."), runner)
    assert str(found).startswith("The model computed NaN logits. ")
    assert says in str(found)
    # What is left in the cache is nothing to go on from.
    assert runner.length in (0, 4)
