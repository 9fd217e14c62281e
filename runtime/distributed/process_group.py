"""Collectives of tensor parallel layers, through torch.distributed and torch's symmetric memory."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

from runtime.distributed.address import create_listener

MIN_BYTES = 1 << 20
NUM_BUFFERS = 2  # buffers per size: another module may run between an all-reduce and the reader of its result
RELEASE_SECONDS = 10.0
IDLE_SECONDS = 0.25  # without work on the device, after which no kernel waits for a lost rank
log = logging.getLogger(__name__)


class RenumberingStore(dist.Store):  # type: ignore[name-defined,misc]
    """Wraps a store whose keys end in NUMBER/RANK. Each new number gets the next number from 0 on.

    Torch numbers exchanges about shared memory per process. A process that shared memory with other ranks before would
    wait for its new peers under keys that these never write.
    """

    def __init__(self, store: Any) -> None:
        super().__init__()
        self.store = store
        self.numbers: dict[str, int] = {}

    def key(self, key: str) -> str:
        head, *ends = key.rsplit("/", 2)
        if len(ends) < 2 or not all(end.isdigit() for end in ends):
            return key
        return f"{head}/{self.numbers.setdefault(ends[0], len(self.numbers))}/{ends[1]}"

    def set(self, key: str, value: Any) -> None:
        self.store.set(self.key(key), value)

    def get(self, key: str) -> bytes:
        found: bytes = self.store.get(self.key(key))
        return found

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self.store.wait([self.key(key) for key in keys], *([] if timeout is None else [timeout]))

    def add(self, key: str, amount: int) -> int:
        return int(self.store.add(self.key(key), amount))

    def check(self, keys: list[str]) -> bool:
        return bool(self.store.check([self.key(key) for key in keys]))


class AllReduceBuffer:
    """Ordinary memory, allocated on demand. It is never freed, since captured CUDA graphs may refer to it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers: list[list[torch.Tensor]] = []  # uint8 [bytes], NUM_BUFFERS of each size; the largest last
        self.num_puts = 0

    def next(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Returns a view of this shape of the next buffer that `put` uses; None if it cannot be allocated now."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if not num_bytes:
            return None
        if not self.buffers or len(self.buffers[-1][0]) < num_bytes:
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return None
            size = max(MIN_BYTES, 1 << (num_bytes - 1).bit_length())
            self.buffers.append([self.allocate(size) for _ in range(NUM_BUFFERS)])
        return self.buffers[-1][self.num_puts % NUM_BUFFERS][:num_bytes].view(dtype).view(shape)

    def put(self, x: torch.Tensor) -> torch.Tensor | None:
        """Copies `x` into the next buffer unless it is there; overwrites the value of NUM_BUFFERS calls before."""
        buffer = self.next(x.shape, x.dtype)
        if buffer is None:
            return None
        self.num_puts += 1
        return x if x.data_ptr() == buffer.data_ptr() else buffer.copy_(x)

    @contextmanager
    def repeated(self, num_sizes: int, num_puts: int) -> Iterator[None]:
        """Uses the same buffers again as after `num_puts` calls, when there were `num_sizes` sizes of buffers.

        Later work uses the buffers that it would have used without this.
        """
        now = self.buffers, self.num_puts
        self.buffers, self.num_puts = self.buffers[:num_sizes], num_puts
        try:
            yield
        finally:
            self.buffers, self.num_puts = now

    def allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def has_peer_access(self, dtype: torch.dtype) -> bool:
        """Returns whether each rank can access the buffers of all ranks, for values of `dtype`."""
        return False

    def of_ranks(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns `x`, which `put` returned, of all ranks as views of their buffers, this rank's first."""
        raise NotImplementedError

    def barrier(self, x: torch.Tensor) -> None:
        """Waits on the device until all ranks are there; then they see each other's writes to the buffer of `x`."""
        raise NotImplementedError

    def close(self) -> None:
        """Releases resources."""


class SymmetricMemoryAllReduce(AllReduceBuffer):
    """All-reduce in torch's symmetric memory, which the GPUs of a host read and write directly.

    It takes half the time of a ring of messages. All ranks allocate, grow and reduce collectively.

    Args:
        device: The GPU of this rank.
        rank: This rank.
        size: Number of ranks.
        store: torch's store where the ranks meet.
        backend: torch's backend for all-reduce in other memory.
        name: Name of the group in torch, the same on all ranks.
    """

    DTYPES = (torch.bfloat16, torch.float32)  # that torch reduces there

    def __init__(self, device: torch.device, rank: int, size: int, store: Any, backend: Any, name: str) -> None:
        super().__init__(device)
        self.rank = rank
        self.name = name
        self.store = RenumberingStore(store)  # torch does not own these two
        self.group = dist.ProcessGroup(self.store, rank, size)
        self.group._register_backend(device, dist.ProcessGroup.BackendType.NCCL, backend)
        self.handles: dict[int, Any] = {}  # by address of the buffer
        self.group._set_group_name(name)  # type: ignore[arg-type]
        c10d._register_process_group(name, self.group)  # type: ignore[arg-type]

    def next(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        if dtype not in self.DTYPES or math.prod(shape) * dtype.itemsize % 16:  # it is transferred in units of 16 bytes
            return None
        return super().next(shape, dtype)

    def allocate(self, size: int) -> torch.Tensor:
        made: torch.Tensor = c10d._SymmetricMemory.empty_strided_p2p((size,), (1,), torch.uint8, self.device)
        self.handles[made.data_ptr()] = c10d._SymmetricMemory.rendezvous(made, self.name)
        return made

    def has_peer_access(self, dtype: torch.dtype) -> bool:
        return dtype in self.DTYPES

    def of_ranks(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        handle, size = self.handles[x.data_ptr()], self.group.size()
        others = ((self.rank + n) % size for n in range(1, size))  # in this order, so that all links are used at once
        return x, *(handle.get_buffer(rank, x.shape, x.dtype) for rank in others)

    def barrier(self, x: torch.Tensor) -> None:
        self.handles[x.data_ptr()].barrier()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """All-reduces `x`, which `put` returned. Each rank sums one part, so that all ranks get the same bits."""
        return torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", self.name)  # type: ignore[no-any-return]

    def close(self) -> None:
        c10d._unregister_process_group(self.name)  # type: ignore[arg-type]

    def release(self) -> None:
        """Ends kernels on this GPU that wait for a lost rank, in a new thread. Their results are invalid."""
        if self.handles:
            threading.Thread(target=self._release, daemon=True).start()

    def _release(self) -> None:
        own: list[torch.Tensor] = []
        others: list[torch.Tensor] = []
        with torch.cuda.device(self.device), torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            for handle in list(self.handles.values()):  # another thread may allocate
                for rank in range(handle.world_size):
                    pad = handle.get_signal_pad(rank, (handle.signal_pad_size // 4,), torch.int32)
                    (own if rank == self.rank else others).append(pad)
            now = time.monotonic()
            end, quiet = now + RELEASE_SECONDS, now + IDLE_SECONDS
            while now < min(end, quiet):
                for pad in own:  # as if all ranks had arrived
                    pad.fill_(1)
                for pad in others:  # and had seen this rank's arrival
                    pad.zero_()
                time.sleep(0.0005)
                now = time.monotonic()
                if not torch.cuda.default_stream().query():
                    quiet = now + IDLE_SECONDS


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
        if self.buffer is None or (put := self.buffer.put(x)) is None:
            return self.all_reduce(x)
        if isinstance(self.buffer, SymmetricMemoryAllReduce):
            return self.buffer.all_reduce(put)
        return self.all_reduce(put)

    def has_peer_access(self, dtype: torch.dtype) -> bool:
        """Returns whether `reduce_own_rows` is possible for values of `dtype`."""
        return not self.is_single and self.buffer is not None and self.buffer.has_peer_access(dtype)

    def own_rows(self, rows: int) -> slice:
        """Returns the part of `rows` rows that this rank reduces; it may be empty."""
        per_rank = -(-rows // self.size)
        return slice(min(self.rank * per_rank, rows), min((self.rank + 1) * per_rank, rows))

    def reduce_own_rows(
        self, x: torch.Tensor, reduce: Callable[[tuple[torch.Tensor, ...], slice], None]
    ) -> torch.Tensor | None:
        """Calls ``reduce(x of all ranks, own rows)`` on each rank, which replaces its own rows in all of them.

        Args:
            x: [rows, size], the partial results of this rank.

        Returns:
            [rows, size], the rows of all ranks, valid until the second next call; None if there is no buffer for `x`
            now.
        """
        if self.buffer is None or (put := self.buffer.put(x)) is None:
            return None
        rows = self.own_rows(len(put))
        self.buffer.barrier(put)
        if rows.start < rows.stop:
            reduce(self.buffer.of_ranks(put), rows)
        self.buffer.barrier(put)
        return put

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
