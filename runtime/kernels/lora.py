"""What adapters of low rank add to a product, for each row its own adapter's: grouped by the batch's tiles, each of
which is one request's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch


@dataclass(frozen=True)
class LoraRows:
    """Which slot each row's adapter has. `tiles`, `tile_rows`: see ForwardBatch; a tile's rows have one adapter."""

    slots: torch.Tensor  # int32 [rows], -1: none
    tiles: torch.Tensor  # int32 [tiles, 3]
    tile_rows: int

    @cached_property
    def groups(self) -> list[tuple[int, torch.Tensor]]:
        """Each slot in use and its rows; asks the device."""
        return [(slot, (self.slots == slot).nonzero().flatten()) for slot in self.slots.unique().tolist() if slot >= 0]


def add_lora_reference(
    out: torch.Tensor, x: torch.Tensor, down: torch.Tensor, up: torch.Tensor, cuts: Sequence[int], rows: LoraRows
) -> None:
    """In place: each row of `out` [rows, outputs] plus what its adapter makes of its row of `x` [rows, inputs].

    Args:
        down: [slots, parts * rank, inputs]; up: [slots, outputs, rank]. The outputs of part p are those from
            ``cuts[p]`` to ``cuts[p + 1]``; they are made of the p-th `rank` rows of `down`.
    """
    rank, last = up.shape[2], len(cuts) - 2
    for slot, mine in rows.groups:
        whole = len(mine) == len(x)
        small = (x if whole else x[mine]) @ down[slot].t()
        parts = small.split(rank, 1)
        made = [part @ up[slot, cuts[p] : cuts[p + 1]].t() for p, part in enumerate(parts)]
        change = made[0] if not last else torch.cat(made, 1)
        if whole:
            out += change
        else:
            out.index_add_(0, mine, change)
