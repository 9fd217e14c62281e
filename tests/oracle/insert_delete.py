"""One step of `edit` of a model that inserts and deletes, in plain Python.

See docs/research/decoding-rules.md#insert-and-delete.

Details of the rules that oracle and engine interpret in the same way, in addition to those of `tests.oracle.decode`.
Where the rules are open, the golden states decide.

 1. The candidate of a mask may be DELETE or SPLIT too. DELETE removes the mask. SPLIT keeps it and inserts a new mask
    before it.
 2. The minimum number of a step counts the masks that it began with. All masks are unmasked at the limit
    max_steps_per_block too.
 3. If max_post_edit_steps is 0, the step that unmasks the last original mask also unmasks all other masks.
 4. Repeated states: original and introduced masks count as equal. The tokens that earlier steps wrote into a position
    include DELETE and SPLIT, and belong to the position, not to its content. The lowest confidence is that of the
    candidates, of equal ones that of the lowest position. A candidate that suppress_eos="confidence" suppresses has the
    lowest confidence.
 5. A step leaves a block unchanged if the content is the same afterwards, whatever the step wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tests.oracle.draws import Choice, softmax

if TYPE_CHECKING:
    from tests.oracle.block import Block, Params

SAME = 2e-15  # difference of float64 probabilities that another order of summation may cause

Cell = tuple[int | None, bool]  # a token, None for a mask; and whether it is an original mask


class UnclearError(Exception):
    """Two probabilities are so close that their order depends on rounding, which differs between machines."""


@dataclass(frozen=True)
class Step:
    took: dict[int, int]  # offset -> token, DELETE and SPLIT included
    cells: list[Cell]  # of the positions that are not fixed, after the step
    ends: bool


def text(block: Block) -> tuple[int | None, ...]:
    return tuple(None if i in block.masked else token for i, token in enumerate(block.tokens))


def decide(
    block: Block, rows: np.ndarray, found: dict[int, Choice], p: Params, orders: tuple[int, int], *, force: bool,
    fill: bool, held_back: Callable[[int], bool],
) -> Step:  # fmt: skip
    """Decides on one step of one block, which must advance with `force`, and must lose all masks with `fill`.

    `found` has the candidate of each masked offset, and `rows` [B, vocab] their logits. `orders` are DELETE and SPLIT.
    `held_back` returns whether suppress_eos="confidence" suppresses a candidate.

    Raises:
        UnclearError: The decision depends on rounding.
    """
    delete, split = orders
    limit = p.max_post_edit_steps
    masks = block.masked
    original = [i for i in masks if i in block.original]
    last = len(block.history) + 1 >= len(block.tokens) + limit
    if not original and block.post_steps + 1 >= limit:
        last = True

    sure = [i for i in masks if found[i].conf > p.accept_threshold]
    least = 1 + len(masks) - len(original)
    taken = sure
    if last or fill or not original:
        taken = masks
    elif force and len(sure) < least:
        _clear(found[i].conf for i in masks)
        taken = sorted(masks, key=lambda i: (-found[i].conf, i))[:least]
    if limit == 0 and set(original) <= set(taken):
        last, taken = True, masks

    took = {i: found[i].token for i in taken}
    sureness = {i: found[i].conf for i in taken}
    for i in block.filled:
        best = int(np.argmax(rows[i]))
        conf = -np.inf if held_back(best) else softmax(rows[i])[best]
        if best != block.tokens[i] and conf > p.edit_threshold:
            took[i], sureness[i] = best, conf
    if last:
        for i, token in took.items():
            if token in orders:
                took[i] = next(t for t in by_logit(rows[i]) if t not in orders)
    elif took and text(block) in block.history:
        _clear(sureness.values())
        i = min(took, key=lambda i: (sureness[i], i))
        others = [t for t in by_logit(rows[i]) if t not in block.chosen.get(i, set())]
        took[i] = others[0] if others else took[i]

    cells: list[Cell] = []
    for i in block.free:
        old: Cell = (None, i in block.original) if i in masks else (block.tokens[i], False)
        if took.get(i) == split:
            cells += [(None, False), old]
        elif i not in took:
            cells.append(old)
        elif took[i] != delete:
            cells.append((took[i], False))
    cells = (cells + [(None, False)] * len(block.free))[: len(block.free)]
    rest = not masks and [token for token, _ in cells] == [block.tokens[i] for i in block.free]
    return Step(took, cells, last or rest)


def _clear(confs: Iterable[float]) -> None:
    for low, high in pairwise(sorted(confs)):
        if 0 < high - low < SAME:
            raise UnclearError(f"{low} and {high}")


def by_logit(row: np.ndarray) -> list[int]:
    """Returns the tokens that may be predicted by descending logit, of equal ones the lowest id first."""
    return sorted((t for t in range(len(row)) if row[t] > -np.inf), key=lambda t: (-row[t], t))
