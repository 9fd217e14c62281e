"""Main module of a frontend process. The parent process starts it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import Any

import uvloop
import zmq

from runtime.child_process import exit_with_parent
from runtime.config import ServerConfig
from runtime.errors import ConfigError
from runtime.server import env, logs
from runtime.server.engine_client import ipc_protocol
from runtime.server.engine_client.ipc_protocol import Fatal, Heartbeat, Hello, Stop, encode
from runtime.server.engine_client.ipc_sockets import Endpoint, connect
from runtime.server.frontend_processes import protocol
from runtime.server.frontend_processes.engine_client import FrontendEngineClient
from runtime.server.frontend_processes.metrics import use_files
from runtime.server.http_server import HttpFrontend
from runtime.server.metrics import RequestMetrics

log = logging.getLogger("unmask.frontends")


class FrontendProcess:
    """Serves HTTP on a listener that is inherited from the parent process.

    Attributes:
        name: identity of this process in its connections to the parent and to the backends.
        ended: set when the process has to exit.
    """

    def __init__(self, name: str, listener: socket.socket) -> None:
        self.name = name
        self.listener = listener
        self.ended = asyncio.Event()
        self.parent: Endpoint | None = None
        self.engine_client: FrontendEngineClient | None = None
        self.http: HttpFrontend | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self, addr: str) -> int:
        """Serves until the parent ends the process. Returns the exit code."""
        self.parent = Endpoint(connect(zmq.Context(), self.name, addr), self._on_message)
        self._send(Hello(ipc_protocol.VERSION, os.getpid()))
        self._start_task(self._send_heartbeats())
        await self.ended.wait()
        if self.http is not None:
            await self.http.stop()
        return 0

    def _send(self, message: protocol.ToParent) -> None:
        assert self.parent is not None
        self.parent.send(encode(message))

    async def _send_heartbeats(self) -> None:
        while True:
            self._send(Heartbeat())
            await asyncio.sleep(ipc_protocol.HEARTBEAT_SECONDS)

    def _start_task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _on_message(self, frames: list[bytes]) -> None:
        match message := protocol.to_frontend.decode(frames[0]):
            case protocol.FrontendConfig():
                self._configure(message)
            case protocol.EngineState() if self.engine_client is not None:
                self._apply(self.engine_client, message)
            case protocol.RpcResponse() if self.engine_client is not None:
                self.engine_client.on_response(message)
            case protocol.BeginDrain() if self.http is not None:
                self.http.begin_drain()
            case protocol.Drain():
                self._start_task(self._drain())
            case Stop():
                self.ended.set()

    def _apply(self, client: FrontendEngineClient, state: protocol.EngineState) -> None:
        error = ""
        try:
            client.on_state(state)
        except Exception as failure:
            log.exception("failed to apply the server's state; report it with this traceback")
            error = f"a frontend process failed to apply the state: {type(failure).__name__}: {failure}"
        self._send(protocol.StateAck(error))

    def _configure(self, message: protocol.FrontendConfig) -> None:
        index = message.index
        try:
            config = divide_limits(message.config, index)
            logs.configure_logging(config.log_level, config.log_format, f"frontend-{index}")
            logs.rate_limiter.divide(config.frontend_processes)
            use_files(index)
            client = FrontendEngineClient(config, RequestMetrics(), self._send, self.name, index)
            self.engine_client = client
            self.http = HttpFrontend(client, self.listener, self._give_up)
            self._start_task(self._serve(self.http, message.replaces))
        except ConfigError as error:
            self._give_up(str(error))
        except Exception as error:
            log.exception("frontend-%d could not start", index)
            self._give_up(f"frontend-{index} could not start: {type(error).__name__}: {error}")

    async def _serve(self, http: HttpFrontend, replaces: bool) -> None:
        await http.start(after_load=replaces)
        self._send(protocol.Listening())
        await http.loaded.wait()
        self._send(protocol.Loaded())

    def _give_up(self, sentence: str) -> None:
        self._send(Fatal(sentence))

    async def _drain(self) -> None:
        if self.http is not None:
            await self.http.drain()
        self.ended.set()


def divide_limits(config: ServerConfig, index: int) -> ServerConfig:
    """Returns the configuration of one process, with its part of the maximum number of connections.

    Raises:
        ConfigError: the limit of open files is too low.
    """
    connections, processes = config.max_connections, config.frontend_processes
    if connections is not None:
        connections = max(1, connections // processes + (index < connections % processes))
    return config.replace(max_connections=env.raise_open_files_limit(connections, config.data_parallel_size))


def main() -> int:
    """Runs the process and returns its exit code.

    Arguments: its name, the address of the parent's socket, and the file descriptor of the listener.
    """
    name, addr, listener = sys.argv[1:]
    exit_with_parent()
    env.configure_process()
    for sig in (signal.SIGTERM, signal.SIGINT):  # ignored: the parent handles them, and drains all processes
        signal.signal(sig, lambda *_: None)
    process = FrontendProcess(name, socket.socket(fileno=int(listener)))
    return uvloop.run(process.run(addr))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    logging.shutdown()
    os._exit(code)  # a normal exit would wait until all sockets have sent their messages
