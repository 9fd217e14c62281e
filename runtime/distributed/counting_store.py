"""A torch store that renumbers groups, so that ranks with different histories agree on numbers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist


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
