"""The processes that share a model: what each layer asks of the others, through torch.distributed."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


@dataclass(frozen=True)
class Group:
    """`rank` of `size` processes, each with a share of one model. All of them make the same calls in the same order.

    A group of one asks nobody: layers are built without these calls then.
    """

    rank: int = 0
    size: int = 1
    backend: Any = None  # torch's process group

    @property
    def alone(self) -> bool:
        return self.size == 1

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """`x`, into which all ranks' are added up; the same bits everywhere."""
        return self._reduce(x, dist.ReduceOp.SUM)

    def largest(self, x: torch.Tensor) -> torch.Tensor:
        """`x`, in each place the largest of all ranks'."""
        return self._reduce(x, dist.ReduceOp.MAX)

    def _reduce(self, x: torch.Tensor, how: Any) -> torch.Tensor:
        if self.size > 1 and x.numel():
            options = dist.AllreduceOptions()
            options.reduceOp = how
            self.backend.allreduce([x], options).wait()
        return x

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """[size, ...]: `x` of each rank, in their order."""
        if self.size == 1:
            return x[None]
        all_of_them = x.new_empty(self.size * x.numel())
        if x.numel():
            self.backend._allgather_base(all_of_them, x.contiguous().view(-1)).wait()
        return all_of_them.view(self.size, *x.shape)

    def least(self, number: int, device: torch.device) -> int:
        """The smallest of all ranks' numbers."""
        if self.size == 1:
            return number
        return -int(self.largest(torch.tensor([-number], device=device)))

    def abort(self) -> None:
        """End whatever waits for a rank that will not come."""
        if self.backend is not None:
            self.backend.abort()


ALONE = Group()


def meeting(host: str, seconds: float, port: int | None = None) -> Any:
    """Torch's store where ranks meet: made here, at a port of its own (`port` of what is returned), or found there."""
    limit, store = timedelta(seconds=seconds), dist.TCPStore  # type: ignore[attr-defined]
    if port is not None:
        return store(host, port, is_master=False, timeout=limit, wait_for_workers=False)
    listener = socket.create_server((host, 0))  # at this address alone: by itself the store listens at all
    port = listener.getsockname()[1]
    descriptor = listener.detach()
    return store(host, port, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=descriptor)


def join(rank: int, size: int, store: Any, device: torch.device, seconds: float, address: str = "127.0.0.1") -> Group:
    """The group of these ranks, which meet in `store`: NCCL on CUDA, gloo elsewhere. `address`: of this host, where
    the others reach it. RuntimeError if they do not come in time."""
    limit = timedelta(seconds=seconds)
    if device.type == "cuda":
        options: Any = dist.ProcessGroupNCCL.Options()
        options._timeout = limit
        made: Any = dist.ProcessGroupNCCL(store, rank, size, options)
    else:
        options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = limit
        made = dist.ProcessGroupGloo(store, rank, size, options)
    group = Group(rank, size, made)
    group.sum(torch.ones(1, device=device))  # so that what is wrong with the way between them is told here
    return group
