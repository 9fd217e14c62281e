"""A server's life: the port opens at once, the model loads, requests are served, SIGTERM drains (runtime.md 4)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvloop

from runtime.config import ServerConfig
from runtime.errors import ConfigError, RequestError
from runtime.server import environment, logs
from runtime.server.access import Load
from runtime.server.descriptors import make_room
from runtime.server.frontend import Frontend
from runtime.server.metrics import Metrics
from runtime.server.supervisor import BACKEND_COMMAND, Supervisor
from runtime.server.talking import check_parsers
from runtime.server.wire.limits import Limits
from runtime.server.wire.memory import keep_together
from runtime.weights.checkpoint import resolve_text_files

if TYPE_CHECKING:
    from runtime.server.http import HttpServer
    from runtime.server.service import Service
    from runtime.text import Tokenizer

log = logging.getLogger("unmask.server")

BACKLOG = 2048  # connections the kernel holds for us
IDLE_GRACE = 0.5  # seconds in which kept-alive connections may still bring a request after the listener has closed
# Objects more than before, and younger collections, after which one of each age follows. Thousands of connections are
# many objects and no garbage: looking through them all holds the loop for a tenth of a second, so that is done seldom.
COLLECTED = (2000, 20, 20)
LAST_WORDS = 1.0  # seconds to write the error that ends what did not finish in --drain-timeout


def run(config: ServerConfig, backend_command: tuple[str, ...] = BACKEND_COMMAND) -> int:
    """Serve until told to stop; the process's exit code. Raises ConfigError when the server cannot start."""
    environment.set_up()
    keep_together()
    check_parsers(config)
    logs.set_up(config.log_level, config.log_format, "frontend")
    for note in config.notes:
        log.warning("%s", note)
    if config.node_rank:
        from runtime.ranks.node import lend  # and arrays with it, which a frontend has no use for

        return lend(config, (sys.executable, "-m", "runtime.server.rank", config.log_level, config.log_format))
    config = config.replace(max_connections=make_room(config.max_connections, config.data_parallel_size))
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(_listen(config.host, config.port))
        addresses = _addresses(config, stack)
        server = Server(config, listener, addresses, backend_command, stack.close)
        return uvloop.run(server.serve())


