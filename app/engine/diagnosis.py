"""Where a model's numbers first went bad, once its logits have."""

import numpy as np

from app.engine.errors import EngineError, NonFiniteLogitsError
from app.engine.inspection import InspectableRunner, Inspector
from app.engine.runner import Runner


async def diagnosed(error: NonFiniteLogitsError, runner: Runner) -> NonFiniteLogitsError:
    """Return `error` with the place at which the text in the cache of `runner` first turned NaN or infinite.

    Reads that text again. Without a way to look into the runner, or if this fails too, the error stays as it is.
    """
    if not isinstance(runner, InspectableRunner):
        return error
    inspector = runner.inspector()
    try:
        place = await _first_bad(runner, inspector)
    except EngineError:
        return error
    finally:
        inspector.free()
    return NonFiniteLogitsError(f"{error} {place}")


async def _first_bad(runner: Runner, inspector: Inspector) -> str:
    ids, layers = list(runner.tokens), 0
    runner.rewind(0)
    for start in range(0, len(ids), inspector.chunk):
        await inspector.feed(ids[start : start + inspector.chunk])
        stream = await inspector.stream()  # [n_layer + 1, n, n_embd]
        layers = len(stream) - 1
        bad = ~np.isfinite(stream).all(axis=(1, 2))
        if bad.any():
            runner.rewind(0)
            first = int(bad.argmax())
            where = "already in the embeddings" if first == 0 else f"in layer {first} of {layers}"
            position = start + int((~np.isfinite(stream[first]).all(axis=1)).argmax())
            return f"The numbers first went bad {where}, at token {position + 1} of the text."
    return f"They are finite after all {layers} layers: they went bad in the final norm or the output matrix."
