"""A backend's adapters that come and go: read by threads of their own, so that no step waits for a file."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from runtime.errors import ConfigError
from runtime.request.engine_messages import RequestSpec
from runtime.server.messages import AdapterResult

log = logging.getLogger("unmask.backend")

POLL_SECONDS = 0.02  # how soon an idle backend sees that a file has been read


class AdapterWorker:
    """`say` sends news to the frontend; `add` hands the engine a request that waited for its adapter."""

    def __init__(self, engine: Any, send: Callable[[AdapterResult], None], add: Callable[[RequestSpec], None]) -> None:
        self.engine = engine
        self.send = send
        self.add = add
        self._loading: dict[str, list[RequestSpec]] = {}  # with the requests that wait for them
        self._completed_reads: list[tuple[str, Any]] = []  # by the threads: an adapter, or what was wrong
        self._unloading: set[str] = set()

    @property
    def pending(self) -> bool:
        return bool(self._loading or self._unloading)

    def load(self, name: str, uri: str) -> None:
        self._loading.setdefault(name, [])
        self._unloading.discard(name)
        threading.Thread(target=self._read_adapter, args=(name, uri), name=f"adapter {name}", daemon=True).start()

    def unload(self, name: str) -> None:
        self._unloading.add(name)

    def defer(self, spec: RequestSpec) -> bool:
        """Whether a request is kept here until its adapter has come."""
        if spec.adapter not in self._loading:
            return False
        self._loading[spec.adapter].append(spec)
        return True

    def poll(self) -> None:
        """Between steps: take what has been read, and forget what nobody uses any more."""
        while self._completed_reads:
            name, found = self._completed_reads.pop(0)
            error = found if isinstance(found, str) else self._activate(name, found)
            self.send(AdapterResult(name, loaded=error is None, error=error))
            for spec in self._loading.pop(name, []):
                self.add(spec)
        for name in sorted(self._unloading):
            if name not in self._loading and self.engine.unload_adapter(name):
                self._unloading.discard(name)
                self.send(AdapterResult(name, loaded=False))

    def _read_adapter(self, name: str, uri: str) -> None:
        try:
            self._completed_reads.append((name, self.engine.lora_manager.read(uri)))
        except ConfigError as error:
            self._completed_reads.append((name, str(error)))
        except Exception as error:
            log.exception("adapter %s could not be read", name)
            self._completed_reads.append((name, f"adapter {uri} could not be read: {type(error).__name__}: {error}"))

    def _activate(self, name: str, adapter: Any) -> str | None:
        try:
            self.engine.lora_manager.load(name, adapter)
        except ConfigError as error:
            return str(error)
        except Exception as error:
            log.exception("adapter %s could not be loaded", name)
            return f"adapter {name!r} could not be loaded: {type(error).__name__}: {error}"
        return None
