"""Configs from strangers: whatever they say, they are read or refused by name, and nothing is allocated for it."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.errors import ModelFileError, UnsupportedModelError
from app.engine.models import weight_specs
from app.engine.models.config import Config, config_from_dict

PARITY = Path(__file__).parents[2] / "fixtures" / "parity"
VALID = [json.loads(path.read_text()) for path in sorted(PARITY.glob("*/config.json"))]
ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(
        [0, -1, 1, 3, 2**31, 2**63, 10**30, 1e308, float("nan"), float("inf"), "", "x" * 1000, [], {}, [[]]]
    ),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(
        st.sampled_from(["rope_type", "type", "factor", "rope_theta"]), st.integers() | st.text(), max_size=3
    ),
)


@given(st.data())
@settings(max_examples=1000, deadline=None)
def test_mutated_configs_are_read_or_refused_by_name(data: st.DataObject) -> None:
    raw = dict(data.draw(st.sampled_from(VALID)))
    for name in data.draw(st.lists(st.sampled_from(sorted(raw)), min_size=1, max_size=4)):
        raw[name] = data.draw(ODD)
    with suppress(ModelFileError, UnsupportedModelError):
        check(config_from_dict(raw))


def check(config: Config) -> None:
    for spec in weight_specs(config):
        assert all(1 <= size <= 2**32 for size in spec.shape), spec
