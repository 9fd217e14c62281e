"""Places in memory for what the processes of a group add up: a layer writes its part there and finds the sum there,
until the layers behind it do."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import torch
import torch._C._distributed_c10d as c10d
import torch.distributed as dist

from runtime.distributed.counting_store import CountingStore

LEAST_BYTES = 1 << 20
TURNS = 2  # places: a part of a layer may run between another and whoever reads what that one gave
RELEASE_SECONDS = 10.0
QUIET_SECONDS = 0.25  # without work on the device, until nothing waits for a lost rank any more


class Room:
    """Ordinary memory, made as it is needed. What recorded steps may hold of it is never given back."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.made: list[list[torch.Tensor]] = []  # uint8 [bytes], TURNS of a size; the largest last
        self.turn = 0

    def next(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        """Of this shape, what `put` takes next; None if it cannot be had now."""
        wanted = math.prod(shape) * dtype.itemsize
        if not wanted:
            return None
        if not self.made or len(self.made[-1][0]) < wanted:
            if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                return None
            size = max(LEAST_BYTES, 1 << (wanted - 1).bit_length())
            self.made.append([self.make(size) for _ in range(TURNS)])
        return self.made[-1][self.turn % TURNS][:wanted].view(dtype).view(shape)

    def put(self, x: torch.Tensor) -> torch.Tensor | None:
        """`x` in the next place, if it is not there already: over what was put TURNS times before."""
        place = self.next(x.shape, x.dtype)
        if place is None:
            return None
        self.turn += 1
        return x if x.data_ptr() == place.data_ptr() else place.copy_(x)

    def make(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def close(self) -> None:
        """Nothing is put any more."""


class SharedRoom(Room):
    """Memory of a GPU that the GPUs of the same host write to and read themselves: torch's symmetric memory. What lies
    there is added up in half the time that a ring of messages takes. All ranks make it, grow it and add up together.

    Args:
        store: torch's, where they meet. backend: torch's, with which they add up elsewhere. name: of the group, the
            same in all ranks, under which torch finds it.
    """

    DTYPES = (torch.bfloat16, torch.float32)  # that torch adds up there

    def __init__(self, device: torch.device, rank: int, size: int, store: Any, backend: Any, name: str) -> None:
        super().__init__(device)
        self.rank = rank
        self.name = name
        self.store = CountingStore(store)  # torch has these two only for as long as somebody else does
        self.group = dist.ProcessGroup(self.store, rank, size)
        self.group._register_backend(device, dist.ProcessGroup.BackendType.NCCL, backend)
        self.handles: list[Any] = []
        self.group._set_group_name(name)  # type: ignore[arg-type]
        c10d._register_process_group(name, self.group)  # type: ignore[arg-type]

    def next(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor | None:
        if dtype not in self.DTYPES or math.prod(shape) * dtype.itemsize % 16:  # it is moved in pieces of 16 bytes
            return None
        return super().next(shape, dtype)

    def make(self, size: int) -> torch.Tensor:
        made: torch.Tensor = c10d._SymmetricMemory.empty_strided_p2p((size,), (1,), torch.uint8, self.device)
        self.handles.append(c10d._SymmetricMemory.rendezvous(made, self.name))
        return made

    def add_up(self, x: torch.Tensor) -> torch.Tensor:
        """`x` of all ranks, as it was put. Each adds a part of it up and gives it to the others: the same bits
        everywhere."""
        return torch.ops.symm_mem.two_shot_all_reduce_(x, "sum", self.name)  # type: ignore[no-any-return]

    def close(self) -> None:
        c10d._unregister_process_group(self.name)  # type: ignore[arg-type]

    def release(self) -> None:
        """Let go, from a thread of its own, what waits on this GPU for a rank that will not come: kernels that nobody
        else could end. What they give is worth nothing."""
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
            end, quiet = now + RELEASE_SECONDS, now + QUIET_SECONDS
            while now < min(end, quiet):
                for pad in own:  # as if all had come
                    pad.fill_(1)
                for pad in others:  # and had seen that this one has
                    pad.zero_()
                time.sleep(0.0005)
                now = time.monotonic()
                if not torch.cuda.default_stream().query():
                    quiet = now + QUIET_SECONDS
