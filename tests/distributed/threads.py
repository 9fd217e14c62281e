"""Runs ranks as threads of one process. Their group has the same methods, without sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from runtime.distributed.process_group import AllReduceBuffer, TensorParallelGroup

T = TypeVar("T")
CPU = torch.device("cpu")


class Exchange:
    """Exchanges tensors between the threads.

    One thread runs at a time, because kernel compilers and Triton's interpreter are not thread-safe.
    """

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size, timeout=600)
        self.lock = threading.Lock()
        self.left: list[Any] = [None] * size

    def all(self, rank: int, x: torch.Tensor) -> torch.Tensor:
        self.left[rank] = x.clone()
        self.wait()
        found = torch.stack(self.left)
        self.wait()
        return found

    def wait(self) -> None:
        self.lock.release()
        try:
            self.barrier.wait()
        finally:
            self.lock.acquire()


class SharedBuffer(AllReduceBuffer):
    """Memory that all ranks access, like the symmetric memory of GPUs."""

    def __init__(self, device: torch.device, rank: int, exchange: Exchange) -> None:
        super().__init__(device)
        self.rank = rank
        self.exchange = exchange

    def has_peer_access(self, dtype: torch.dtype) -> bool:
        return True

    def of_ranks(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        left = self.exchange.left
        return tuple(left[(self.rank + n) % len(left)] for n in range(len(left)))

    def barrier(self, x: torch.Tensor) -> None:
        self.exchange.left[self.rank] = x
        self.exchange.wait()


@dataclass(frozen=True)
class ThreadGroup(TensorParallelGroup):
    exchange: Exchange = field(default_factory=lambda: Exchange(1))

    def _reduce(self, x: torch.Tensor, how: Any) -> torch.Tensor:
        every = self.exchange.all(self.rank, x)
        return x.copy_(every.sum(0) if how == dist.ReduceOp.SUM else every.amax(0))

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return self.exchange.all(self.rank, x)


def together(
    size: int, work: Callable[[TensorParallelGroup], T], device: torch.device = CPU, *, shared: bool = False
) -> list[T]:
    """Returns the result of `work` on each rank. All use one device, and each other's buffers if they are `shared`."""
    exchange = Exchange(size)

    def one(rank: int) -> T:
        try:
            with exchange.lock:
                buffer = SharedBuffer(device, rank, exchange) if shared else AllReduceBuffer(device)
                return work(ThreadGroup(rank, size, buffer=buffer, exchange=exchange))
        except BaseException:
            exchange.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as pool:
        futures = [pool.submit(one, rank) for rank in range(size)]
        return [future.result() for future in futures]
