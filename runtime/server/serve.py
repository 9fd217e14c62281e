"""Runs the server: opens the port, loads the model, serves requests, and drains on SIGTERM (docs/server.md#ending)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from runtime.config import ServerConfig
from runtime.errors import ConfigError
from runtime.server import environment, logs
from runtime.server.access import Load
from runtime.server.descriptors import make_room
from runtime.server.frontends.crew import Crew
from runtime.server.frontends.reports import Reports
from runtime.server.http_protocol.listener import describe, is_reachable, listen, listener_url
from runtime.server.http_protocol.malloc_trim import use_one_arena
from runtime.server.metrics import Metrics
from runtime.server.observed import Observed
from runtime.server.socket_dir import socket_dir
from runtime.server.supervisor import BACKEND_COMMAND, Supervisor
from runtime.server.table import Table
from runtime.server.talking import check_parsers
from runtime.weights.tokenizer_formats import use_temporary_directory

if TYPE_CHECKING:
    from runtime.server.speaking import Speaking

log = logging.getLogger("unmask.server")


def run(config: ServerConfig, backend_command: tuple[str, ...] = BACKEND_COMMAND) -> int:
    """Serve until told to stop; the process's exit code. Raises ConfigError when the server cannot start."""
    environment.set_up()
    use_one_arena()
    check_parsers(config)
    logs.set_up(config.log_level, config.log_format, "frontend")
    for note in config.notes:
        log.warning("%s", note)
    if config.node_rank:
        from runtime.distributed.node import run_node  # and arrays with it, which a frontend has no use for

        return run_node(config, (sys.executable, "-m", "runtime.server.rank", config.log_level, config.log_format))
    config = config.replace(max_connections=make_room(config.max_connections, config.data_parallel_size))
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen(config.host, config.port))
        place = stack.enter_context(socket_dir())
        use_temporary_directory(place / "tokenizers")
        server = Server(config, listener, place, backend_command, stack.close)
        return uvloop.run(server.serve())


def _addresses(config: ServerConfig, place: Path) -> tuple[str, str]:
    """Where frontend and backends meet: as configured, else there."""
    if config.zmq_command_addr is not None and config.zmq_event_addr is not None:
        return config.zmq_command_addr, config.zmq_event_addr
    return f"ipc://{place}/commands", f"ipc://{place}/events"


class Server:
    """The process that has the backends and the table of all requests: it speaks HTTP itself, or others do for it.

    `place`: a directory that nobody else may enter.
    """

    def __init__(
        self,
        config: ServerConfig,
        listener: socket.socket,
        place: Path,
        backend_command: tuple[str, ...],
        clean_up: Callable[[], object],
    ) -> None:
        self.config = config
        self.listener = listener
        self.place = place
        self.clean_up = clean_up
        self.reports = Reports() if config.frontend_processes > 1 else None
        observed = Observed()
        self.metrics = Metrics(config.model_names[0], self.reports or observed)
        self.table = Table(config, observed, self.metrics)
        addresses = _addresses(config, place)
        self.supervisor = Supervisor(config, self.table, *addresses, self._give_up, backend_command)
        for user in (self.table, self.table.adapters, self.table.profiler):
            user.supervisor = self.supervisor
        self.supervisor.engine_config = self.table.adapters.engine_config
        self.metrics.backends.set_function(lambda: len(self.supervisor.ready))
        self.metrics.beside(self._others)
        self.speaking: Speaking | Crew | None = None
        self.failure: str | None = None  # why the server could not start
        self.ended = asyncio.Event()
        self.signals = 0
        self.drainer: asyncio.Task[None] | None = None

    def _others(self) -> dict[str, int]:
        """Pids of the processes that live beside this one, by the name of their place."""
        found = ((r.index, r.process) for r in self.supervisor.replicas)
        backends = {f"backend-{i}": p.pid for i, p in found if p is not None and p.returncode is None}
        return {**backends, **(self.speaking.pids() if self.speaking is not None else {})}

    async def serve(self) -> int:
        """Serve to the end. Raises ConfigError with the reason when loading failed."""
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self._on_signal, sig)
        await self.supervisor.start()
        self.speaking = self._speaking()
        if self.signals:
            self.speaking.say_goodbye()
        self._tell()
        told = asyncio.create_task(Load(self.metrics.figures).run())
        adapters = asyncio.create_task(self.table.adapters.follow())
        await self.speaking.start()
        try:
            await self.ended.wait()
        finally:
            told.cancel()
            adapters.cancel()
            await self.speaking.stop()
            await self.supervisor.stop("the server ends")
            self.speaking.close()
        if self.failure is not None:
            raise ConfigError(self.failure)
        return 0

    def _speaking(self) -> Speaking | Crew:
        if self.reports is not None:
            board = self.place / "board"
            return Crew(self.config, self.table, self.reports, self.listener, board, self._give_up)
        # only now, so that the backends load while this process imports; connections wait in the kernel
        from runtime.server.speaking import Speaking

        return Speaking(self.config, self.table, self.listener, self._give_up)

    def _tell(self) -> None:
        config = self.config
        url, scope = listener_url(config.host, self.listener), describe(self.listener)
        names = ", ".join(config.model_names)
        log.info("listening on %s%s, serving %s", url, f" ({scope})" if scope else "", names)
        if config.engine.model is None:
            log.info("no --model was given: this is the small demo checkpoint shipped with unmask")
        if not (config.api_key or config.api_key_file) and is_reachable(self.listener):
            log.warning(
                "no API key is set and the server is open to the network: set --api-key-file, or --host 127.0.0.1"
            )

    def _give_up(self, sentence: str) -> None:
        if not self.ended.is_set():
            self.failure = sentence
            self.ended.set()

    def _on_signal(self, sig: signal.Signals) -> None:
        self.signals += 1
        if self.signals > 1:
            log.warning("%s again: ending at once", sig.name)
            self.supervisor.kill()
            if self.speaking is not None:
                self.speaking.kill()
            self.clean_up()
            sys.stderr.flush()
            os._exit(128 + sig)
        if self.speaking is None:
            self.ended.set()  # nothing has been served yet
            return
        self.drainer = asyncio.create_task(self._drain(sig, self.speaking))

    async def _drain(self, sig: signal.Signals, speaking: Speaking | Crew) -> None:
        """Serve on for --drain-delay, close the listener, let what runs finish."""
        log.info("%s: draining, %d requests in flight", sig.name, speaking.in_flight)
        speaking.say_goodbye()
        await asyncio.sleep(self.config.drain_delay)
        await speaking.finish()
        log.info("drained")
        self.ended.set()
