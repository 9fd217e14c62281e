"""Which adapters requests may name, as routes see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

State = Literal["loading", "ready", "failed", "leaving"]
By = Literal["flag", "config", "route"]


@dataclass
class Entry:
    """One name. `message`: why it failed."""

    uri: str
    by: By
    state: State = "loading"
    message: str = ""
    tried: float = 0.0


class Offered(ABC):
    """`settled`: what --lora-config names has been tried once."""

    def __init__(self, settled: bool) -> None:
        self.table: dict[str, Entry] = {}
        self.settled = settled

    @property
    def offered(self) -> list[str]:
        return sorted(name for name, entry in self.table.items() if entry.state == "ready")

    def offers(self, name: str) -> bool:
        entry = self.table.get(name)
        return entry is not None and entry.state == "ready"

    def told(self) -> dict[str, dict[str, str]]:
        """How each stands, for /startup. Where it is from says which of two lists in a row is followed."""
        return {
            name: {"state": entry.state, "uri": entry.uri, **({"message": entry.message} if entry.message else {})}
            for name, entry in sorted(self.table.items())
        }

    @abstractmethod
    async def load(self, name: str, uri: str, by: By) -> None:
        """Into every replica that serves, or into none. Raises RequestError with the reason."""

    @abstractmethod
    async def unload(self, name: str) -> None:
        """No new request may have it; returns once the last one that has it has ended."""
