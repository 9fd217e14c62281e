"""Which adapters requests may name, as routes see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

AdapterState = Literal["loading", "ready", "failed", "leaving"]
Source = Literal["flag", "config", "route"]


@dataclass
class AdapterEntry:
    """One name. `message`: why it failed."""

    uri: str
    source: Source
    state: AdapterState = "loading"
    message: str = ""
    last_attempt: float = 0.0


class AdapterRegistry(ABC):
    """`settled`: what --lora-config names has been tried once."""

    def __init__(self, settled: bool) -> None:
        self.entries: dict[str, AdapterEntry] = {}
        self.settled = settled

    @property
    def available(self) -> list[str]:
        return sorted(name for name, entry in self.entries.items() if entry.state == "ready")

    def is_available(self, name: str) -> bool:
        entry = self.entries.get(name)
        return entry is not None and entry.state == "ready"

    def status(self) -> dict[str, dict[str, str]]:
        """How each stands, for /startup. Where it is from says which of two lists in a row is followed."""
        return {
            name: {"state": entry.state, "uri": entry.uri, **({"message": entry.message} if entry.message else {})}
            for name, entry in sorted(self.entries.items())
        }

    @abstractmethod
    async def load(self, name: str, uri: str, by: Source) -> None:
        """Into every replica that serves, or into none. Raises RequestError with the reason."""

    @abstractmethod
    async def unload(self, name: str) -> None:
        """No new request may have it; returns once the last one that has it has ended."""
