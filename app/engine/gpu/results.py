"""What the GPU's sampler leaves behind for each token, and which rules it can be asked for."""

from dataclasses import dataclass

import numpy as np

from app.engine.sampling import Rules

TOP = 20
"""The likeliest tokens that a result has room for."""
RESULT_WORDS = 4 + 2 * TOP
OK, BAD_LOGITS, UNDECIDED = 0, 1, 2


@dataclass(slots=True)
class Drawn:
    """One token as the GPU chose it."""

    id: int
    logprob: float
    status: int
    """OK, BAD_LOGITS, or UNDECIDED: more candidates than the kernel holds, so that Python must choose."""
    top: list[tuple[int, float]]


def can_sample(rules: Rules, top: int) -> bool:
    """Whether these rules can be left to the GPU. The likeliest tokens of penalised scores are not the model's own."""
    return top <= TOP and not (top and rules.repetition_penalty != 1)


def parse(data: bytes) -> list[Drawn]:
    """Read the results of some tokens, laid out as wgsl/lib/choose.wgsl says."""
    words = np.frombuffer(data, np.uint32).reshape(-1, RESULT_WORDS)
    floats = words.view(np.float32)
    ids, statuses, counts = (words[:, column].tolist() for column in (0, 2, 3))
    tops: list[list[tuple[int, float]]] = [[] for _ in ids]
    if any(counts):
        for row, count in enumerate(counts):
            ranked, logprobs = words[row, 4 : 4 + count], floats[row, 4 + TOP : 4 + TOP + count]
            tops[row] = list(zip(ranked.tolist(), logprobs.tolist(), strict=True))
    return list(map(Drawn, ids, floats[:, 1].tolist(), statuses, tops))
