"""Process group and collectives of tensor parallel layers, with torch.distributed and torch's symmetric memory."""

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

MIN_BYTES = 1 << 20  # minimum size of a buffer
NUM_BUFFERS = 2  # buffers per size: one more all-reduce may run before the result of an all-reduce is read
RELEASE_SECONDS = 10.0  # maximum duration of `SymmetricMemoryAllReduce.release`
IDLE_SECONDS = 0.25  # after the device was idle for this time, no kernel waits for a lost rank
log = logging.getLogger(__name__)


class RenumberingStore(dist.Store):  # type: ignore[name-defined,misc]
    """Wraps a store whose keys end in NUMBER/RANK, and replaces each new NUMBER by the next one from 0 on.

    Torch exchanges handles of symmetric memory through keys with a number that counts the exchanges of the process.
    Ranks must use the same numbers. A process that was in another group before has a higher count than new processes,
    so it would wait for keys that they never write.
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
    """Buffers of all-reduce in ordinary memory.

    They are allocated on demand and never freed, because captured CUDA graphs may contain their addresses.

    Attributes:
        buffers: uint8 [bytes], `NUM_BUFFERS` tensors per size, in ascending order of size. Only the last size is used.
        num_puts: number of calls of `put`, which alternates between the buffers of a size.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.buffers: list[list[torch.Tensor]] = []
        self.num_puts = 0

    def next(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Returns the buffer that the next `put` uses, as a view of this shape; None if it cannot be allocated now."""
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
        """Copies `x` into the next buffer, unless `x` is a view of it.

        Returns:
            A view of the buffer, valid until the call after the next one. None if there is no buffer for `x` now.
        """
        buffer = self.next(x.shape, x.dtype)
        if buffer is None:
            return None
        self.num_puts += 1
        return x if x.data_ptr() == buffer.data_ptr() else buffer.copy_(x)

    @contextmanager
    def repeated(self, num_sizes: int, num_puts: int) -> Iterator[None]:
        """Repeats the use of the buffers from an earlier time: when `num_puts` calls and `num_sizes` sizes existed.

        On exit, the state is as before, so later calls use the same buffers as without this context.
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
        """Returns whether each rank can read and write the buffers of all ranks, for values of `dtype`."""
        return False

    def of_ranks(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the buffers of all ranks that correspond to `x`, a result of `put`; that of this rank first."""
        raise NotImplementedError

    def barrier(self, x: torch.Tensor) -> None:
        """Synchronizes the ranks on the device. Afterwards all ranks see all writes to the buffers of `x`."""
        raise NotImplementedError

    def close(self) -> None:
        """Releases resources."""


class SymmetricMemoryAllReduce(AllReduceBuffer):
    """All-reduce in torch's symmetric memory, which the GPUs of a host read and write directly.

    It takes half the time of NCCL's ring. Allocation is collective: all ranks must allocate buffers together.

    Args:
        device: GPU of this rank.
        rank: index of this rank.
        size: number of ranks.
        store: torch's store for rendezvous.
        backend: torch's backend for all-reduce in other memory.
        name: name of the group in torch, the same on all ranks.
    """

    DTYPES = (torch.bfloat16, torch.float32)  # dtypes that torch supports in symmetric memory

    def __init__(self, device: torch.device, rank: int, size: int, store: Any, backend: Any, name: str) -> None:
        super().__init__(device)
        self.rank = rank
        self.name = name
        self.store = RenumberingStore(store)  # torch keeps no reference to the store and the group
        self.group = dist.ProcessGroup(self.store, rank, size)
        self.group._register_backend(device, dist.ProcessGroup.BackendType.NCCL, backend)
        self.handles: dict[int, Any] = {}  # by address of the buffer
        self.group._set_group_name(name)  # type: ignore[arg-type]
        c10d._register_process_group(name, self.group)  # type: ignore[arg-type]

    def next(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        if dtype not in self.DTYPES or math.prod(shape) * dtype.itemsize % 16:  # the kernel transfers 16 bytes at once
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
        others = ((self.rank + n) % size for n in range(1, size))  # each rank begins with another one, to use all links
        return x, *(handle.get_buffer(rank, x.shape, x.dtype) for rank in others)

    def barrier(self, x: torch.Tensor) -> None:
        self.handles[x.data_ptr()].barrier()

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """Sums `x`, a result of `put`, over all ranks in place. One rank sums each part, so the results are equal."""
        return torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", self.name)  # type: ignore[no-any-return]

    def close(self) -> None:
        c10d._unregister_process_group(self.name)  # type: ignore[arg-type]

    def release(self) -> None:
        """Ends kernels on this GPU that wait for a lost rank. Their results are invalid. It returns immediately."""
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
                for pad in own:  # signals the arrival of all other ranks
                    pad.fill_(1)
                for pad in others:  # signals that they have received the arrival of this rank
                    pad.zero_()
                time.sleep(0.0005)
                now = time.monotonic()
                if not torch.cuda.default_stream().query():
                    quiet = now + IDLE_SECONDS


@dataclass(frozen=True)
class TensorParallelGroup:
    """A tensor parallel group. All ranks must call the collectives in the same order.

    With one rank, layers call no collectives.

    Attributes:
        rank: index of this rank.
        size: number of ranks.
        backend: torch's process group.
        buffer: buffers of `all_reduce_out`. None: `all_reduce_out` reduces in place.
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
        """Returns a buffer for the input of the next `all_reduce_out`, which saves a copy. None: there is no buffer."""
        return None if self.buffer is None else self.buffer.next(shape, dtype)

    def all_reduce_out(self, x: torch.Tensor) -> torch.Tensor:
        """Sums `x` of all ranks. The result may be in a buffer; it is valid until the call after the next one."""
        if self.buffer is None or (put := self.buffer.put(x)) is None:
            return self.all_reduce(x)
        if isinstance(self.buffer, SymmetricMemoryAllReduce):
            return self.buffer.all_reduce(put)
        return self.all_reduce(put)

    def has_peer_access(self, dtype: torch.dtype) -> bool:
        """Returns whether `reduce_own_rows` is possible for values of `dtype`."""
        return not self.is_single and self.buffer is not None and self.buffer.has_peer_access(dtype)

    def own_rows(self, rows: int) -> slice:
        """Returns which of `rows` rows this rank reduces in `reduce_own_rows`; the slice may be empty."""
        per_rank = -(-rows // self.size)
        return slice(min(self.rank * per_rank, rows), min((self.rank + 1) * per_rank, rows))

    def reduce_own_rows(
        self, x: torch.Tensor, reduce: Callable[[tuple[torch.Tensor, ...], slice], None]
    ) -> torch.Tensor | None:
        """All-reduces with a function that reduces the rows of one rank, such as a fused kernel.

        Args:
            x: [rows, size], the partial results of this rank.
            reduce: called as ``reduce(xs, own)`` with the tensors `x` of all ranks, and the rows `own` of this rank. It
                writes the result of these rows into all tensors.

        Returns:
            [rows, size], the result, valid until the call after the next one. None if there is no buffer for `x` now.
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
        """Computes the elementwise maximum of `x` of all ranks in place."""
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
        """Returns the minimum of `number` over all ranks. `device`: where it is computed."""
        if self.size == 1:
            return number
        return -int(self.all_reduce_max(torch.tensor([-number], device=device)))

    def close(self) -> None:
        if self.buffer is not None:
            self.buffer.close()

    def abort(self) -> None:
        """Ends all collectives that wait for a lost rank."""
        if isinstance(self.buffer, SymmetricMemoryAllReduce):
            self.buffer.release()
        if self.backend is not None:
            self.backend.abort()


SINGLE_RANK = TensorParallelGroup()


def create_store_file() -> int:
    """Creates the file of `open_store_file`. Returns its descriptor, which the other ranks inherit.

    The file has no directory entry. A store that is open needs the descriptor until the process ends: threads of NCCL
    read the store as long as they run, and wait for a file that is missing.
    """
    return os.memfd_create("unmask-store")


def open_store_file(descriptor: int, seconds: float) -> Any:
    """Opens torch's store for rendezvous on one host. It has no socket, to which other users could connect.

    Args:
        descriptor: result of `create_store_file`, in this process. That of another process would need the permission
            to trace it.
        seconds: timeout of its operations.
    """
    store = dist.FileStore(f"/proc/self/fd/{descriptor}", -1)  # type: ignore[attr-defined]  # -1: it does not remove the file
    store.set_timeout(timedelta(seconds=seconds))
    return store


def make_store(host: str, seconds: float, port: int | None = None) -> Any:
    """Creates torch's store for rendezvous of several hosts on a free port, or connects to the store at `port`.

    It accepts keys from anyone who can connect.

    Args:
        host: address of the store.
        seconds: timeout of its operations.
        port: None: creates the store, whose attribute `port` is the port.
    """
    limit, store = timedelta(seconds=seconds), dist.TCPStore  # type: ignore[attr-defined]
    if port is not None:
        return store(host, port, is_master=False, timeout=limit, wait_for_workers=False)
    listener = create_listener(host, 0)  # by default the store would listen on all addresses
    port = listener.getsockname()[1]
    descriptor = listener.detach()
    return store(host, port, is_master=True, timeout=limit, wait_for_workers=False, master_listen_fd=descriptor)


def init_process_group(
    rank: int, size: int, store: Any, device: torch.device, seconds: float, address: str = "127.0.0.1", *,
    same_host: bool = False,
) -> TensorParallelGroup:  # fmt: skip
    """Creates the process group: NCCL on CUDA, gloo elsewhere.

    Args:
        rank: index of this rank.
        size: number of ranks.
        store: result of `open_store_file` or `make_store`.
        device: device of this rank.
        seconds: timeout of collectives.
        address: address of this host that the other ranks can reach.
        same_host: all ranks are processes on this host with the same visible devices.

    Raises:
        RuntimeError: a rank does not join in time.
    """
    limit = timedelta(seconds=seconds)
    if device.type == "cuda":
        made: Any = dist.ProcessGroupNCCL(store, rank, size, limit)  # type: ignore[arg-type]  # missing in torch's stub
    else:
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = limit
        made = dist.ProcessGroupGloo(store, rank, size, options)
    group = TensorParallelGroup(rank, size, made)
    group.all_reduce(torch.ones(1, device=device))  # so that connection errors are raised here
    return replace(group, buffer=_make_buffer(group, store, device, same_host=same_host))


def _make_buffer(
    group: TensorParallelGroup, store: Any, device: torch.device, *, same_host: bool
) -> AllReduceBuffer | None:
    """Creates the buffers of `all_reduce_out`. Returns None if symmetric memory is not available: NCCL needs none."""
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
    """Creates the buffers in symmetric memory, or returns why it cannot be used. `index`: index of this rank's GPU."""
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
