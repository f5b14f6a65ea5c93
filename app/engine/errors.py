"""Every error that can reach a user.

The page shows `type(error).__name__` and the message, so a message says what happened, why, and what to do.
"""


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose."""


class OptionError(EngineError, ValueError):
    """An option has a wrong type or value; the message names it and gives its range."""


class BusyError(EngineError):
    """The engine is already generating or loading, and does one thing at a time."""


class NotLoadedError(EngineError):
    """A call needs a model and none is loaded."""


class CancelledError(EngineError):
    """A load was stopped by the user."""


class UnsupportedModelError(EngineError):
    """The model asks for something the engine does not have; the message names it."""


class ModelFileError(EngineError):
    """A model's file is damaged, incomplete or contradicts its config."""


class SafetensorsError(ModelFileError):
    """A safetensors file breaks its format."""


class GgufError(ModelFileError):
    """A GGUF file breaks its format."""


class ChatTemplateError(ModelFileError):
    """The model's chat template cannot be used."""


class TokenizerError(ModelFileError):
    """The tokenizer's files cannot be used."""


class HubError(EngineError):
    """The model's files could not be fetched."""


class NotFoundError(HubError):
    """404: no such repository, revision or file."""


class GatedError(HubError):
    """401 or 403: the repository is private or gated."""


class RateLimitedError(HubError):
    """429, also after waiting as long as the server asked."""


class ServerError(HubError):
    """5xx, also after several tries."""


class NetworkError(HubError):
    """No answer at all: offline, refused, or forbidden by CORS."""


class OfflineError(NetworkError):
    """The browser says that it has no network."""


class RangeError(HubError):
    """The server ignored the range, or sent another one than was asked for."""


class ChangedError(RangeError):
    """A file was replaced by another while it was being read."""


class ChecksumError(HubError):
    """A complete file does not have the SHA-256 that the hub gives for it."""


class TruncatedError(HubError):
    """A body was shorter or longer than announced."""


class WrongContentError(HubError):
    """Something else than the file: an HTML page, a Git LFS pointer, text where JSON was expected."""


class GpuUnavailableError(EngineError):
    """WebGPU cannot be used here; the message tells which part is missing."""


class GpuError(EngineError):
    """The GPU refused or failed: validation, out of memory, compilation."""


class DeviceLostError(GpuError):
    """The GPU device was lost; a new one is needed."""


class NonFiniteLogitsError(EngineError):
    """The model produced NaN or infinite logits, so no token can be chosen."""
