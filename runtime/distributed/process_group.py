"""The processes that share a model: what each layer asks of the others, through torch.distributed."""

from __future__ import annotations

import logging
import os
import uuid
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from runtime.distributed.address import create_listener
from runtime.distributed.all_reduce import Room, SharedRoom

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Group:
    """`rank` of `size` processes, each with a share of one model. All of them make the same calls in the same order.

    A group of one asks nobody: layers are built without these calls then.
    """

    rank: int = 0
    size: int = 1
    backend: Any = None  # torch's process group
    place: Room | None = None  # for what layers add up

    @property
    def alone(self) -> bool:
        return self.size == 1

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """`x`, into which all ranks' are added up; the same bits everywhere."""
        return self._reduce(x, dist.ReduceOp.SUM)

    def room(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Of this shape: where what is added up next had best be written; None: anywhere."""
        return None if self.place is None else self.place.next(shape, dtype)

    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        """`sum` of what is read soon: it lies in a `room`, which is the second next one's too."""
        put = None if self.place is None else self.place.put(x)
        if put is None:
            return self.sum(x)
        return self.place.add_up(put) if isinstance(self.place, SharedRoom) else self.sum(put)

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

    def close(self) -> None:
        if self.place is not None:
            self.place.close()

    def abort(self) -> None:
        """End whatever waits for a rank that will not come."""
        if isinstance(self.place, SharedRoom):
            self.place.release()
        if self.backend is not None:
            self.backend.abort()


ALONE = Group()


def meeting(host: str, seconds: float, port: int | None = None) -> Any:
    """Torch's store where ranks meet: made here, at a port of its own (`port` of what is returned), or found there."""
    limit, store = timedelta(seconds=seconds), dist.TCPStore  # type: ignore[attr-defined]
    if port is not None:
        return store(host, port, is_master=False, timeout=limit, wait_for_workers=False)
    listener = create_listener(host, 0)  # at this address alone: by itself the store listens at all
    port = listener.getsockname()[1]
    descriptor = listener.detach()
    return store(host, port, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=descriptor)


def join(
    rank: int, size: int, store: Any, device: torch.device, seconds: float, address: str = "127.0.0.1", *,
    near: bool = False,
) -> Group:  # fmt: skip
    """The group of these ranks, which meet in `store`: NCCL on CUDA, gloo elsewhere. `address`: of this host, where
    the others reach it. `near`: all of them are processes of this host that see the same devices. RuntimeError if they
    do not come in time."""
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
    return replace(group, place=_place(group, store, device, near=near))


def _place(group: Group, store: Any, device: torch.device, *, near: bool) -> Room | None:
    """Where layers' results are added up; None: where they are, over NCCL."""
    if device.type != "cuda":
        return Room(device)
    if group.alone:
        return None
    if not near:
        made: SharedRoom | str = "they are on several hosts"
    elif os.environ.get("NCCL_P2P_DISABLE", "0") != "0":  # NCCL's word for all such ways
        made = "NCCL_P2P_DISABLE is set"
    else:
        made = _shared(group, store, torch.cuda.current_device() if device.index is None else device.index)
    if isinstance(made, SharedRoom):
        return made
    if group.rank == 0:
        log.info("ranks share no memory, and add up over NCCL: %s", made)
    return None


def _shared(group: Group, store: Any, index: int) -> SharedRoom | str:
    """Memory that all of the group see, or why there is none. `index`: of this rank's GPU."""
    device = torch.device("cuda", index)
    others = [n for n in group.gather(torch.tensor([index], device=device)).flatten().tolist() if n != index]
    reached = all(torch.cuda.can_device_access_peer(index, other) for other in others)
    if not group.least(int(reached), device):
        return "a GPU of this host cannot read another's memory"
    if group.rank == 0:
        store.set("name", uuid.uuid4().hex)
    made = SharedRoom(device, group.rank, group.size, store, group.backend, store.get("name").decode())
    why = "a sum of another rank went wrong"
    try:
        works = bool((replace(group, place=made).add_up(torch.ones(8, 8, device=device)) == group.size).all())
    except RuntimeError as error:
        works, why = False, str(error).split("\n")[0]
    if group.least(int(works), device):
        return made
    made.close()
    return why
