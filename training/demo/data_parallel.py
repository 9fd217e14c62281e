"""Data parallel training: one process per device, started by ``torchrun``. Each has all weights and a part of the rows.

All ranks start with equal weights and apply equal gradients with the same arithmetic, so their weights stay equal. One
all-reduce per step adds up gradients, weights of the loss, the loss and the load of the experts.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

_TIMEOUT = timedelta(hours=2)  # a rank waits for rank 0 during evaluations


@dataclass(frozen=True)
class DataParallel:
    """Rank and device of this process in a training. A training with one process has no process group."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which keeps the time, prints, evaluates and writes files."""
        return self.rank == 0

    def broadcast(self, value: float) -> float:
        """Returns rank 0's value on all ranks, in float64. Other ranks wait for it."""
        if self.size == 1:
            return value
        tensor = torch.tensor(value, dtype=torch.float64, device=self.device)
        dist.broadcast(tensor, 0)
        return float(tensor.item())

    def barrier(self) -> None:
        """Waits until all ranks call it, so that none closes its connections while another one receives."""
        if self.size > 1:
            arrived = torch.ones((), device=self.device)
            dist.all_reduce(arrived)
            arrived.item()  # waits for the device

    def reduce(
        self,
        gradients: Sequence[torch.Tensor],
        mean: torch.Tensor,
        weight: torch.Tensor,
        counts: Sequence[torch.Tensor],
    ) -> torch.Tensor:
        """Combines the ranks' weighted mean losses, as if one rank had all rows. One all-reduce, in float32.

        Args:
            gradients: of `mean`, float32; replaced by the gradients of the mean over all ranks.
            mean: this rank's weighted mean, a scalar.
            weight: the sum of this rank's weights, a scalar.
            counts: replaced by their sums over ranks.

        Returns:
            The weighted mean over all ranks, a scalar.
        """
        parts = [*gradients, mean, weight, *counts]
        flat = torch.cat([part.detach().flatten().float() for part in parts])
        weighted = flat[: sum(g.numel() for g in gradients) + 1]
        weighted.mul_(weight)
        dist.all_reduce(flat)
        sums = [piece.view_as(part) for piece, part in zip(flat.split([p.numel() for p in parts]), parts, strict=True)]
        weighted.div_(sums[len(gradients) + 1])
        torch._foreach_copy_(list(gradients), sums[: len(gradients)])
        for count, total in zip(counts, sums[len(gradients) + 2 :], strict=True):
            count.copy_(total)
        return sums[len(gradients)]

    def close(self) -> None:
        if self.size > 1:
            dist.destroy_process_group()
            gc.collect()  # frees the group, which ends its threads; any left at exit abort the process


def join(device: str) -> DataParallel:
    """Joins the process group of ``torchrun``, with NCCL or gloo. Without torchrun, returns a group of one process.

    Args:
        device: cpu, or cuda for the device with the number of the local rank.
    """
    if not dist.is_torchelastic_launched() or int(os.environ["WORLD_SIZE"]) == 1:
        return DataParallel(torch.device(device))
    own = torch.device(device)
    if own.type == "cuda":
        own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
    dist.init_process_group("nccl" if own.type == "cuda" else "gloo", timeout=_TIMEOUT)
    return DataParallel(own, dist.get_rank(), dist.get_world_size())
