"""How many positions a model's caches hold: all that it knows, unless that would take gigabytes."""

from app.engine.errors import OptionError
from app.engine.models.config import Config

DEFAULT_POSITIONS = 4096
"""Unless more is asked for: models that know 131,072 are common, and few texts in a page are that long."""
DEFAULT_BYTES = 512 << 20
"""Unless more is asked for, of all layers' keys and values."""
LEAST_POSITIONS = 1024
"""Unless less is asked for, whatever they take."""


def layer_bytes(config: Config) -> int:
    """Bytes that one position takes in a layer's cache: keys and values in f32, heads padded to whole vectors of 4."""
    return 4 * 2 * config.n_kv_head * (-(-config.head_dim // 4) * 4)


def cache_context(config: Config, asked: int | None, *, max_binding: int | None = None) -> int:
    """Return the positions that the caches of a model shall hold, for the option `context`.

    `max_binding`: bytes that a layer's cache may have. Raises OptionError if what is asked for is more than the model
    knows, or than that.
    """
    most = config.n_ctx if max_binding is None else min(config.n_ctx, max_binding // layer_bytes(config))
    if asked is None:
        room = DEFAULT_BYTES // (layer_bytes(config) * config.n_layer) // 64 * 64
        return min(most, DEFAULT_POSITIONS, max(LEAST_POSITIONS, room))
    if asked > config.n_ctx:
        raise OptionError(f"context must be a whole number from 1 to {config.n_ctx} for this model, not {asked}.")
    if asked > most:
        raise OptionError(
            f"A context of {asked} takes {asked * layer_bytes(config) / 1e6:,.0f} MB a layer, more than this GPU "
            f"binds. Choose at most {most}."
        )
    return asked
