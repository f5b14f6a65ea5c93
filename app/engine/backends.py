"""What a model can compute on: NumPy anywhere, WebGPU where the browser has it."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol

from app.engine.context import cache_context
from app.engine.errors import GpuUnavailableError, UnsupportedModelError
from app.engine.models import weight_specs
from app.engine.models.config import Config
from app.engine.ops.eager import EagerRunner, NumpySink
from app.engine.runner import Runner
from app.engine.weights.precision import Mixed
from app.engine.weights.spec import Sink

if TYPE_CHECKING:
    from app.engine.gpu.device import Device

IN_BROWSER: bool = sys.platform == "emscripten"

Fill = Callable[[Sink], Awaitable[None]]
"""Streams a checkpoint's tensors into a sink."""

NUMPY_MAX_BYTES = 2_500_000_000
"""Of weights: wasm memory ends at 4 GB, and they are in it once, beside the cache and Python."""
SMALL = 30_000_000
"""Parameters up to which f32 weights stay f32 on the GPU: there is little to gain from halving them."""


class Backend(Protocol):
    """Makes runners."""

    name: str
    tuned: dict[str, Any] | None
    """Kernel parameters and where they come from (`gpu.tune.report`); None without kernels."""
    context: int | None
    """The option of that name for the next `make`: positions of the caches; None: see `context.cache_context`."""
    prefill_chunk: int | None
    """Tokens of a prompt to read between two looks at whether to stop; None: all at once."""
    peak: int | None
    """Most bytes that the last `make` had allocated on the GPU at once; None without one."""

    def precision(self, asked: str, dtypes: set[str], parameters: int, scheme: str | None = None, /) -> str:
        """Return the precision to keep weights in, for what was asked ("auto" or one of them) and the checkpoint's.

        That is always its `scheme` if it is stored in q8 or q4.
        """

    async def make(
        self, config: Config, precision: str, fill: Fill, compiling: Callable[[], None], kept: Mixed | None = None, /
    ) -> Runner:
        """Take the weights that `fill` streams, and return a runner. If it fails, nothing stays allocated.

        `kept` are those that stay in another precision than the others, in which they are stored.
        """


class NumpyBackend:
    """The operations in NumPy, in f32."""

    name = "numpy"
    tuned: dict[str, Any] | None = None
    context: int | None = None
    # A chunk of the story model is half a second in wasm.
    prefill_chunk: int | None = 16
    peak: int | None = None

    def precision(self, asked: str, _dtypes: set[str], parameters: int, scheme: str | None = None) -> str:
        """See `Backend.precision`: else always f32, as which it computes with q8 and q4 too.

        Raises UnsupportedModelError.
        """
        if scheme is None and asked not in ("auto", "f32"):
            raise UnsupportedModelError(
                f"precision {asked} needs WebGPU; NumPy computes in f32. Choose precision auto."
            )
        if IN_BROWSER and 4 * parameters > NUMPY_MAX_BYTES:
            raise UnsupportedModelError(
                f"This model needs {4 * parameters / 1e9:.1f} GB on the CPU, more than a page's Python can hold. "
                "Choose a smaller one, or a browser with WebGPU."
            )
        return scheme or "f32"

    async def make(
        self,
        config: Config,
        _precision: str,
        fill: Fill,
        _compiling: Callable[[], None],
        _kept: Mixed | None = None,
    ) -> Runner:
        """See `Backend.make`."""
        context = cache_context(config, self.context)
        sink = NumpySink(config)
        await fill(sink)
        return EagerRunner(config, sink.params, context=context)


class WebGpuBackend:
    """Kernels on a GPU device."""

    name = "webgpu"

    def __init__(self, device: "Device", limits: str) -> None:
        """Compute on `device`, which was opened with `limits`."""
        self.device = device
        self.limits = limits
        # A chunk ends in a wait of a few milliseconds; a software adapter takes a fifth of a second for a token.
        self.prefill_chunk: int | None = 8 if device.info()["architecture"] == "swiftshader" else 256
        self.tuning = "auto"
        """The option of that name for the next `make`."""
        self.context: int | None = None
        self.tuned: dict[str, Any] | None = None
        """What came of it."""
        self.peak: int | None = None

    def precision(self, asked: str, dtypes: set[str], parameters: int, scheme: str | None = None) -> str:
        """See `Backend.precision`.

        "auto" is f16, which halves the memory and the time a token takes, except for a small model whose checkpoint
        is f32: there it costs accuracy and gains nothing that one would notice.
        """
        if scheme is not None:
            return scheme
        if asked != "auto":
            return asked
        return "f32" if parameters <= SMALL and "F32" in dtypes else "f16"

    async def make(
        self,
        config: Config,
        precision: str,
        fill: Fill,
        compiling: Callable[[], None],
        kept: Mixed | None = None,
    ) -> Runner:
        """See `Backend.make`. Raises GpuError if the GPU has not the memory."""
        from app.engine.gpu.runner import GpuRunner
        from app.engine.gpu.tune import parse_tuning, report
        from app.engine.gpu.weights import GpuSink
        from app.engine.weights.plan import PIECE_BYTES

        base = self.device.tuning()
        tuning = base if self.tuning in ("auto", "default") else parse_tuning(self.tuning, base)
        self.tuned = report("default" if tuning == base else "given", tuning, {})
        context = cache_context(config, self.context, max_binding=self.device.max_binding)
        self.device.buffers.forget_peak()
        sink = GpuSink(self.device, weight_specs(config), precision=precision, kept=kept, max_piece=PIECE_BYTES)
        making: asyncio.Task[GpuRunner] | None = None
        try:
            await sink.prepare()
            # The buffers are there, only empty: kernels compile and are bound while the weights arrive.
            making = asyncio.ensure_future(
                GpuRunner.create(self.device, config, sink.weights, tuning=tuning, context=context)
            )
            await fill(sink)
            await sink.finish()
            if not making.done():
                compiling()
            runner = await making
            if self.tuning == "auto":
                self.tuned = await runner.tune(precision)
            self.peak = self.device.buffers.peak
            return runner
        except BaseException:
            if making is not None:
                made = (await asyncio.gather(making, return_exceptions=True))[0]
                if isinstance(made, GpuRunner):
                    made.free()
            sink.abort()
            raise

    def close(self) -> None:
        """Give the device back to the browser."""
        self.device.destroy()


async def open_webgpu(limits: str) -> WebGpuBackend:
    """Open the GPU within the `limits` of the adapter or of WebGPU's defaults. Raises GpuUnavailableError."""
    if not IN_BROWSER:
        raise GpuUnavailableError("WebGPU is only there in a browser; this Python runs outside of one.")
    from app.engine.gpu.device import open_device

    return WebGpuBackend(await open_device(limits=limits), limits)
