"""Buffers for all-reduce: a layer writes its partial result into a buffer and reads the sum there."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

from runtime.distributed.counting_store import RenumberingStore

MIN_BYTES = 1 << 20
NUM_BUFFERS = 2  # buffers per size: another module may run between an all-reduce and the reader of its result
RELEASE_SECONDS = 10.0
IDLE_SECONDS = 0.25  # without work on the device, after which no kernel waits for a lost rank


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

    def allocate(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)

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
        self.handles: list[Any] = []
        self.group._set_group_name(name)  # type: ignore[arg-type]
        c10d._register_process_group(name, self.group)  # type: ignore[arg-type]

    def next(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        if dtype not in self.DTYPES or math.prod(shape) * dtype.itemsize % 16:  # it is transferred in units of 16 bytes
            return None
        return super().next(shape, dtype)

    def allocate(self, size: int) -> torch.Tensor:
        made: torch.Tensor = c10d._SymmetricMemory.empty_strided_p2p((size,), (1,), torch.uint8, self.device)
        self.handles.append(c10d._SymmetricMemory.rendezvous(made, self.name))
        return made

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
            for handle in self.handles:
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
