"""One step of `edit` of a model that inserts and deletes, in plain Python.

See docs/research/decoding-rules.md#insert-and-delete.

Readings, beside those of `tests.oracle.decode`. Where they are open, the golden states decide.

 1. Masks may choose DELETE and SPLIT as well: one that is deleted is gone, one that is split stays, behind a new one.
 2. "Was masked at the start" is asked of masks alone: the original ones are those of the beginning that nothing took.
    What SPLIT or padding put there is introduced. A step's least number counts the masks that it began with.
 3. The minimum number applies to blocks that must advance. In others, positions that pass the threshold are unmasked.
    If no original mask is left, all masks are unmasked, whether the block must advance or not, and also at the limit
    max_steps_per_block.
 4. Prompt and given positions keep their places: what moves, moves over the others.
 5. The hard cap counts every step of the block: its (B + max_post_edit_steps)-th is the last.
 6. The last step chooses as any other; where that is an order, it takes the likeliest token that is none. The rule
    against loops does not apply to it. At max_post_edit_steps = 0 the step that takes the last original mask fills all
    the others too.
 7. States are compared as text: an original and an introduced mask are the same. Tokens count as chosen at a position
    in whatever step it took them, orders included, and stay with the position when its content moves. Where nothing is
    left that it did not choose, it takes its candidate. "Least confidence" is that of the candidates; of a tie, the
    lowest position's; one that suppress_eos="confidence" holds back has the least.
 8. A block that is left as it was has "changed nothing", whatever it chose.
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

SAME = 2e-15  # of probabilities, in float64: what another order of adding may make of them

Cell = tuple[int | None, bool]  # a token, None for a mask; and whether it is an original mask


class UnclearError(Exception):
    """Two probabilities that are compared differ by so little that rounding decides, and that is the machine's."""


@dataclass(frozen=True)
class Step:
    took: dict[int, int]  # offset -> token, orders as well
    cells: list[Cell]  # of the positions that are not fixed, afterwards
    ends: bool


def text(block: Block) -> tuple[int | None, ...]:
    return tuple(None if i in block.masked else token for i, token in enumerate(block.tokens))


def decide(
    block: Block,
    rows: np.ndarray,
    found: dict[int, Choice],
    p: Params,
    orders: tuple[int, int],
    *,
    force: bool,
    fill: bool,
    held_back: Callable[[int], bool],
) -> Step:
    """`rows` [B, vocab]: logits that candidates are taken from; `found`: those of the masks."""
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
    """Tokens that may be chosen, the likeliest first, of a tie the lowest."""
    return sorted((t for t in range(len(row)) if row[t] > -np.inf), key=lambda t: (-row[t], t))
