"""Sampling on the GPU: the same rules as `sampling.py`, over the whole vocabulary, without a readback of the logits.

A plan of two to five dispatches follows the model's in each pass. It writes the chosen token where the embedding reads
it, so that the GPU goes on by itself; what Python wants to know waits in a ring of results.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import tabgpt_gpu
from numpy.typing import NDArray

from app.engine.gpu.buffers import COPY_DST, UNIFORM, Buffer
from app.engine.gpu.device import Device
from app.engine.gpu.kernels import Constant, Kernel, kernel
from app.engine.gpu.results import RESULT_WORDS
from app.engine.sampling import Rules

_BLOCK = 512
_BINS = 512
_BINS_PER_NAT = 8.0
_CANDIDATES = 512


class GpuSampler:
    """The sampling plans of one model. Made by `create`."""

    def __init__(self, device: Device, n_vocab: int, ring: int, threads: int) -> None:
        """Allocate for a vocabulary of `n_vocab` and for `ring` tokens between an upload of uniforms and the next."""
        self.device = device
        self.n_vocab = n_vocab
        self.ring = ring
        blocks = -(-n_vocab // _BLOCK)
        create = device.buffers.create
        self.results = create(4 * RESULT_WORDS * ring, "sampler")
        self._uniforms = create(4 * ring, "sampler")
        self._seen = create(4 * -(-n_vocab // 32), "sampler")
        self._blocks = create(24 * blocks, "sampler")
        self._work = create(4 * (_BINS + 2 + 2 * _CANDIDATES), "sampler")
        self._rules = create(32, "sampler", UNIFORM | COPY_DST)
        self._grid = blocks
        self._plans: dict[str, Any] = {}
        constants: dict[str, Constant] = {"N": n_vocab, "BLOCK": _BLOCK, "BLOCKS": blocks, "WG": threads, "RING": ring}
        bins: dict[str, Constant] = {"BINS": _BINS, "BINS_PER_NAT": _BINS_PER_NAT, "CANDIDATES": _CANDIDATES}
        ends = ("scores", "choose")
        self._kernels: dict[str, Kernel] = {
            "blocks": kernel("sample_blocks", "scores", **constants),
            "greedy": kernel("sample_greedy", *ends, **constants),
            "full": kernel("sample_full", *ends, **constants),
            "histogram": kernel("sample_histogram", "scores", **constants, **bins),
            "collect": kernel("sample_collect", "scores", **constants, **bins),
            "choose": kernel("sample_choose", *ends, **constants, **bins, DRAW=True),
            "report": kernel("sample_choose", *ends, **constants, **bins, DRAW=False),
        }

    @classmethod
    async def create(
        cls, device: Device, *, n_vocab: int, logits: Buffer, ids: Buffer, step: Buffer, ring: int
    ) -> "GpuSampler":
        """Compile and bind: reads `logits`, writes the token to `ids` and the next step to `step`. Raises GpuError."""
        sampler = cls(device, n_vocab, ring, device.tuning().sampler_threads)
        try:
            await device.compile(sampler._kernels.values())
            sampler._bind(logits, ids, step)
        except BaseException:
            sampler.free()
            raise
        return sampler

    def _bind(self, logits: Buffer, ids: Buffer, step: Buffer) -> None:
        buffers = {
            "logits": logits, "ids": ids, "next_step": step, "results": self.results,
            "uniforms": self._uniforms, "seen": self._seen, "blocks": self._blocks, "work": self._work,
            "rules": self._rules,
        }  # fmt: skip
        modes = {
            "greedy": ("blocks", "greedy"),
            "full": ("blocks", "full"),
            "choose": ("blocks", "histogram", "collect", "choose"),
            "report": ("blocks", "histogram", "collect", "report", "full"),
        }
        groups = {}
        for name, code in self._kernels.items():
            slices = {binding: (buffers[binding], 0, buffers[binding].nbytes) for binding in code.bindings()}
            groups[name] = self.device.bind_group(code, slices)
        for mode, names in modes.items():
            plan = tabgpt_gpu.newPlan()
            for name in names:
                wide = self._grid if name in ("blocks", "histogram", "collect") else 1
                tabgpt_gpu.addDispatch(plan, self.device.pipeline(self._kernels[name]), groups[name], wide, 1, 0, 0)
            self._plans[mode] = plan

    def begin(self, rules: Rules, *, top: int, uniforms: NDArray[np.float32], history: Iterable[int]) -> Any:
        """Upload what a generation needs, and return the plan that draws by `rules`.

        `uniforms` are the numbers in [0, 1) of the coming tokens, at most `ring`; `history` counts for the penalty.
        """
        greedy = rules.temperature == 0
        cuts = bool(rules.top_k) or rules.top_p < 1 or rules.min_p > 0
        if greedy:
            mode = "choose" if top else "greedy"
        elif cuts:
            mode = "choose"
        else:
            mode = "report" if top else "full"
        # The greatest score of one candidate is greedy too, and comes with a list of the others.
        temperature, top_k = (1.0, 1) if greedy and top else (rules.temperature, rules.top_k)
        words = np.zeros(8, np.uint32)
        words[:4].view(np.float32)[:] = [temperature, rules.repetition_penalty, rules.top_p, rules.min_p]
        if greedy:
            words[2:4].view(np.float32)[:] = [1.0, 0.0]
        words[4:6] = [min(top_k, self.n_vocab), top]
        self.device.write(self._rules, words)
        self.device.write(self._uniforms, np.ascontiguousarray(uniforms, np.float32))
        seen = np.zeros(self._seen.nbytes * 8, np.uint8)
        seen[[token for token in history if token < self.n_vocab]] = 1
        self.device.write(self._seen, np.packbits(seen, bitorder="little"))
        return self._plans[mode]

    def dispatches(self, plan: Any) -> int:
        """How many launches a token's sampling takes."""
        return int(plan.pipelines.length)

    def free(self) -> None:
        """Give all buffers back."""
        for buffer in (self.results, self._uniforms, self._seen, self._blocks, self._work, self._rules):
            self.device.buffers.destroy(buffer)
        self._plans.clear()
