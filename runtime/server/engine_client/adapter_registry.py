"""LoRA adapters of the server, from flags, --lora-config or routes: their state, and loading them in all replicas."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakValueDictionary

from runtime.config import EngineConfig, ServerConfig
from runtime.config.adapter_names import DEFAULT_MAX_LORAS, check_adapter_name
from runtime.config.loading import load_yaml, yaml_location
from runtime.errors import ConfigError, RequestError
from runtime.request.validation import refuse
from runtime.server.engine_client.ipc_protocol import CallResult, LoadAdapter, UnloadAdapter
from runtime.weights.checkpoint_files import read_flag_file

if TYPE_CHECKING:
    from runtime.server.engine_client.supervisor import Supervisor

log = logging.getLogger("unmask.adapters")

POLL_SECONDS = 2.0  # interval between reads of --lora-config
RETRY_SECONDS = 30.0  # time until an adapter of --lora-config that failed to load is loaded again
MAX_ROUTE_ADAPTERS = 64  # adapters that requests may have loaded at once: each takes host memory of every replica
MAX_ROUTE_LOADS = 4  # loads of requests that run at once: each takes a thread of every replica while it reads
ROUTE_MEMORY_FRACTION = 1 / 8  # of host memory, for adapters that requests have loaded
CGROUP_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
MAX_CONFIG_BYTES = 1 << 20  # maximum size of each file of --lora-config
CONFIG_FLAG = "--lora-config"

AdapterState = Literal["loading", "ready", "failed", "leaving"]
Source = Literal["flag", "config", "route"]


@dataclass
class AdapterEntry:
    """An adapter under its name.

    Attributes:
        message: reason of the state "failed".
        last_attempt: time of the last attempt to load it, monotonic seconds.
    """

    uri: str
    source: Source
    state: AdapterState = "loading"
    message: str = ""
    last_attempt: float = 0.0


def max_route_bytes(config: ServerConfig) -> int:
    """Returns how much host memory adapters that requests load may take in each process of the engines.

    By default it is a fraction of what the machine or container has, in equal parts.
    """
    if config.lora_routes_memory_gb is not None:
        return int(config.lora_routes_memory_gb * 1e9)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # only a container with cgroup v2 has the file; it may say "max"
        memory = min(memory, int(CGROUP_MEMORY_LIMIT.read_text()))
    ranks_per_host = config.engine.tensor_parallel_size // config.num_nodes
    return int(memory * ROUTE_MEMORY_FRACTION / (config.data_parallel_size * ranks_per_host))


class AdapterRegistry:
    """State of all adapters.

    Attributes:
        entries: adapters by name.
        settled: each adapter that --lora-config listed at startup has been loaded or has failed.
    """

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
        """Returns the state of each adapter, for /startup. The URI shows which version of the list is active."""
        return {
            name: {"state": entry.state, "uri": entry.uri, **({"message": entry.message} if entry.message else {})}
            for name, entry in sorted(self.entries.items())
        }


def no_longer_served(name: str) -> RequestError:
    """Returns the error of a request whose adapter was unloaded while it was prepared."""
    sentence = f"{name!r} is no longer served; GET /v1/models lists those that are"
    return refuse("model", sentence, status=404, code="model_not_found")


async def _no_wait() -> None:
    """Returns immediately: this process has no frontend processes."""


class LocalAdapterRegistry(AdapterRegistry):
    """Adapters of the backends that this process supervises."""

    def __init__(self, config: ServerConfig, supervisor: Supervisor) -> None:
        super().__init__(config.lora_config is None)
        self.config = config
        self.supervisor = supervisor
        self.on_change: Callable[[], None] = lambda: None  # called when the state of an adapter changes
        # waits until all frontend processes have received the current state
        self.wait_acknowledged: Callable[[], Awaitable[None]] = _no_wait
        self.entries |= {name: AdapterEntry(uri, "flag", "ready") for name, uri in config.engine.adapters.items()}
        # One change per name at a time. Clients choose the names, so a lock exists only while a change uses it.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._changes: set[asyncio.Task[None]] = set()
        self._route_loads = asyncio.Semaphore(MAX_ROUTE_LOADS)
        self._max_route_bytes = max_route_bytes(config)
        self._config_error = ""  # last error of reading --lora-config

    async def load(self, name: str, uri: str, *, by: Source) -> None:
        """Loads an adapter in all ready replicas, or in none. Loads of requests wait while too many of them run.

        Raises:
            RequestError: the adapter could not be loaded; the message has the reason.
        """
        try:
            check_adapter_name(name)
        except ConfigError as error:
            raise refuse("lora_name", str(error)) from None
        async with self._lock(name), self._route_loads if by == "route" else contextlib.nullcontext():
            if by == "route" and name not in self.entries and self._num_of_routes() >= MAX_ROUTE_ADAPTERS:
                sentence = f"requests have loaded {MAX_ROUTE_ADAPTERS} adapters, which is the limit; unload one first"
                raise refuse("lora_name", sentence, status=429, code="too_many_adapters")
            await self._load(name, uri, by)

    def _num_of_routes(self) -> int:
        return sum(entry.source == "route" for entry in self.entries.values())

    async def unload(self, name: str) -> None:
        """Refuses new requests for an adapter, and returns when the last request that uses it has ended."""
        if name in self.entries:  # unknown names get no lock
            async with self._lock(name):
                await self._unload(name)

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def _load(self, name: str, uri: str, by: Source) -> None:
        if name in self.config.model_names:
            refusal = f"lora_name: {name!r} is the name of the model; choose another"
            if by == "config":
                self._fail(name, AdapterEntry(uri, by), refusal)
            raise RequestError(refusal, param="lora_name")
        ready = self.supervisor.require_ready()  # no entry without a replica that loads it
        before = self.entries.get(name)
        if before is None or before.state == "failed":
            self.entries.pop(name, None)  # it is the last one: `on_ready` reloads in the order of the loads
            self.entries[name] = AdapterEntry(uri, by, last_attempt=time.monotonic())
        failure = await self._broadcast(ready, self._load_message(name, uri, by))
        if failure is None:
            self.entries[name].state, self.entries[name].message = "ready", ""
            self.on_change()
            log.info("LoRA adapter %s loaded from %s", name, uri)
            return
        wrong = str(failure.error)
        code = "too_many_adapters" if failure.status == 429 else None
        error = RequestError(wrong, param="lora_path", status=failure.status, code=code)
        if before is not None and before.state == "ready":
            raise error  # the adapter that is loaded under this name stays
        # some replicas may have loaded it, those that became ready meanwhile too
        await self._broadcast(self.supervisor.ready, UnloadAdapter(name))
        if before is None and by == "route":
            del self.entries[name]
        else:
            self._fail(name, AdapterEntry(uri, by), wrong)
        raise error

    def _fail(self, name: str, entry: AdapterEntry, why: str) -> None:
        before = self.entries.get(name)
        if before is None or before.message != why:
            log.error("Failed to load LoRA adapter %s: %s", name, why)
        entry.state, entry.message, entry.last_attempt = "failed", why, time.monotonic()
        self.entries[name] = entry
        self.on_change()

    async def _unload(self, name: str) -> None:
        entry = self.entries.get(name)
        if entry is None:
            return
        if name == self.config.engine.default_adapter:
            raise refuse("lora_name", f"{name!r} is the default adapter (--use-lora) and cannot be unloaded")
        before, entry.state = entry.state, "leaving"
        self.on_change()
        try:
            await self.wait_acknowledged()  # afterwards no frontend process accepts requests that name it
            await self._broadcast(self.supervisor.require_ready(), UnloadAdapter(name))
        except RequestError:
            entry.state = before
            self.on_change()
            raise
        del self.entries[name]
        self.on_change()
        log.info("LoRA adapter %s unloaded", name)

    async def _broadcast(self, replicas: list[int], message: LoadAdapter | UnloadAdapter) -> CallResult | None:
        """Sends a message to replicas and returns the first result with an error, or None.

        `on_ready` sends the adapters again to a replica that restarts.
        """
        results = await asyncio.gather(*(self.supervisor.call(replica, message) for replica in replicas))
        return next((result for result in results if result is not None and result.error is not None), None)

    # -- calls of the supervisor

    def on_ready(self, replica: int) -> None:
        """Loads the adapters that are not part of `engine_config` in a replica that has become ready."""
        # "loading" too, last: this replica did not receive the message of the load in progress
        for state in ("ready", "loading"):
            for name, entry in self.entries.items():
                if entry.state == state and entry.source != "flag":
                    message = self._load_message(name, entry.uri, entry.source, reload=state == "ready")
                    loaded = self.supervisor.call(replica, message)
                    loaded.add_done_callback(partial(self._on_reloaded, name))

    def _load_message(self, name: str, uri: str, by: Source, *, reload: bool = False) -> LoadAdapter:
        limited = by == "route" and not reload  # a reload takes what the adapter took before
        return LoadAdapter(name, uri, by == "route", self._max_route_bytes if limited else None, reload)

    def _on_reloaded(self, name: str, loaded: asyncio.Future[CallResult | None]) -> None:
        result = loaded.result()
        if result is not None and result.error is not None and name in self.entries:
            self._fail(name, self.entries[name], result.error)

    def engine_config(self) -> EngineConfig:
        """Returns the configuration of a new replica. Its adapters are those of the flags that are not unloaded."""
        engine = self.config.engine
        if not engine.lora:
            return engine
        lora = [f"{name}={entry.uri}" for name, entry in self.entries.items() if entry.source == "flag"]
        return dataclasses.replace(engine, lora=tuple(lora), max_loras=engine.max_loras or DEFAULT_MAX_LORAS)

    # -- --lora-config

    async def watch_config(self) -> None:
        """Loads and unloads adapters after changes of --lora-config, until it is cancelled."""
        path = self.config.lora_config
        requested: dict[str, str] = {}
        read: object = None  # stamp of what was read last
        while path is not None:
            if self.supervisor.ready:
                try:
                    stamp = await asyncio.to_thread(lora_config_stamp, path)
                    if stamp is None or stamp != read:
                        requested = await asyncio.to_thread(read_lora_config, path)
                        read = stamp
                except ConfigError as error:
                    if str(error) != self._config_error:
                        log.error("Could not read --lora-config: %s; keeping the current adapters. Fix the file", error)
                    self._config_error = str(error)
                else:
                    self._config_error = ""
                    await self._reconcile(requested)
                self.settled = True
            await asyncio.sleep(POLL_SECONDS if self.settled else POLL_SECONDS / 10)

    async def _reconcile(self, requested: dict[str, str]) -> None:
        """Starts one task per changed adapter, because an unload waits for running requests."""
        mine = {name for name, entry in self.entries.items() if entry.source == "config"}
        for name in mine | requested.keys():
            if not self._lock(name).locked() and self._needs_change(name, requested.get(name)):
                change = asyncio.create_task(self._apply(name, requested.get(name)))
                self._changes.add(change)
                change.add_done_callback(self._changes.discard)
        if not self.settled:
            await asyncio.gather(*self._changes)

    def _needs_change(self, name: str, uri: str | None) -> bool:
        entry = self.entries.get(name)
        if entry is None or entry.source != "config":
            return entry is None
        return uri != entry.uri or (entry.state == "failed" and time.monotonic() - entry.last_attempt > RETRY_SECONDS)

    async def _apply(self, name: str, uri: str | None) -> None:
        with contextlib.suppress(RequestError):  # recorded in the entry and in the log
            entry = self.entries.get(name)
            if entry is not None and entry.uri != uri:
                await self.unload(name)
            if uri is not None:
                await self.load(name, uri, by="config")


def lora_config_stamp(path: str) -> object:
    """Returns a value that changes with the content of a `read_lora_config`; None if the path cannot be read."""
    try:
        files = [os.path.join(path, name) for name in sorted(os.listdir(path))] if os.path.isdir(path) else [path]
        found = [(file, os.stat(file)) for file in files]
    except OSError:
        return None
    return [(file, one.st_mtime_ns, one.st_ino, one.st_dev, one.st_size) for file, one in found]


def read_lora_config(path: str) -> dict[str, str]:
    """Returns the URIs of adapters by their names.

    Args:
        path: a file with a YAML or JSON mapping, or a directory with one file per name, such as a mounted ConfigMap.

    Raises:
        ConfigError: the path cannot be read, or its content is no mapping of names to URIs.
    """
    import yaml

    data: Any
    try:
        if os.path.isdir(path):
            names = sorted(name for name in os.listdir(path) if not name.startswith("."))
            data = {name: read_flag_file(Path(path) / name, CONFIG_FLAG, MAX_CONFIG_BYTES).strip() for name in names}
        else:
            data = load_yaml(read_flag_file(path, CONFIG_FLAG, MAX_CONFIG_BYTES))
    except OSError as error:
        raise ConfigError(f"{CONFIG_FLAG}: {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{CONFIG_FLAG}: {path} cannot be parsed{yaml_location(error)}") from None
    found: dict[str, str] = {}
    wrong = f"{CONFIG_FLAG}: {path} must map names of adapters to where they are"
    if not isinstance(data, dict | None):
        raise ConfigError(wrong)
    for name, uri in (data or {}).items():
        if not isinstance(name, str) or not isinstance(uri, str) or not uri:
            raise ConfigError(f"{wrong}, and {name!r} does not")
        found[check_adapter_name(name)] = uri
    return found
