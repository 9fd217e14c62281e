"""What a step's requests have done to their logits, for the plan; and the same done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields

import numpy as np
import torch

from runtime.algorithms.logits_ops import Vocabulary
from runtime.engine.logits_processors_state import Shaped
from runtime.engine.request import UNMASKED, Block, Request
from runtime.engine.step_plan import LogitsProcessorBatch
from runtime.worker.sample.logits_processors_ops import Shapes, shape_rows

SHAPED_ROWS = 256  # at a time: bounds the memory, as a row may have as many ids as its request has tokens
PREFIX = "shaped_"
NAMES = tuple(field.name for field in fields(LogitsProcessorBatch))


def shaping_plan(owners: Sequence[Request], blocks: Sequence[Block], size: int) -> LogitsProcessorBatch | None:
    """Of a step's blocks and the requests that own them; None where none asks for anything."""
    numbers: dict[int, int] = {}
    made: list[tuple[tuple[float, float, float], Shaped]] = []
    n = len(blocks)
    request_of, first = np.full(n, -1, dtype=np.int64), np.zeros(n, dtype=np.int64)
    own = np.full((n, size), -1, dtype=np.int64)
    for i, (request, block) in enumerate(zip(owners, blocks, strict=True)):
        if request.shaper is None:
            continue
        if request.seq not in numbers:
            numbers[request.seq] = len(made)
            made.append((request.shaper.penalties, request.shaper.shaped(request.answer())))
        request_of[i] = numbers[request.seq]
        first[i] = block.start - request.prompt_len
        inside = block.start + np.arange(block.size) < request.end
        own[i, : block.size] = np.where((block.state == UNMASKED) & inside, block.tokens, -1)
    if not made:
        return None
    most = max(max(len(shaped.ids) for _, shaped in made), 1)

    def beside(name: str) -> np.ndarray:
        return np.stack([_widened(getattr(shaped, name), most) for _, shaped in made])

    return LogitsProcessorBatch(
        request=request_of, first=first, own=own, ids=beside("ids"), seen=beside("seen"), counts=beside("counts"),
        bias=beside("bias"), least=beside("least"), penalties=np.array([penalties for penalties, _ in made]),
    )  # fmt: skip


def shaping_arrays(plan: LogitsProcessorBatch) -> dict[str, np.ndarray]:
    """Named, for the device."""
    return {PREFIX + name: getattr(plan, name) for name in NAMES}


def shape_logits(
    logits: torch.Tensor, given: Mapping[str, torch.Tensor], block: torch.Tensor, at: torch.Tensor,
    vocabulary: Vocabulary,
) -> None:  # fmt: skip
    """In place: the logits [rows, vocab] of positions `at` [rows] of the plan's blocks `block` [rows], as far as their
    requests ask. The host waits for which these are."""
    request = given[PREFIX + "request"][block]
    for rows in torch.split((request >= 0).nonzero()[:, 0], SHAPED_ROWS):
        mine, where, which = request[rows], at[rows], block[rows]
        shapes = Shapes(
            **{name: given[PREFIX + name][mine] for name in ("ids", "seen", "counts", "bias", "least", "penalties")},
            position=given[PREFIX + "first"][which] + where,
            own=given[PREFIX + "own"][which, where],
        )
        some = logits[rows]
        shape_rows(some, shapes, vocabulary)
        logits[rows] = some


def _widened(values: np.ndarray, size: int) -> np.ndarray:
    """What is missing is the first once more: it comes to the same. Of no values, what changes nothing of token 0."""
    return np.pad(values, (0, size - len(values)), mode="edge" if len(values) else "constant")
