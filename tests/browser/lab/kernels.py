"""Runs one kernel over given buffers."""

from base64 import b64decode, b64encode
from typing import Any

import numpy as np
import tabgpt_gpu

from app.engine.gpu.device import Device, open_device
from app.engine.gpu.kernels import Kernel

_devices: dict[str, Device] = {}


async def device(limits: str = "default") -> Device:
    """One device for each kind of limits, kept."""
    if limits not in _devices or _devices[limits].lost is not None:
        _devices[limits] = await open_device(limits=limits)
    return _devices[limits]


async def info() -> dict[str, Any]:
    """The adapter."""
    return (await device("adapter")).info()


async def run(
    *,
    name: str,
    pieces: list[str],
    constants: dict[str, Any],
    bindings: dict[str, str],
    uniforms: dict[str, list[int]],
    grid: list[int],
    outputs: list[str],
) -> dict[str, str]:
    """Bind the base64 contents by name, dispatch once over `grid`, and return the `outputs` as base64."""
    gpu = await device()
    code = Kernel(name, tuple(pieces), tuple(constants.items()))
    await gpu.compile([code])
    buffers, slices = [], {}
    for binding, content in bindings.items():
        data = b64decode(content)
        buffer = gpu.buffers.create(len(data), "test")
        gpu.write(buffer, data)
        buffers.append(buffer)
        slices[binding] = (buffer, 0, buffer.nbytes)
    for binding, words in uniforms.items():
        buffer = gpu.buffers.create(32, "test", 0x40 | 0x08)
        gpu.write(buffer, np.array(words, np.uint32))
        buffers.append(buffer)
        slices[binding] = (buffer, 0, 32)
    plan = tabgpt_gpu.newPlan()
    tabgpt_gpu.addDispatch(plan, gpu.pipeline(code), gpu.bind_group(code, slices), grid[0], grid[1], 0, 0)
    tabgpt_gpu.submit(gpu.js, plan, 1, 0, 0)
    result = {}
    for output in outputs:
        buffer, _, nbytes = slices[output]
        result[output] = b64encode(await gpu.read(buffer, nbytes)).decode()
    for buffer in buffers:
        gpu.buffers.destroy(buffer)
    return result
