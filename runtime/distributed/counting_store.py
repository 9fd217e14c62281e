"""A store where processes that have done different things before agree on numbers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist


class CountingStore(dist.Store):  # type: ignore[name-defined,misc]
    """Over another store, whose keys end in NUMBER/RANK: each number that is new here takes the next place.

    Torch numbers what processes tell each other about shared memory by how often each has done so in its life. One that
    shared memory with others before would wait for its new peers under keys that these never write.
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
