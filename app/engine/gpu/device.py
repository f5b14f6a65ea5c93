"""The WebGPU device: asked for, described, compiled for, written to and read from. Runs under Pyodide only."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import js
import tabgpt_gpu
from pyodide.ffi import JsException, create_proxy, to_js

from app.engine.errors import DeviceLostError, GpuError, GpuUnavailableError
from app.engine.gpu.buffers import COPY_DST, MAP_READ, Buffer, Buffers
from app.engine.gpu.kernels import Kernel
from app.engine.gpu.select import Tuning

_LIMITS = (
    "maxBufferSize",
    "maxStorageBufferBindingSize",
    "maxStorageBuffersPerShaderStage",
    "maxComputeWorkgroupStorageSize",
    "maxComputeInvocationsPerWorkgroup",
    "maxComputeWorkgroupSizeX",
    "maxComputeWorkgroupsPerDimension",
)
_REPORT_S = 0.2
"""How long to wait for the device's report of a failure that has shown already."""

_FEATURES = ("subgroups", "timestamp-query", "shader-f16")


def js_object(value: Mapping[str, Any]) -> Any:
    """A Python dict as a plain JS object (Pyodide would make it a Map)."""
    return to_js(value, dict_converter=js.Object.fromEntries)


class Device:
    """A GPUDevice with its pipelines and buffers. Errors that WebGPU reports later are raised at the next `check`."""

    def __init__(self, adapter: Any, device: Any) -> None:
        self.js = device
        self.buffers = Buffers(device, js_object)
        self._info = adapter.info
        self._pipelines: dict[Kernel, tuple[Any, Any]] = {}
        self._staging: Buffer | None = None
        self._read_lock = asyncio.Lock()
        self._error: str | None = None
        self.lost: str | None = None
        self._gone = asyncio.Event()
        self._on_error = create_proxy(self._note_error)
        device.addEventListener("uncapturederror", self._on_error)
        self._on_lost = create_proxy(self._note_lost)
        device.lost.then(self._on_lost)

    def _note_error(self, event: Any) -> None:
        self._error = self._error or str(event.error.message)

    def _note_lost(self, info: Any) -> None:
        self.lost = str(info.message) or str(info.reason)
        self._gone.set()

    def check(self) -> None:
        """Raise what WebGPU has reported since the last call: DeviceLostError or GpuError."""
        if self.lost is not None:
            raise DeviceLostError(
                f"The GPU device was lost ({self.lost}). The driver may have reset, or the GPU ran out of memory. "
                "Load the model again; if it happens again, choose a smaller model or precision."
            )
        if self._error is not None:
            message, self._error = self._error, None
            raise GpuError(f"The GPU reported an error: {message}")

    @property
    def features(self) -> frozenset[str]:
        """Those of `_FEATURES` that the device has."""
        return frozenset(name for name in _FEATURES if self.js.features.has(name))

    @property
    def limits(self) -> dict[str, int]:
        """The device's limits, as far as the engine looks at them."""
        return {name: int(getattr(self.js.limits, name)) for name in _LIMITS}

    @property
    def max_binding(self) -> int:
        """Bytes that one storage binding, and so one part of a matrix, may have."""
        limits = self.limits
        return min(limits["maxStorageBufferBindingSize"], limits["maxBufferSize"])

    def info(self) -> dict[str, Any]:
        """The adapter for people: vendor, architecture, features and limits."""
        return {
            "vendor": str(self._info.vendor),
            "architecture": str(self._info.architecture),
            "device": str(self._info.device),
            "description": str(self._info.description),
            "features": sorted(self.features),
            "limits": self.limits,
        }

    def tuning(self) -> Tuning:
        """Kernel parameters that are right for this adapter."""
        if self._info.architecture == "swiftshader":
            # A CPU runs a workgroup's threads one after the other: few threads with much work each.
            size = 4 if "subgroups" in self.features else None
            return Tuning(
                subgroup_size=size,
                lanes=4,
                most_lanes=4,
                matvec_threads=64,
                combine_threads=64,
                tile=16,
                side=4,
                attend_threads=64,
                prefill_from=32,
                sampler_threads=16,
            )
        smallest = int(getattr(self._info, "subgroupMinSize", 0) or 0)
        largest = int(getattr(self._info, "subgroupMaxSize", 0) or 0)
        if "subgroups" not in self.features or not largest or largest > Tuning.lanes:
            return Tuning()
        return Tuning(subgroup_size=largest if smallest == largest else 0)

    async def compile(self, kernels: Iterable[Kernel]) -> None:
        """Compile what is not compiled yet, in parallel. Raises GpuError with the kernel's name and line."""
        missing = [kernel for kernel in dict.fromkeys(kernels) if kernel not in self._pipelines]
        await asyncio.gather(*(self._compile(kernel) for kernel in missing))

    async def _compile(self, kernel: Kernel) -> None:
        bindings = [[binding.number, binding.type] for binding in kernel.bindings().values()]
        result = await tabgpt_gpu.compile(self.js, kernel.name, kernel.source(), to_js(bindings))
        if hasattr(result, "error"):
            # The browser reports the same once more, without the kernel's name.
            with suppress(GpuError):
                await self._reports()
            if self.lost is not None:
                self.check()
            raise GpuError(f"The kernel wgsl/{kernel.name}.wgsl did not compile on this GPU: {result.error}")
        self._pipelines[kernel] = (result.pipeline, result.layout)

    def pipeline(self, kernel: Kernel) -> Any:
        """The compiled GPUComputePipeline."""
        return self._pipelines[kernel][0]

    def bind_group(self, kernel: Kernel, slices: Mapping[str, tuple[Buffer, int, int]]) -> Any:
        """Bind buffers (with offset and size in bytes) by the names that the kernel's source declares."""
        declared = kernel.bindings()
        if declared.keys() != slices.keys():
            raise GpuError(f"{kernel.name}: needs bindings {sorted(declared)}, got {sorted(slices)}.")
        names = list(slices)
        return tabgpt_gpu.bindGroup(
            self.js,
            self._pipelines[kernel][1],
            to_js([declared[name].number for name in names]),
            to_js([slices[name][0].js for name in names]),
            to_js([slices[name][1] for name in names]),
            to_js([slices[name][2] for name in names]),
        )

    def write(self, buffer: Buffer, data: Any, offset: int = 0) -> None:
        """Queue a write: `data` is a NumPy array or bytes, or a JS typed array, a multiple of 4 bytes long."""
        js_data = data if hasattr(data, "js_id") else to_js(memoryview(data).cast("B"))
        self.js.queue.writeBuffer(buffer.js, offset, js_data)

    async def read(self, buffer: Buffer, nbytes: int, offset: int = 0) -> bytes:
        """Wait for the GPU and copy bytes back (nbytes and offset multiples of 4)."""
        async with self._read_lock:
            if self._staging is None or self._staging.nbytes < nbytes:
                if self._staging is not None:
                    self.buffers.destroy(self._staging)
                self._staging = self.buffers.create(nbytes, "staging", MAP_READ | COPY_DST)
            copy = await self.arrival(tabgpt_gpu.read(self.js, buffer.js, offset, nbytes, self._staging.js))
        data: bytes = copy.to_bytes()
        return data

    async def arrival(self, promise: Awaitable[Any]) -> Any:
        """Wait for what the GPU gives back. Raises DeviceLostError or GpuError, also if it came and is worthless."""
        try:
            result = await promise
        except JsException as error:
            await self._reports()
            raise GpuError(f"The GPU did not give a result back: {error}") from error
        self.check()
        return result

    async def _reports(self) -> None:
        """Let the device's own report of what went wrong arrive, and raise it: it may come after the failure itself."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gone.wait(), _REPORT_S)
        self.check()

    def push_memory_scope(self) -> None:
        """Begin to catch failed allocations."""
        self.js.pushErrorScope("out-of-memory")

    async def pop_memory_scope(self, doing: str) -> None:
        """End it. Raises GpuError if memory ran out, with what is allocated."""
        error = await self.arrival(self.js.popErrorScope())
        if error:
            total = sum(self.buffers.bytes_by_purpose().values())
            raise GpuError(
                f"The GPU ran out of memory while {doing} ({total / 1e6:,.0f} MB asked for). "
                "Choose a smaller model or precision, or close other tabs that use the GPU."
            )

    async def idle(self) -> None:
        """Wait until the GPU has done all that was submitted."""
        await self.js.queue.onSubmittedWorkDone()

    def destroy(self) -> None:
        """Give everything back to the browser."""
        self.js.removeEventListener("uncapturederror", self._on_error)
        self.js.destroy()
        self._pipelines.clear()


async def open_device(*, limits: str = "adapter") -> Device:
    """Ask the browser for a GPU, with all that the adapter allows or (`limits="default"`) with WebGPU's defaults.

    Raises GpuUnavailableError, whose message tells which part is missing and what to do.
    """
    if not hasattr(js.navigator, "gpu"):
        if not js.isSecureContext:
            raise GpuUnavailableError(
                "WebGPU only works on secure pages, and this page was opened over plain http from another machine. "
                "Open it as http://localhost or over https."
            )
        raise GpuUnavailableError(
            "This browser has no WebGPU. Use a current Chrome, Edge, Safari 26 or Firefox 141 or newer; on Linux, "
            "Chrome may need chrome://flags/#enable-unsafe-webgpu."
        )
    adapter = await js.navigator.gpu.requestAdapter(js_object({"powerPreference": "high-performance"}))
    if not adapter:
        raise GpuUnavailableError(
            "This browser has WebGPU but offers no GPU (requestAdapter gave null): the GPU may be blocklisted, its "
            "driver too old, or hardware acceleration switched off. See chrome://gpu."
        )
    descriptor: dict[str, Any] = {"requiredFeatures": [name for name in _FEATURES if adapter.features.has(name)]}
    if limits == "adapter":
        descriptor["requiredLimits"] = {name: getattr(adapter.limits, name) for name in _LIMITS}
    try:
        device = await adapter.requestDevice(js_object(descriptor))
    except JsException as error:
        raise GpuUnavailableError(
            f"The browser refused a GPU device: {error}. Reload the page and try again."
        ) from error
    return Device(adapter, device)
