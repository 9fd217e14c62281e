"""Runs the server: opens the port, loads the model, serves requests, and drains on SIGTERM.

See docs/operations/server.md#shutdown.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from runtime.child_process import module_command
from runtime.config import ServerConfig
from runtime.config.flags import SERVER_COMPILE_CACHE
from runtime.errors import ConfigError
from runtime.parsers.formats import check_parsers
from runtime.plugins import load_plugins
from runtime.server import env, logs
from runtime.server.engine_client.client import LocalEngineClient
from runtime.server.engine_client.ipc_sockets import socket_dir
from runtime.server.engine_client.supervisor import BACKEND_COMMAND, Supervisor, pids
from runtime.server.env import raise_open_files_limit
from runtime.server.frontend_processes.manager import FrontendProcessManager
from runtime.server.frontend_processes.metrics import FrontendMetrics
from runtime.server.http_protocol.listener import describe, is_reachable, listen, listener_url
from runtime.server.metrics import Metrics, ProcessMetrics, RequestMetrics, StatsLogger
from runtime.weights.tokenizer_json import use_temporary_directory

if TYPE_CHECKING:
    from runtime.server.http_server import HttpFrontend


log = logging.getLogger("unmask.server")


def run(config: ServerConfig, backend_command: tuple[str, ...] = BACKEND_COMMAND) -> int:
    """Serves until a signal. Returns the exit code. Raises ConfigError when the server cannot start."""
    env.configure_process()
    logs.configure_logging(config.log_level, config.log_format, "frontend")
    load_plugins(config.engine.plugin)
    check_parsers(config.tool_call_parser, config.reasoning_parser)
    for note in config.notes:
        log.warning("%s", note)
    if config.node_rank:
        from runtime.executor.rank_launcher import run_node  # and arrays with it, which a frontend has no use for

        command = (*module_command("runtime.server.engine_process.rank"), config.log_level, config.log_format)
        with _temporary_directory():
            return run_node(config, command)
    config = config.replace(max_connections=raise_open_files_limit(config.max_connections, config.data_parallel_size))
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(listen(config.host, config.port))
        directory = stack.enter_context(_temporary_directory())
        server = Server(config, listener, directory, backend_command, stack.close)
        return uvloop.run(server.serve())


@contextlib.contextmanager
def _temporary_directory() -> Iterator[Path]:
    """Yields a directory for sockets and for files of this process and its children, which is removed at the end."""
    with socket_dir() as directory:
        use_temporary_directory(directory / "tokenizers")
        os.environ[SERVER_COMPILE_CACHE] = str(directory / "compiled")
        yield directory


class Server:
    """The main process, with the backends and all live requests. It serves HTTP itself or through frontend processes.

    `socket_directory`: a directory that other users cannot access.
    """

    def __init__(
        self,
        config: ServerConfig,
        listener: socket.socket,
        socket_directory: Path,
        backend_command: tuple[str, ...],
        clean_up: Callable[[], object],
    ) -> None:
        self.config = config
        self.listener = listener
        self.clean_up = clean_up
        several = config.frontend_processes > 1
        self.frontend_metrics = FrontendMetrics(socket_directory / "metrics") if several else None
        observed = RequestMetrics()
        self.metrics = Metrics(config.model_names[0], self.frontend_metrics or observed)
        if self.frontend_metrics is not None:
            self.frontend_metrics.attach(self.metrics.engine_metrics)
        self.supervisor = Supervisor(config, socket_directory, self._give_up, backend_command)
        self.engine_client = LocalEngineClient(config, observed, self.metrics, self.supervisor)
        self.metrics.backends.set_function(lambda: len(self.supervisor.ready))
        self.metrics.registry.register(ProcessMetrics(self._others))
        self.frontend: HttpFrontend | FrontendProcessManager | None = None
        self.failure: str | None = None  # why the server could not start
        self.ended = asyncio.Event()
        self.signals = 0
        self.drainer: asyncio.Task[None] | None = None

    def _others(self) -> dict[str, int]:
        """Returns pids of backends and frontend processes by name."""
        frontends = self.frontend.frontends if isinstance(self.frontend, FrontendProcessManager) else []
        return pids([*self.supervisor.replicas, *frontends])

    async def serve(self) -> int:
        """Serve to the end. Raises ConfigError with the reason when loading failed."""
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self._on_signal, sig)
        await self.supervisor.start()
        self.frontend = self._make_frontend()
        if self.signals:
            self.frontend.begin_drain()
        self._log_listening()
        stats_logger = asyncio.create_task(StatsLogger(self.metrics.engine_metrics).run())
        adapters = asyncio.create_task(self.engine_client.adapters.watch_config())
        await self.frontend.start()
        try:
            await self.ended.wait()
        finally:
            stats_logger.cancel()
            adapters.cancel()
            await self.frontend.stop()
            await self.supervisor.stop("the server ends")
        if self.failure is not None:
            raise ConfigError(self.failure)
        return 0

    def _make_frontend(self) -> HttpFrontend | FrontendProcessManager:
        if self.frontend_metrics is not None:
            return FrontendProcessManager(self.engine_client, self.listener, self.frontend_metrics, self._give_up)
        # only now, so that the backends load while this process imports; connections wait in the kernel
        from runtime.server.http_server import HttpFrontend

        return HttpFrontend(self.engine_client, self.listener, self._give_up)

    def _log_listening(self) -> None:
        config = self.config
        url, scope = listener_url(config.host, self.listener), describe(self.listener)
        where = f"{url} ({scope})" if scope else url
        log.info("listening on %s, serving %s", where, ", ".join(config.model_names))
        log.info("web page: %s, base URL of the API: %s/v1", url, url)
        if config.engine.model is None:
            log.info("no --model was given: this is the small demo checkpoint shipped with unmask")
        if not config.requires_key and is_reachable(self.listener):
            log.warning(
                "No API key set and listening on %s: the server is open to the network. Set --api-key-file, or "
                "listen on --host 127.0.0.1",
                config.host,
            )

    def _give_up(self, sentence: str) -> None:
        if not self.ended.is_set():
            self.failure = sentence
            self.ended.set()

    def _on_signal(self, sig: signal.Signals) -> None:
        self.signals += 1
        if self.signals > 1:
            log.warning("second %s: exiting without waiting for running requests", sig.name)
            self.supervisor.kill()
            if isinstance(self.frontend, FrontendProcessManager):
                self.frontend.kill()
            self.clean_up()
            logging.shutdown()
            os._exit(128 + sig)
        if self.frontend is None:
            self.ended.set()  # nothing has been served yet
            return
        self.drainer = asyncio.create_task(self._drain(sig, self.frontend))

    async def _drain(self, sig: signal.Signals, frontend: HttpFrontend | FrontendProcessManager) -> None:
        """Serves for --drain-delay, closes the listener, and waits for running requests."""
        config = self.config
        log.info(
            "%s: draining, %d requests in flight; exiting when they have finished, after at most %g s (--drain-delay "
            "and --drain-timeout). A second signal, such as Ctrl-C, ends the server at once",
            sig.name,
            frontend.in_flight,
            config.drain_delay + config.drain_timeout,
        )
        frontend.begin_drain()
        await asyncio.sleep(config.drain_delay)
        await frontend.drain()
        log.info("drained")
        self.ended.set()
