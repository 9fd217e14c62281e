"""The HTTP server: accepts connections, which uvicorn serves. Its import takes most of a front end's start-up time.

A server accepts all pending connections per event loop iteration, or with other processes a fraction of them. libuv
accepts one per iteration. Under an attack, iterations are long, and probes would wait in the kernel's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import gc
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, cast

import uvicorn

from runtime.errors import ConfigError, RequestError
from runtime.plugins import load_plugins
from runtime.server.app import make_app
from runtime.server.engine_client.client import EngineClient
from runtime.server.http_protocol.connection_manager import ConnectionManager
from runtime.server.http_protocol.guarded_protocol import GuardedProtocol
from runtime.server.http_protocol.limits import BACKLOG, DEFAULT_MAX_CONNECTIONS, Limits, accept_batch
from runtime.server.metrics import RequestMetrics
from runtime.server.middleware import tracing
from runtime.server.middleware.auth import ApiKeys
from runtime.server.serving.context import ServerContext
from runtime.tokenizer import Tokenizer
from runtime.weights.checkpoint import resolve_text_files

log = logging.getLogger("unmask.server")
wire_log = logging.getLogger("unmask.wire")  # limited, as clients can cause its lines

IDLE_GRACE = 0.5  # seconds in which kept-alive connections may still bring a request after the listener has closed
# Objects more than before, and younger collections, after which one of each age follows. Thousands of connections are
# many objects and no garbage: looking through them all holds the loop for a tenth of a second, so that is done seldom.
COLLECTED = (2000, 20, 20)
ERROR_WRITE_SECONDS = 1.0  # seconds to write the error that ends what did not finish in --drain-timeout
RETRY_SECONDS = 0.02  # after an error, such as a lack of descriptors
# Errors of the accepted connection, not of the listener (accept(2), "Error handling").
_LOST = {"ECONNABORTED", "EPROTO", "ENETDOWN", "ENETUNREACH", "EHOSTDOWN", "EHOSTUNREACH", "ENONET", "ENOPROTOOPT"}
_OPEN_FILES = "raise the limit of open files (ulimit -n) or set a lower --max-connections"
_KERNEL_MEMORY = "the kernel has no memory for sockets; raise the memory limit of the container or net.ipv4.tcp_mem"
_ACCEPT_ADVICE = {
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: "the machine has as many open files as it may; raise the kernel's limit fs.file-max",
    errno.ENOBUFS: _KERNEL_MEMORY,
    errno.ENOMEM: _KERNEL_MEMORY,
    errno.EPERM: "a firewall or security policy of this machine forbids them; change its rules",
}
_BACKLOG_OFFSET = 24  # of tcpi_unacked in struct tcp_info: of a listener, the connections that wait


def accept_advice(error: OSError) -> str:
    """Returns how to solve an error of accept(2)."""
    return _ACCEPT_ADVICE.get(error.errno or 0, f"they wait until it succeeds; see errno {error.errno} in accept(2)")


class Acceptor:
    """Accepts connections on a listening socket, on which other processes may accept too.

    The kernel wakes all of them. A process with more open connections waits longer before it accepts, so that those
    with fewer accept first. No process takes more than its fraction of the connections that wait.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        batch: int,
        processes: int = 1,
        num_open: Callable[[], int] = lambda: 0,
    ) -> None:
        """Creates an acceptor that does not accept yet.

        Args:
            listener: A listening socket.
            make_protocol: Creates the protocol of a connection.
            batch: Maximum number of connections that are being registered at the same time.
            processes: Number of processes that accept.
            num_open: Returns the number of open connections of this process. It matters if other processes accept too.
        """
        listener.setblocking(False)  # for all processes: they share the file description
        self.listener = listener
        self.make_protocol = make_protocol
        self.batch = batch
        self.processes = processes
        self.num_open = num_open
        self.loop = asyncio.get_running_loop()
        self.registering: set[asyncio.Task[object]] = set()
        self.closed = False
        self.failing = False

    def start(self) -> None:
        """Accept connections from now on."""
        if not self.closed:
            self.loop.add_reader(self.listener.fileno(), self._on_readable)

    def stop(self) -> None:
        """Accept no further connections."""
        self.closed = True
        self.loop.remove_reader(self.listener.fileno())

    def _on_readable(self) -> None:
        delay = self.num_open().bit_length() / 1000 if self.processes > 1 else 0
        if not delay:
            self._accept_fraction()
            return
        self.loop.remove_reader(self.listener.fileno())
        self.loop.call_later(delay, self._accept_and_restart)

    def _accept_and_restart(self) -> None:
        if not self.closed:
            self.start()
            self._accept_fraction()

    def _accept_fraction(self) -> None:
        try:
            for _ in range(min(-(-self._num_waiting() // self.processes), self.batch - len(self.registering))):
                self._accept()
        except BlockingIOError:  # other processes have accepted them
            pass
        except OSError as error:
            if error.errno == errno.EINVAL:  # another process has shut the listener down, which is final
                return self.stop()
            if not self.failing:
                wire_log.warning("cannot accept connections: %s; %s", error.strerror or error, accept_advice(error))
            self.failing = True
            self.loop.remove_reader(self.listener.fileno())
            self.loop.call_later(RETRY_SECONDS, self._accept_and_restart)

    def _num_waiting(self) -> int:
        """Number of connections in the kernel's queue, at least 1: some systems report none."""
        with contextlib.suppress(OSError, AttributeError):
            info = self.listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BACKLOG_OFFSET + 4)
            return max(1, int.from_bytes(info[_BACKLOG_OFFSET:], sys.byteorder))
        return 1

    def _accept(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError as error:
            if errno.errorcode.get(error.errno or 0) in _LOST:
                return
            raise
        self.failing = False
        connection.setblocking(False)
        task = self.loop.create_task(self._register(connection))
        self.registering.add(task)
        task.add_done_callback(self.registering.discard)

    async def _register(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client has disconnected
            await self.loop.connect_accepted_socket(self.make_protocol, connection)

    async def close(self) -> None:
        """Accept what the kernel's queue holds, then close the listener."""
        self.stop()
        with contextlib.suppress(OSError):
            for _ in range(BACKLOG):
                self._accept()
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # closing alone takes effect in the next loop iteration
        if self.registering:
            await asyncio.wait(self.registering)


class HttpServer(uvicorn.Server):
    """uvicorn's server with limits on connections. It installs no signal handlers."""

    def __init__(
        self,
        app: Any,
        limits: Limits,
        observed: RequestMetrics,
        processes: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Creates a server that does not listen yet.

        Args:
            app: The ASGI application.
            limits: The limits of connections.
            observed: Metrics of connections.
            processes: Number of processes that accept connections on the same listening socket.
            clock: Returns seconds, for all timeouts but the idle one.
        """
        self.manager = ConnectionManager(limits, observed, clock)
        self.processes = processes
        self.acceptor: Acceptor | None = None
        super().__init__(
            uvicorn.Config(
                app,
                http=GuardedProtocol,
                ws="none",
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=cast(Any, limits.idle_seconds),
                timeout_graceful_shutdown=1,
            )
        )
        self.server_state.connections = cast(Any, self.manager.open)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def on_tick(self, counter: int) -> bool:
        self.manager.check_timeouts()
        return await super().on_tick(counter)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on a listening socket."""
        (listener,) = sockets or []
        self.acceptor = self._make_acceptor(listener)
        self.acceptor.start()
        await super().serve([])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.acceptor is not None:
            self.acceptor.stop()
        await super().shutdown(sockets)

    async def close_listener(self, listener: socket.socket) -> None:
        """Accept no further connections, and serve those in the kernel's queue."""
        await (self.acceptor or self._make_acceptor(listener)).close()

    def _make_acceptor(self, listener: socket.socket) -> Acceptor:
        batch = accept_batch(self.manager.limits.connections)
        return Acceptor(listener, self.make_protocol, batch, self.processes, lambda: len(self.manager.open))

    def num_answering(self) -> int:
        """Number of connections with an unanswered request, whether or not the application has started it."""
        return sum(connection.is_answering for connection in self.manager.open)

    def close_idle(self) -> None:
        """Close connections without a request. The others close after their response, and answer no pipelined one."""
        for connection in list(self.manager.open):
            connection.shutdown()

    def make_protocol(self) -> GuardedProtocol:
        """Creates the protocol of an accepted connection."""
        return GuardedProtocol(
            self.manager, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )


class HttpFrontend:
    """The HTTP side of a process."""

    def __init__(self, frontend: EngineClient, listener: socket.socket, give_up: Callable[[str], None]) -> None:
        """Creates a server that accepts no connections yet. `give_up` is called with the reason if it cannot serve."""
        self.config = config = frontend.config
        load_plugins(config.engine.plugin)  # in a frontend process too
        self.engine_client = frontend
        self.listener = listener
        self.give_up = give_up
        keys = ApiKeys(config.api_key, config.api_key_file, config.keys_in_file)
        keys.watch()
        self.context = ServerContext(frontend)
        age = config.max_connection_age_seconds
        limits = Limits(connections=config.max_connections or DEFAULT_MAX_CONNECTIONS, age_seconds=age)
        limits = dataclasses.replace(limits, buffered_bytes=limits.buffered_bytes // config.frontend_processes)
        self.tracer = tracing.start()
        app = make_app(self.context, keys, self.tracer)
        self.http = HttpServer(app, limits, frontend.request_metrics, config.frontend_processes)
        self.loaded = asyncio.Event()  # the tokenizer is there
        self.serving: asyncio.Task[None] | None = None

    async def start(self, after_load: bool = False) -> None:
        """Accept connections, now or once requests can be served, and load the tokenizer."""
        # a daemon thread, unlike those of the loop: a download must not delay the exit
        threading.Thread(target=self._load_tokenizer, args=(asyncio.get_running_loop(),), daemon=True).start()
        if after_load:
            await self.loaded.wait()
        self.serving = asyncio.create_task(self.http.serve(sockets=[self.listener]))

    @property
    def in_flight(self) -> int:
        """HTTP requests being answered."""
        return self.context.in_flight

    def begin_drain(self) -> None:
        """From now on each answer ends its connection, and /ready answers 503."""
        self.context.draining = True

    async def drain(self) -> None:
        """Close the listener, and return when all requests have finished, or after --drain-timeout."""
        config, context, http = self.config, self.context, self.http
        closed = time.monotonic()
        await http.close_listener(self.listener)

        def answers() -> bool:
            return bool(context.in_flight or http.num_answering())

        def unfinished() -> bool:
            seconds = time.monotonic() - closed
            if answers():
                return seconds < config.drain_timeout
            # on an idle connection a request may be under way, so those get a moment before they are closed
            return bool(http.server_state.connections) and seconds < min(IDLE_GRACE, config.drain_timeout)

        while unfinished():
            await asyncio.sleep(0.02)
        http.close_idle()  # in the same iteration of the loop, so that no request slips in between
        if answers():
            error = RequestError(
                "the server is shutting down and the request did not finish within --drain-timeout; retry", status=504
            )
            count = self.engine_client.fail_all(error)
            log.warning("aborted %d requests that did not finish within --drain-timeout; set a larger value", count)
            started = time.monotonic()
            while answers() and time.monotonic() - started < ERROR_WRITE_SECONDS:
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """Stops serving, and exports the last traces."""
        self.http.should_exit = True
        if self.serving is not None:
            await asyncio.wait([self.serving])
        if self.tracer is not None:
            self.tracer.close()

    def _load_tokenizer(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            directory = resolve_text_files(self.config.engine.model)
            report = partial(self._on_loaded, Tokenizer(directory, self.config.chat_template))
        except ConfigError as error:
            report = partial(self.give_up, str(error))
        except Exception as error:
            log.exception("failed to load the tokenizer; check the files of --model")
            report = partial(self.give_up, f"failed to load the tokenizer: {type(error).__name__}: {error}")
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(report)

    def _on_loaded(self, tokenizer: Tokenizer) -> None:
        self.context.tokenizer = tokenizer
        gc.freeze()  # these objects are never freed; scanning them repeatedly would block the event loop
        gc.set_threshold(*COLLECTED)
        self.loaded.set()
