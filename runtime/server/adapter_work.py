"""A backend's adapters that come and go: read by threads of their own, so that no step waits for a file."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from runtime.errors import ConfigError
from runtime.request.engine_messages import RequestSpec
from runtime.server.messages import AdapterNews

log = logging.getLogger("unmask.backend")

LOOK_SECONDS = 0.02  # how soon an idle backend sees that a file has been read


class AdapterWork:
    """`say` sends news to the frontend; `add` hands the engine a request that waited for its adapter."""

    def __init__(self, engine: Any, say: Callable[[AdapterNews], None], add: Callable[[RequestSpec], None]) -> None:
        self.engine = engine
        self.say = say
        self.add = add
        self._coming: dict[str, list[RequestSpec]] = {}  # with the requests that wait for them
        self._read: list[tuple[str, Any]] = []  # by the threads: an adapter, or what was wrong
        self._leaving: set[str] = set()

    @property
    def pending(self) -> bool:
        return bool(self._coming or self._leaving)

    def load(self, name: str, uri: str) -> None:
        self._coming.setdefault(name, [])
        self._leaving.discard(name)
        threading.Thread(target=self._reads, args=(name, uri), name=f"adapter {name}", daemon=True).start()

    def unload(self, name: str) -> None:
        self._leaving.add(name)

    def waits(self, spec: RequestSpec) -> bool:
        """Whether a request is kept here until its adapter has come."""
        if spec.adapter not in self._coming:
            return False
        self._coming[spec.adapter].append(spec)
        return True

    def look(self) -> None:
        """Between steps: take what has been read, and forget what nobody uses any more."""
        while self._read:
            name, found = self._read.pop(0)
            error = found if isinstance(found, str) else self._take(name, found)
            self.say(AdapterNews(name, loaded=error is None, error=error))
            for spec in self._coming.pop(name, []):
                self.add(spec)
        for name in sorted(self._leaving):
            if name not in self._coming and self.engine.unload_adapter(name):
                self._leaving.discard(name)
                self.say(AdapterNews(name, loaded=False))

    def _reads(self, name: str, uri: str) -> None:
        try:
            self._read.append((name, self.engine.lora_manager.read(uri)))
        except ConfigError as error:
            self._read.append((name, str(error)))
        except Exception as error:
            log.exception("adapter %s could not be read", name)
            self._read.append((name, f"adapter {uri} could not be read: {type(error).__name__}: {error}"))

    def _take(self, name: str, adapter: Any) -> str | None:
        try:
            self.engine.lora_manager.load(name, adapter)
        except ConfigError as error:
            return str(error)
        except Exception as error:
            log.exception("adapter %s could not be loaded", name)
            return f"adapter {name!r} could not be loaded: {type(error).__name__}: {error}"
        return None
