"""Reads the values of a `config.json`, each checked before it is believed."""

from collections.abc import Mapping
from typing import Any

from app.engine.errors import ModelFileError, UnsupportedModelError

ACTIVATIONS = ("gelu_new", "gelu", "relu", "silu")
"""As transformers names them; `gelu_new` is the tanh approximation, `gelu` the exact one."""

_ACTIVATION_ALIASES = {"gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new", "swish": "silu"}


class Fields:
    """The contents of a `config.json`, or of an object in it. Null counts as absent, as it does for transformers."""

    def __init__(self, raw: Mapping[str, Any], place: str = "config.json") -> None:
        """`place` is where `raw` is, for messages."""
        self._raw = raw
        self._place = place

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value as it is, unchecked."""
        value = self._raw.get(name)
        return default if value is None else value

    def whole(self, name: str, default: int | None, most: int, least: int = 1) -> int:
        """Return a whole number; ModelFileError if it is none, or outside of the bounds."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ModelFileError(
                f"{self._place}: {name} must be a whole number from {least} to {most}, not {str(value)[:40]!r}."
            )
        return value

    def number(self, name: str, default: float | None, low: float, high: float) -> float:
        """Return a number between `low` and `high`, both excluded; else ModelFileError."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low < value < high:
            raise ModelFileError(
                f"{self._place}: {name} must lie between {low:g} and {high:g}, not {str(value)[:40]!r}."
            )
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Return a switch."""
        return bool(self.get(name, default))

    def activation(self, name: str, default: str) -> str:
        """Return one of ACTIVATIONS; UnsupportedModelError for another."""
        value = self.get(name, default)
        kind = _ACTIVATION_ALIASES.get(value, value) if isinstance(value, str) else value
        if kind not in ACTIVATIONS:
            raise UnsupportedModelError(
                f"This model's {name} is {str(value)[:60]!r}; tabgpt has {', '.join(ACTIVATIONS)}."
            )
        return str(kind)

    def token(self, name: str, default: int | None, n_vocab: int) -> int | None:
        """Return a token's id, the first of several; None if it is no id of the vocabulary."""
        value = self.get(name, default)
        value = value[0] if isinstance(value, list) and value else value
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < n_vocab else None

    def refuse(self, *names: str) -> None:
        """UnsupportedModelError for the first of `names` that is there and not false."""
        for name in names:
            if self.get(name, False) is not False:
                raise UnsupportedModelError(f"This model asks for {name}, which tabgpt does not support.")