def _listen(host: str, port: int) -> socket.socket:
    """A socket that already accepts: clients that come before the model is loaded get an answer."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # what the kernel has taken of an answer is not kept for ever either
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(Limits.stall_seconds * 1000))
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        raise ConfigError(f"--host {host} --port {port}: cannot be listened on: {error.strerror or error}") from None
    return listener


def _addresses(config: ServerConfig, stack: contextlib.ExitStack) -> tuple[str, str]:
    """Where frontend and backends meet: as configured, else in a fresh private directory, gone with `stack`."""
    if config.zmq_command_addr is not None and config.zmq_event_addr is not None:
        return config.zmq_command_addr, config.zmq_event_addr
    place = tempfile.mkdtemp(prefix="unmask-")
    stack.callback(shutil.rmtree, place, ignore_errors=True)
    return f"ipc://{place}/commands", f"ipc://{place}/events"


class Server:
    """Everything of one frontend process, wired together."""

    def __init__(
        self,
        config: ServerConfig,
        listener: socket.socket,
        addresses: tuple[str, str],
        backend_command: tuple[str, ...],
        clean_up: Callable[[], object],
    ) -> None:
        self.config = config
        self.listener = listener
        self.clean_up = clean_up
        metrics = Metrics(config.model_names[0])
        self.frontend = Frontend(config, metrics)
        self.supervisor = Supervisor(config, self.frontend, *addresses, self._give_up, backend_command)
        for user in (self.frontend, self.frontend.adapters, self.frontend.profiler):
            user.supervisor = self.supervisor
        self.supervisor.engine_config = self.frontend.adapters.engine_config
        metrics.backends.set_function(lambda: len(self.supervisor.ready))
        metrics.beside(self._backends)
        self.service: Service | None = None
        self.http: HttpServer | None = None
        self.failure: str | None = None  # why the server could not start
        self.ended = asyncio.Event()
        self.signals = 0
        self.drainer: asyncio.Task[None] | None = None

    def _backends(self) -> dict[str, int]:
        """Pids of the backend processes that live, by the name of their place."""
        found = ((r.index, r.process) for r in self.supervisor.replicas)
        return {f"backend-{i}": p.pid for i, p in found if p is not None and p.returncode is None}

    async def serve(self) -> int:
        """Serve to the end. Raises ConfigError with the reason when loading failed."""
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(sig, self._on_signal, sig)
        await self.supervisor.start()
        # only now, so that the backends load while this process imports; connections wait in the kernel
        from runtime.server import tracing
        from runtime.server.http import make_http

        self.service, self.http = make_http(self.config, self.frontend)
        self.service.draining = self.signals > 0
        self.service.tracing = tracing.start()
        port = self.listener.getsockname()[1]
        log.info("listening on http://%s:%d, serving %s", self.config.host, port, ", ".join(self.service.names))
        if self.config.engine.model is None:
            log.info("no --model was given: this is the small demo checkpoint shipped with unmask")
        if not self.service.keys.needed and self.config.host in ("0.0.0.0", "::", ""):
            log.info("every machine that reaches this one may use it: set --api-key-file, or --host 127.0.0.1")
        told = asyncio.create_task(Load(self.frontend.metrics.figures).run())
        http = asyncio.create_task(self.http.serve(sockets=[self.listener]))
        tokenizer = asyncio.create_task(self._load_tokenizer(self.service))
        adapters = asyncio.create_task(self.frontend.adapters.follow())
        try:
            await self.ended.wait()
        finally:
            tokenizer.cancel()
            told.cancel()
            adapters.cancel()
            self.http.should_exit = True
            await asyncio.gather(http, return_exceptions=True)
            await self.supervisor.stop("the server ends")
            if self.service.tracing is not None:
                self.service.tracing.close()
        if self.failure is not None:
            raise ConfigError(self.failure)
        return 0

    async def _load_tokenizer(self, service: Service) -> None:
        loaded: concurrent.futures.Future[Tokenizer] = concurrent.futures.Future()
        loaded.set_running_or_notify_cancel()

        def load() -> None:
            from runtime.text import Tokenizer

            try:
                place = resolve_text_files(self.config.engine.model)
                loaded.set_result(Tokenizer(place, self.config.chat_template))
            except Exception as error:
                loaded.set_exception(error)

        # a daemon, unlike the loop's own threads: a download must not keep a server alive that is told to end
        threading.Thread(target=load, daemon=True).start()
        try:
            service.tokenizer = await asyncio.wrap_future(loaded)
            gc.freeze()  # what is there now stays; looking through all of it would hold the loop again and again
            gc.set_threshold(*COLLECTED)
        except ConfigError as error:
            self._give_up(str(error))
        except Exception as error:
            log.exception("the tokenizer could not be loaded")
            self._give_up(f"the tokenizer could not be loaded: {type(error).__name__}: {error}")

    def _give_up(self, sentence: str) -> None:
        if not self.ended.is_set():
            self.failure = sentence
            self.ended.set()

    def _on_signal(self, sig: signal.Signals) -> None:
        self.signals += 1
        if self.signals > 1:
            log.warning("%s again: ending at once", sig.name)
            self.supervisor.kill()
            self.clean_up()
            sys.stderr.flush()
            os._exit(128 + sig)
        if self.service is None or self.http is None:
            self.ended.set()  # nothing has been served yet
            return
        self.service.draining = True
        self.drainer = asyncio.create_task(self._drain(sig, self.service, self.http))

    async def _drain(self, sig: signal.Signals, service: Service, http: HttpServer) -> None:
        """Serve on for --drain-delay, close the listener, let what runs finish."""
        config = self.config
        log.info("%s: draining, %d requests in flight", sig.name, service.in_flight)
        await asyncio.sleep(config.drain_delay)
        closed = time.monotonic()
        await http.close_listener(self.listener)

        def unfinished() -> bool:
            seconds = time.monotonic() - closed
            if service.in_flight or http.at_work():
                return seconds < config.drain_timeout
            # on an idle connection a request may be under way, so those get a moment before they are closed
            return bool(http.server_state.connections) and seconds < min(IDLE_GRACE, config.drain_timeout)

        while unfinished():
            await asyncio.sleep(0.02)
        http.close_idle()  # in the same turn of the loop, so that no request slips in between
        if service.in_flight or http.at_work():
            error = RequestError("the server is ending, and this did not finish within --drain-timeout", status=504)
            log.warning("%d requests did not finish within --drain-timeout", self.frontend.fail_all(error))
            started = time.monotonic()
            while (service.in_flight or http.at_work()) and time.monotonic() - started < LAST_WORDS:
                await asyncio.sleep(0.02)
        log.info("drained")
        self.ended.set()
