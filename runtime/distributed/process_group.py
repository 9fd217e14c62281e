"""Collectives of tensor parallel layers, through torch.distributed."""

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
from runtime.distributed.all_reduce import AllReduceBuffer, SymmetricMemoryAllReduce

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TensorParallelGroup:
    """A tensor parallel group. All ranks make the same calls in the same order.

    With one rank, layers are built without these calls.

    Attributes:
        rank: This rank.
        size: Number of ranks.
        backend: torch's process group.
        buffer: Buffers of `all_reduce_out`; None: without buffers.
    """

    rank: int = 0
    size: int = 1
    backend: Any = None
    buffer: AllReduceBuffer | None = None

    @property
    def is_single(self) -> bool:
        return self.size == 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sums `x` of all ranks in place; all ranks get the same bits."""
        return self._reduce(x, dist.ReduceOp.SUM)

    def output_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Returns the buffer in which the input of the next `all_reduce_out` is best written; None: anywhere."""
        return None if self.buffer is None else self.buffer.next(shape, dtype)

    def all_reduce_out(self, x: torch.Tensor) -> torch.Tensor:
        """Sums `x` of all ranks. The result may be in an `output_buffer`, and is valid until the second next call."""
        put = None if self.buffer is None else self.buffer.put(x)
        if put is None:
            return self.all_reduce(x)
        return (
            self.buffer.all_reduce(put) if isinstance(self.buffer, SymmetricMemoryAllReduce) else self.all_reduce(put)
        )

    def all_reduce_max(self, x: torch.Tensor) -> torch.Tensor:
        """Takes the elementwise maximum of `x` of all ranks, in place."""
        return self._reduce(x, dist.ReduceOp.MAX)

    def _reduce(self, x: torch.Tensor, how: Any) -> torch.Tensor:
        if self.size > 1 and x.numel():
            options = dist.AllreduceOptions()
            options.reduceOp = how
            self.backend.allreduce([x], options).wait()
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `x` of all ranks, [size, ...], ordered by rank."""
        if self.size == 1:
            return x[None]
        all_of_them = x.new_empty(self.size * x.numel())
        if x.numel():
            self.backend._allgather_base(all_of_them, x.contiguous().view(-1)).wait()
        return all_of_them.view(self.size, *x.shape)

    def min_across_ranks(self, number: int, device: torch.device) -> int:
        """Returns the minimum of all ranks' numbers."""
        if self.size == 1:
            return number
        return -int(self.all_reduce_max(torch.tensor([-number], device=device)))

    def close(self) -> None:
        if self.buffer is not None:
            self.buffer.close()

    def abort(self) -> None:
        """Ends all waits for a lost rank."""
        if isinstance(self.buffer, SymmetricMemoryAllReduce):
            self.buffer.release()
        if self.backend is not None:
            self.backend.abort()


SINGLE_RANK = TensorParallelGroup()


def make_store(host: str, seconds: float, port: int | None = None) -> Any:
    """Creates torch's store for rendezvous on a free port (`port` of the result), or connects to it at `port`."""
    limit, store = timedelta(seconds=seconds), dist.TCPStore  # type: ignore[attr-defined]
    if port is not None:
        return store(host, port, is_master=False, timeout=limit, wait_for_workers=False)
    listener = create_listener(host, 0)  # on this address only: by default the store listens on all
    port = listener.getsockname()[1]
    descriptor = listener.detach()
    return store(host, port, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=descriptor)


def init_process_group(
    rank: int, size: int, store: Any, device: torch.device, seconds: float, address: str = "127.0.0.1", *,
    same_host: bool = False,
) -> TensorParallelGroup:  # fmt: skip
    """Creates the process group: NCCL on CUDA, gloo elsewhere.

    Args:
        rank: This rank.
        size: Number of ranks.
        store: The store of `make_store`.
        device: The device of this rank.
        seconds: Timeout of collectives.
        address: Address of this host that the other ranks reach.
        same_host: All ranks are processes of this host that see the same devices.

    Raises:
        RuntimeError: A rank does not join in time.
    """
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
    group = TensorParallelGroup(rank, size, made)
    group.all_reduce(torch.ones(1, device=device))  # so that connection errors are raised here
    return replace(group, buffer=_make_buffer(group, store, device, same_host=same_host))


def _make_buffer(
    group: TensorParallelGroup, store: Any, device: torch.device, *, same_host: bool
) -> AllReduceBuffer | None:
    """Creates the buffers of `all_reduce_out`; None: NCCL without buffers."""
    if device.type != "cuda":
        return AllReduceBuffer(device)
    if group.is_single:
        return None
    if not same_host:
        made: SymmetricMemoryAllReduce | str = "they are on several hosts"
    elif os.environ.get("NCCL_P2P_DISABLE", "0") != "0":  # NCCL's variable for all peer access
        made = "NCCL_P2P_DISABLE is set"
    else:
        made = _try_symmetric_memory(
            group, store, torch.cuda.current_device() if device.index is None else device.index
        )
    if isinstance(made, SymmetricMemoryAllReduce):
        return made
    if group.rank == 0:
        log.info("Symmetric memory disabled, all-reduce over NCCL: %s", made)
    return None


def _try_symmetric_memory(group: TensorParallelGroup, store: Any, index: int) -> SymmetricMemoryAllReduce | str:
    """Creates symmetric memory; returns the reason if that fails. `index`: of this rank's GPU."""
    device = torch.device("cuda", index)
    others = [n for n in group.all_gather(torch.tensor([index], device=device)).flatten().tolist() if n != index]
    reached = all(torch.cuda.can_device_access_peer(index, other) for other in others)
    if not group.min_across_ranks(int(reached), device):
        return "a GPU of this host cannot read another's memory"
    if group.rank == 0:
        store.set("name", uuid.uuid4().hex)
    made = SymmetricMemoryAllReduce(device, group.rank, group.size, store, group.backend, store.get("name").decode())
    why = "an all-reduce of another rank failed"
    try:
        works = bool((replace(group, buffer=made).all_reduce_out(torch.ones(8, 8, device=device)) == group.size).all())
    except RuntimeError as error:
        works, why = False, str(error).split("\n")[0]
    if group.min_across_ranks(int(works), device):
        return made
    made.close()
    return why
