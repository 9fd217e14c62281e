"""Which adapters a server offers: loaded into every replica, or told why not; from flags, a file, or by clients."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from runtime.config import EngineConfig, ServerConfig
from runtime.config.adapters import DEFAULT_MAX_LORAS, check_adapter_name
from runtime.errors import ConfigError, RequestError
from runtime.server.lora_config import read_lora_config
from runtime.server.messages import AdapterNews, LoadAdapter, UnloadAdapter
from runtime.server.offered import By, Entry, Offered

if TYPE_CHECKING:
    from runtime.server.supervisor import Supervisor

log = logging.getLogger("unmask.adapters")

LOOK_SECONDS = 2.0  # between looks at --lora-config
RETRY_SECONDS = 30.0  # after which one that failed is tried again


class Adapters(Offered):
    """`supervisor` is set once it exists."""

    def __init__(self, config: ServerConfig) -> None:
        super().__init__(config.lora_config is None)
        self.config = config
        self.supervisor: Supervisor | None = None
        self.changed: Callable[[], None] = lambda: None  # is told that one stands differently
        self.table |= {name: Entry(uri, "flag", "ready") for name, uri in config.engine.adapters.items()}
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)  # one change of a name at a time
        self._changes: set[asyncio.Task[None]] = set()
        self._awaited: dict[tuple[int, str], asyncio.Future[str | None]] = {}
        self._told = ""  # of a --lora-config that cannot be read

    async def load(self, name: str, uri: str, by: By) -> None:
        try:
            check_adapter_name(name)
        except ConfigError as error:
            raise RequestError(f"lora_name: {error}", param="lora_name") from None
        async with self._turns[name]:
            await self._load(name, uri, by)

    async def unload(self, name: str) -> None:
        if name not in self.table:
            return  # names that nobody has are kept nowhere
        async with self._turns[name]:
            await self._unload(name)

    async def _load(self, name: str, uri: str, by: By) -> None:
        if name in self.config.model_names:
            refusal = f"lora_name: {name!r} is the model's own name; take another"
            if by == "config":
                self._fails(name, Entry(uri, by), refusal)
            raise RequestError(refusal, param="lora_name")
        before = self.table.get(name)
        if before is None or before.state == "failed":
            self.table[name] = Entry(uri, by, tried=time.monotonic())
        wrong = await self._everywhere(name, LoadAdapter(name, uri))
        if wrong is None:
            self.table[name].state, self.table[name].message = "ready", ""
            self.changed()
            log.info("adapter %s is loaded from %s", name, uri)
            return
        if before is not None and before.state == "ready":
            raise RequestError(wrong, param="lora_path")  # what is loaded under this name stays
        await self._everywhere(name, UnloadAdapter(name))  # of those replicas that took it
        if before is None and by == "route":
            del self.table[name]
        else:
            self._fails(name, Entry(uri, by), wrong)
        raise RequestError(wrong, param="lora_path")

    def _fails(self, name: str, entry: Entry, why: str) -> None:
        before = self.table.get(name)
        if before is None or before.message != why:
            log.error("adapter %s is not served: %s", name, why)
        entry.state, entry.message, entry.tried = "failed", why, time.monotonic()
        self.table[name] = entry
        self.changed()

    async def _unload(self, name: str) -> None:
        entry = self.table.get(name)
        if entry is None:
            return
        if name == self.config.engine.default_adapter:
            raise RequestError(f"lora_name: all requests have {name!r} (--use-lora), so it stays", param="lora_name")
        entry.state = "leaving"
        self.changed()
        await self._everywhere(name, UnloadAdapter(name))
        del self.table[name]
        self.changed()
        log.info("adapter %s is unloaded", name)

    async def _everywhere(self, name: str, message: LoadAdapter | UnloadAdapter) -> str | None:
        """Have each replica that serves do it; the first error. One that goes meanwhile is told when it is back."""
        assert self.supervisor is not None
        replicas = self.supervisor.ready
        if not replicas:
            raise RequestError("no backend serves at the moment; try again", status=503, code="no_backend")
        loop = asyncio.get_running_loop()
        waiting = {(replica, name): loop.create_future() for replica in replicas}
        self._awaited |= waiting
        for replica in replicas:
            self.supervisor.send(replica, message)
        errors = await asyncio.gather(*waiting.values())
        return next((error for error in errors if error is not None), None)

    # -- what the supervisor tells

    def on_news(self, replica: int, news: AdapterNews) -> None:
        awaited = self._awaited.pop((replica, news.name), None)
        if awaited is not None and not awaited.done():
            awaited.set_result(news.error)
        elif news.error is not None and news.name in self.table:  # of a replica that came back
            self._fails(news.name, self.table[news.name], news.error)

    def on_ready(self, replica: int) -> None:
        """A replica serves, with what it was started with: have it take what has come since."""
        assert self.supervisor is not None
        for name, entry in self.table.items():
            if entry.state in ("ready", "loading") and entry.by != "flag":  # else it would miss what others just read
                self.supervisor.send(replica, LoadAdapter(name, entry.uri))

    def engine_config(self) -> EngineConfig:
        """What a replica is started with: of those that flags name, what is still there."""
        engine = self.config.engine
        if not engine.lora:
            return engine
        kept = [f"{name}={entry.uri}" for name, entry in self.table.items() if entry.by == "flag"]
        return dataclasses.replace(engine, lora=tuple(kept), max_loras=engine.max_loras or DEFAULT_MAX_LORAS)

    def on_down(self, replica: int) -> None:
        for place in [place for place in self._awaited if place[0] == replica]:
            awaited = self._awaited.pop(place)
            if not awaited.done():
                awaited.set_result(None)

    # -- --lora-config

    async def follow(self) -> None:
        """Serve what --lora-config names, for ever."""
        assert self.supervisor is not None
        path = self.config.lora_config
        while path is not None:
            if self.supervisor.ready:
                try:
                    wanted = await asyncio.to_thread(read_lora_config, path)
                except ConfigError as error:
                    if str(error) != self._told:
                        log.error("%s; the adapters named before stay", error)
                    self._told = str(error)
                else:
                    self._told = ""
                    await self._become(wanted)
                self.settled = True
            await asyncio.sleep(LOOK_SECONDS if self.settled else LOOK_SECONDS / 10)

    async def _become(self, wanted: dict[str, str]) -> None:
        """Every change by itself: one may wait long for answers under way."""
        mine = {name for name, entry in self.table.items() if entry.by == "config"}
        for name in mine | wanted.keys():
            if not self._turns[name].locked() and self._differs(name, wanted.get(name)):
                change = asyncio.create_task(self._follow(name, wanted.get(name)))
                self._changes.add(change)
                change.add_done_callback(self._changes.discard)
        if not self.settled:
            await asyncio.gather(*self._changes)

    def _differs(self, name: str, uri: str | None) -> bool:
        entry = self.table.get(name)
        if entry is None or entry.by != "config":
            return entry is None
        return uri != entry.uri or (entry.state == "failed" and time.monotonic() - entry.tried > RETRY_SECONDS)

    async def _follow(self, name: str, uri: str | None) -> None:
        with contextlib.suppress(RequestError):  # told in the table and in the log
            entry = self.table.get(name)
            if entry is not None and entry.uri != uri:
                await self.unload(name)
            if uri is not None:
                await self.load(name, uri, "config")
