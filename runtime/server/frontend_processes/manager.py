"""Starts, supervises and drains the frontend processes of a server, and executes their remote calls."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Coroutine
from typing import Any

import zmq

from runtime.child_process import module_command
from runtime.errors import RequestError
from runtime.server.engine_client import ipc_protocol
from runtime.server.engine_client import supervisor as supervision
from runtime.server.engine_client.client import LocalEngineClient
from runtime.server.engine_client.ipc_protocol import Fatal, Hello, ReleaseFrontend, Stop, encode
from runtime.server.engine_client.ipc_sockets import Endpoint, bind_private
from runtime.server.frontend_processes import protocol
from runtime.server.frontend_processes.metrics import FrontendMetrics

log = logging.getLogger("unmask.frontends")

COMMAND = module_command("runtime.server.frontend_processes.process")
CHECK_SECONDS = 0.2  # interval of checks for changes of the state and for processes that hang
SILENCE_SECONDS = 60.0  # a process that sends no message for this time is killed
START_SECONDS = 300.0  # a process that does not listen after this time is killed
STATS_SECONDS = 0.5  # maximum wait of a scrape for the stats of the backends
EXIT_SECONDS = 5.0  # time for processes to exit, in addition to --drain-timeout, before they are killed


class Frontend(supervision.ProcessSlot):
    """One frontend process.

    Attributes:
        connected: the process has sent `Hello` and has not exited.
        released: the process has exited.
        started: time of the start, monotonic seconds.
        loaded: its tokenizer is loaded.
        num_sent, num_acked: numbers of states that were sent and that were acknowledged.
        state_error: why the process could not apply the last acknowledged state; "" if it could.
        acked: event that each acknowledgment and the exit set.
    """

    def __init__(self, index: int) -> None:
        super().__init__("frontend", index)
        self.reset()

    def reset(self) -> None:
        """Prepares for the next process."""
        self.connected = False
        self.released = False
        self.started = time.monotonic()
        self.loaded = False
        self.fatal = None
        self.last_message = time.monotonic()
        self.num_sent = self.num_acked = 0
        self.state_error = ""
        self.acked = asyncio.Event()

    @property
    def hangs(self) -> bool:
        """Whether the process starts for too long, or has sent no message for too long."""
        if self.pid is None:
            return False
        now = time.monotonic()
        slow = not self.serving_since and now - self.started > START_SECONDS
        return slow or (self.connected and now - self.last_message > SILENCE_SECONDS)


class FrontendProcessManager:
    """Manages all frontend processes. The server uses it in place of an `HttpFrontend`.

    Attributes:
        draining: `begin_drain` was called.
        ever_listened: some frontend process has accepted connections.
        complete: startup is complete: every frontend process has loaded its tokenizer once.
        ending: the processes have to exit.
        sent_state: the last state that was sent to all processes, encoded.
    """

    def __init__(
        self,
        engine_client: LocalEngineClient,
        listener: socket.socket,
        metrics: FrontendMetrics,
        give_up: Callable[[str], None],
    ) -> None:
        """Binds the socket to which the processes connect.

        Args:
            engine_client: client of the engine processes that this process supervises.
            listener: socket on which the processes accept connections.
            metrics: metrics of all frontend processes.
            give_up: called with the reason if the processes cannot start.
        """
        self.engine_client, self.supervisor = engine_client, engine_client.supervisor
        self.config = config = engine_client.config
        self.listener = listener
        self.metrics = metrics
        self.give_up = give_up
        self.addr = f"ipc://{self.supervisor.socket_directory}/parent"
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        router = self.context.socket(zmq.ROUTER)
        bind_private(router, self.addr)
        self.endpoint = Endpoint(router, self._on_frames)
        self.frontends = [Frontend(index) for index in range(config.frontend_processes)]
        self.draining = self.ending = self.ever_listened = self.complete = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.runs: list[asyncio.Task[None]] = []
        self.sent_state = b""
        engine_client.on_change = engine_client.adapters.on_change = self._broadcast
        engine_client.adapters.wait_acknowledged = self.wait_acknowledged

    # -- lifecycle, with the methods of `HttpFrontend`

    async def start(self) -> None:
        self.runs = [asyncio.create_task(each.supervise(self._run, self._on_exit)) for each in self.frontends]
        self._start_task(self._check())

    @property
    def in_flight(self) -> int:
        """Number of live engine requests."""
        return self.metrics.live()

    def begin_drain(self) -> None:
        self.draining = True
        for frontend in self.frontends:
            self._send(frontend, protocol.BeginDrain())

    async def drain(self) -> None:
        """Lets all processes finish their requests, and returns when they have exited."""
        self._end(protocol.Drain())
        await self._wait_for_exits(self.config.drain_timeout + EXIT_SECONDS)

    async def stop(self) -> None:
        self._end(Stop())
        await self._wait_for_exits(EXIT_SECONDS)
        for task in (*self.tasks, *self.runs):
            task.cancel()
        self.endpoint.close()

    def kill(self) -> None:
        for frontend in self.frontends:
            frontend.kill()

    def _end(self, message: protocol.Drain | Stop) -> None:
        self.ending = True
        for frontend, run in zip(self.frontends, self.runs, strict=True):
            if frontend.released:  # it waits for its next start
                run.cancel()
            elif frontend.serving_since:
                self._send(frontend, message)
            else:
                frontend.kill()

    async def _wait_for_exits(self, seconds: float) -> None:
        _, alive = await asyncio.wait(self.runs, timeout=seconds)
        if alive:
            log.warning("%d frontend processes did not exit in time and were killed", len(alive))
            self.kill()
            await asyncio.wait(alive)

    def _on_exit(self, frontend: Frontend, reason: str) -> bool:
        """Handles the exit of a process. Returns whether another one is started."""
        self._release(frontend)
        if not (self.ending or self.ever_listened):
            self.give_up(f"frontend-{frontend.index}: {reason}")
        return self.ever_listened and not self.ending

    async def _run(self, frontend: Frontend) -> str:
        """Starts a process, waits for its exit, and returns the reason."""
        self.metrics.prepare(frontend.index)
        frontend.starts += 1
        frontend.reset()
        descriptor = self.listener.fileno()
        frontend.process = await asyncio.create_subprocess_exec(
            *(*COMMAND, frontend.name, self.addr, str(descriptor)),
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=[descriptor],
            env={**os.environ, **self.metrics.environment()},
            start_new_session=True,  # Ctrl-C must reach only this process, which drains all of them
        )
        if self.ending:
            frontend.kill()
        code = await frontend.process.wait()
        self.endpoint.read()
        return frontend.fatal or f"the process {supervision.describe_exit(code)}"

    def _release(self, frontend: Frontend) -> None:
        """Ends the requests of a process that has exited."""
        self.metrics.retire(frontend.index)
        for replica in self.supervisor.replicas:
            self.supervisor.send(replica.index, ReleaseFrontend(frontend.name))
        frontend.connected, frontend.released = False, True
        frontend.acked.set()

    def _start_task(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            self._broadcast()
            for frontend in self.frontends:
                if frontend.hangs:
                    since = frontend.last_message if frontend.serving_since else frontend.started
                    seconds = time.monotonic() - since
                    frontend.kill_because(f"the process was unresponsive for {seconds:.0f} s and was killed (SIGKILL)")

    # -- state

    def _state(self) -> protocol.EngineState:
        client, supervisor = self.engine_client, self.supervisor
        replicas = [
            protocol.ReplicaConnection(supervisor.router_addr(r) if r.state == "ready" else "", r.exit_reason)
            for r in supervisor.replicas
        ]
        adapters = client.adapters
        return protocol.EngineState(
            client.info, replicas, client.ready, client.progress(), adapters.entries, adapters.settled, self.complete
        )

    def _broadcast(self) -> None:
        """Sends the state to all processes if it has changed."""
        state = self._state()
        encoded = encode(state)
        if encoded != self.sent_state:
            self.sent_state = encoded
            for frontend in self.frontends:
                self._send_state(frontend, state)

    def _send_state(self, frontend: Frontend, state: protocol.EngineState) -> None:
        if frontend.connected:
            frontend.num_sent += 1
            self._send(frontend, state)

    async def wait_acknowledged(self) -> None:
        """Sends the current state and returns when all processes have applied it.

        This is necessary because the next request of a client may reach any of the processes.

        Raises:
            RequestError: 500 if a process could not apply the state. That process is restarted.
        """
        self._broadcast()
        for frontend, number in [(frontend, frontend.num_sent) for frontend in self.frontends]:
            name = frontend.name
            while frontend.connected and frontend.name == name and frontend.num_acked < number:
                frontend.acked.clear()
                await frontend.acked.wait()
            if frontend.name == name and frontend.num_acked >= number and frontend.state_error:
                raise RequestError(f"{frontend.state_error}; retry", status=500, code="internal_error")

    # -- messages

    def _send(self, frontend: Frontend, message: Any) -> None:
        if frontend.connected:
            self.endpoint.send(frontend.name.encode(), encode(message))

    def _on_frames(self, frames: list[bytes]) -> None:
        frontend = supervision.find_slot(self.frontends, frames[0])
        if frontend is not None and not frontend.released:
            frontend.last_message = time.monotonic()
            self._on_message(frontend, protocol.to_parent.decode(frames[1]))

    def _on_message(self, frontend: Frontend, message: Any) -> None:
        match message:
            case Hello(version) if version != ipc_protocol.VERSION:
                frontend.kill_because(
                    f"the process is of another build: it has version {version} of the messages between processes, and "
                    f"the server has {ipc_protocol.VERSION}; install one version of unmask"
                )
            case Hello():
                frontend.connected = True
                self._send(frontend, protocol.FrontendConfig(self.config, frontend.index, self.complete))
                self._send_state(frontend, self._state())
                if self.draining:
                    self._send(frontend, protocol.BeginDrain())
            case protocol.Listening():
                frontend.serving_since = time.monotonic()
                self.ever_listened = True
            case protocol.Loaded():
                frontend.loaded = True
                self.complete = self.complete or all(other.loaded for other in self.frontends)
                self._broadcast()
            case protocol.StateAck(error):
                frontend.num_acked, frontend.state_error = frontend.num_acked + 1, error
                frontend.acked.set()
                if error:  # restarted, because it would continue with an old state
                    frontend.kill_because(error)
            case protocol.RpcRequest():
                self._start_task(self._answer(frontend, frontend.name, message))
            case Fatal(sentence):
                frontend.fatal = sentence
                if self.complete:  # its configuration was valid before, so only this process is restarted
                    frontend.kill()
                elif not self.ending:
                    self.give_up(sentence)

    async def _answer(self, frontend: Frontend, name: str, request: protocol.RpcRequest) -> None:
        try:
            response = protocol.RpcResponse(request.number, await self._call(request))
        except RequestError as error:
            response = protocol.RpcResponse(request.number, error=vars(error))
        except Exception as error:
            log.exception("%s failed", request.method)
            message = f"{request.method} failed: {type(error).__name__}; the server's log has details"
            response = protocol.RpcResponse(request.number, error=vars(RequestError(message, status=500)))
        if frontend.name == name:
            self._send(frontend, response)

    async def _call(self, request: protocol.RpcRequest) -> Any:
        if request.method == "metrics" and self.engine_client.metrics.due():
            await self.supervisor.collect_stats(STATS_SECONDS)
        value = await self.engine_client.call(request.method, *request.arguments)
        if request.method in ("load_adapter", "unload_adapter"):
            await self.wait_acknowledged()
        return value
