"""Host memory of the adapters that requests have loaded in this process, and its limit."""

from __future__ import annotations

import threading

from runtime.request.validation import refuse

GB = 1e9


class AdapterMemory:
    """Counts the host memory of adapters that requests load. Threads that read adapters reserve memory in it.

    Attributes:
        names: loaded adapters that count.
        held_bytes: host memory of these, without content that they share with others. The loop updates it.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.held_bytes = 0
        self._reserved: dict[int, int] = {}  # number of the call -> bytes of the adapter that is being read
        self._lock = threading.Lock()

    def reserve(self, number: int, max_bytes: int | None, num_bytes: int) -> None:
        """Reserves memory for an adapter before it is read.

        Args:
            number: of the call that loads it.
            max_bytes: maximum of all of this memory; None: no limit.
            num_bytes: what the adapter takes while it is read.

        Raises:
            RequestError: there is not enough memory left: 429, or 400 if there never is.
        """
        with self._lock:
            taken = self.held_bytes + sum(self._reserved.values())
            if max_bytes is not None and taken + num_bytes > max_bytes:
                why = f"reading the adapter takes {num_bytes / GB:.3g} GB of host memory"
                limit = f"--lora-routes-memory-gb allows {max_bytes / GB:.3g} GB"
                if num_bytes > max_bytes:
                    fix = "raise it, or load the adapter with --lora or --lora-config"
                    raise refuse("lora_path", f"{why}, but {limit} for all adapters of requests; {fix}")
                what = f"{limit}, of which other adapters of requests take {taken / GB:.3g} GB"
                fix = "unload one, or raise the limit"
                raise refuse("lora_path", f"{why}, but {what}; {fix}", status=429, code="too_many_adapters")
            self._reserved[number] = num_bytes

    def release(self, number: int) -> None:
        """Releases the reservation of a call, if it has one."""
        with self._lock:
            self._reserved.pop(number, None)
