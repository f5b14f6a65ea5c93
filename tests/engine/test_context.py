"""How long a model's caches are."""

import pytest

from app.engine.context import DEFAULT_BYTES, cache_context, layer_bytes
from app.engine.errors import OptionError
from app.engine.gpu.select import cache_floats
from app.engine.models.config import config_from_dict
from weights_tool.presets import PRESETS


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("gpt2", 1024),
        ("gpt2-xl", 1024),  # 629 MB: it was never less
        ("tinystories-33m", 2048),
        ("smollm2-135m", 4096),
        ("qwen2.5-0.5b", 4096),
        ("llama-3.2-1b", 4096),
        ("qwen3-0.6b", 2304),
    ],
)
def test_a_default_takes_no_gigabytes(name: str, wanted: int) -> None:
    config = config_from_dict(PRESETS[name])
    context = cache_context(config, None)
    assert context == wanted
    nbytes = 4 * cache_floats(config, context) * config.n_layer
    assert nbytes == context * layer_bytes(config) * config.n_layer
    assert nbytes <= DEFAULT_BYTES or context == 1024


def test_what_is_asked_for_is_had_or_refused() -> None:
    config = config_from_dict(PRESETS["qwen3-0.6b"])
    assert cache_context(config, 40960) == 40960
    assert cache_context(config, 1, max_binding=1 << 27) == 1
    with pytest.raises(OptionError, match="from 1 to 40960 for this model, not 40961"):
        cache_context(config, 40961)
    with pytest.raises(OptionError, match=r"takes 164 MB a layer.*at most 16384"):
        cache_context(config, 20000, max_binding=1 << 27)
    assert cache_context(config, None, max_binding=1 << 20) == 128
