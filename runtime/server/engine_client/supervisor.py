"""Supervision of the backend processes: start, messages, heartbeats, restart with back-off, stop.

The supervisor knows processes and messages. Requests are the concern of its `ReplicaObserver`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, TypeVar

import zmq

from runtime.child_process import module_command
from runtime.config import EngineConfig, ServerConfig
from runtime.errors import ConfigError, RequestError
from runtime.request.engine_messages import EngineInfo, EngineOutput, EngineStats
from runtime.server.engine_client import ipc_protocol
from runtime.server.engine_client.ipc_protocol import CallResult, Fatal, Loading, Operation, Outputs, Ready, Stats
from runtime.server.engine_client.ipc_sockets import MAX_FRAME_BYTES, Endpoint, bind_private
from runtime.server.env import backend_environment

log = logging.getLogger("unmask.supervisor")

STOP_SECONDS = 5.0  # what a backend has to end after Stop
EXIT_REASON_SECONDS = 1.0  # to wait for the reason of a backend that exited with code 1
BACKEND_COMMAND = module_command("runtime.server.engine_process.backend")


class ReplicaState(Enum):
    STARTING = "starting"
    READY = "ready"
    DOWN = "down"


class ReplicaObserver(Protocol):
    def on_ready(self, replica: int, info: EngineInfo, load_seconds: float) -> None: ...
    def on_outputs(self, replica: int, outputs: list[EngineOutput]) -> None: ...
    def on_stats(self, replica: int, stats: EngineStats) -> None: ...
    def on_down(self, replica: int, reason: str) -> None: ...


FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.5, 30.0  # before the next process starts; doubled with every one that ends
RESET_SECONDS = 60.0  # one that served for so long is followed as the first was


class BackOff:
    """Delays between the starts of one process."""

    def __init__(self) -> None:
        self._next = FIRST_DELAY_SECONDS

    def after(self, served: float) -> float:
        """Seconds until the next one starts, after one that served for so many."""
        if served > RESET_SECONDS:
            self._next = FIRST_DELAY_SECONDS
        seconds = self._next
        self._next = min(2 * seconds, MAX_DELAY_SECONDS)
        return seconds


class ProcessSlot:
    """A process that is restarted when it exits. The process changes at every start, and its name with it.

    Attributes:
        fatal: Why the current process ends, if it is known before its exit.
        last_message: When it sent its last message that shows progress; monotonic seconds.
    """

    def __init__(self, role: str, index: int) -> None:
        self.role, self.index = role, index
        self.starts = 0
        self.back_off = BackOff()
        self.process: asyncio.subprocess.Process | None = None
        self.fatal: str | None = None
        self.last_message = 0.0

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}.{self.starts}"

    @property
    def pid(self) -> int | None:
        """The pid of the current process; None if none has started, or if it has ended."""
        return None if self.process is None or self.process.returncode is not None else self.process.pid

    def kill(self) -> None:
        _kill(self.process)

    def kill_because(self, reason: str) -> None:
        """Kills the current process and keeps the reason, which its exit reports."""
        self.fatal = reason
        self.kill()


S = TypeVar("S", bound=ProcessSlot)


def find_slot(slots: Iterable[S], name: bytes) -> S | None:
    """Returns the slot whose current process has this name; None for names of other and of earlier processes."""
    return next((slot for slot in slots if slot.name.encode() == name), None)


def pids(slots: Iterable[ProcessSlot]) -> dict[str, int]:
    """Returns the pids of processes that run, by role and index."""
    return {f"{slot.role}-{slot.index}": pid for slot in slots if (pid := slot.pid) is not None}


def describe_exit(code: int) -> str:
    """How a process ended, by its exit code."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


class Replica(ProcessSlot):
    """One of the backends."""

    def __init__(self, index: int) -> None:
        super().__init__("backend", index)
        self.state = ReplicaState.STARTING
        self.spawned = asyncio.Event()
        self.loading = Loading("start", 0, 0)
        self.exit_reason = ""  # of the last process that ended
        self.calls: dict[int, asyncio.Future[CallResult | None]] = {}  # that are not answered yet, by their number
        self.last_beat = 0.0  # when its process sent anything
        self.unresponsive = False  # as last logged
        self.ready_since = 0.0
        self.served = 0.0  # seconds, of the last process that ended

    @property
    def responds(self) -> bool:
        return time.monotonic() - self.last_beat < ipc_protocol.UNRESPONSIVE_SECONDS

    def end_call(self, number: int, result: CallResult | None) -> None:
        call = self.calls.pop(number, None)
        if call is not None and not call.done():
            call.set_result(result)


class Supervisor:
    """The backends of one server.

    `observer` is set before the start. `on_give_up(sentence)` is called when the server cannot start: no backend has
    ever been ready, and one failed.
    """

    observer: ReplicaObserver

    def __init__(
        self,
        config: ServerConfig,
        command_addr: str,
        event_addr: str,
        on_give_up: Callable[[str], None],
        backend_command: tuple[str, ...] = BACKEND_COMMAND,
        router_dir: Path | None = None,
    ) -> None:
        self.config = config
        self.addresses = (command_addr, event_addr)
        self.on_give_up, self.backend_command = on_give_up, backend_command
        self.router_dir = router_dir  # of the sockets for frontend processes, if there are several
        self.engine_config: Callable[[], EngineConfig] = lambda: config.engine  # for new processes
        self.replicas = [Replica(i) for i in range(config.data_parallel_size)]
        self.ready: list[int] = []  # indices of the replicas that serve
        self.ever_ready = False
        self.tasks: list[asyncio.Task[None]] = []
        self.numbers = itertools.count()  # of calls
        self.context = zmq.Context()
        self.sockets = self._bind(zmq.ROUTER, command_addr), self._bind(zmq.PULL, event_addr)

    def _bind(self, kind: zmq.SocketType, addr: str) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES[kind])
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_HANDOVER, 0)  # a name belongs to the first peer that uses it
        try:
            bind_private(socket, addr)
        except zmq.ZMQError as error:
            flag = "--zmq-command-addr" if kind == zmq.ROUTER else "--zmq-event-addr"
            raise ConfigError(f"{flag}: cannot bind {addr}: {error.strerror}; choose another address") from None
        return socket

    # -- life

    async def start(self) -> None:
        """Start every backend; returns when the processes run."""
        commands, events = self.sockets
        self.commands = Endpoint(commands, self._on_command)
        self.events = Endpoint(events, self._on_event)
        self.tasks = [asyncio.create_task(self._supervise(replica)) for replica in self.replicas]
        self.tasks.append(asyncio.create_task(self._send_pings()))
        for replica in self.replicas:
            await replica.spawned.wait()

    async def stop(self, reason: str) -> None:
        """End every backend: by message, then by force."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for replica in self.replicas:
            if replica.state is ReplicaState.READY:
                self._send(replica, ipc_protocol.Stop(reason))
            else:
                replica.kill()  # nothing is lost, and a loading process may not listen for long
        exits = [asyncio.create_task(r.process.wait()) for r in self.replicas if r.process is not None]
        if exits:
            _, pending = await asyncio.wait(exits, timeout=STOP_SECONDS)
            if pending:
                self.kill()
                await asyncio.wait(pending)
        self.commands.close()
        self.events.close()
        self.context.destroy()

    def kill(self) -> None:
        """End every backend process at once."""
        for replica in self.replicas:
            replica.kill()

    async def _supervise(self, replica: Replica) -> None:
        """Run a backend in this place for ever."""
        while True:
            reason = await self._run(replica)
            self._down(replica, reason)
            if not self.ever_ready:
                self.on_give_up(reason)
                return
            log.error("%s exited: %s. It is restarted", replica.name, reason)
            seconds = replica.back_off.after(replica.served)
            log.info("restarting backend %d in %.1f s", replica.index, seconds)
            await asyncio.sleep(seconds)

    def _down(self, replica: Replica, reason: str) -> None:  # once for each process, as soon as it says that it ends
        if replica.state is not ReplicaState.DOWN:
            replica.served = time.monotonic() - replica.ready_since if replica.state is ReplicaState.READY else 0.0
            replica.state, replica.exit_reason = ReplicaState.DOWN, reason
            self._update_ready()
            for number in list(replica.calls):
                replica.end_call(number, None)
            self.observer.on_down(replica.index, reason)

    async def _run(self, replica: Replica) -> str:
        """Start a process, wait for its end, say why it ended."""
        replica.starts += 1
        replica.state = ReplicaState.STARTING
        replica.fatal = None
        replica.loading = Loading("start", 0, 0)
        arguments = ["--name", replica.name, "--command-addr", self.addresses[0], "--event-addr", self.addresses[1]]
        if self.router_dir is not None:
            arguments += ["--router-addr", self.router_addr(replica)]
        replica.process = await asyncio.create_subprocess_exec(
            *self.backend_command,
            *arguments,
            stdin=asyncio.subprocess.PIPE,  # end of file means that this process has exited
            env=backend_environment(self.config.engine.model, fetches=self.config.fetches_adapters),
            start_new_session=True,  # Ctrl-C is for the frontend, which drains first
        )
        replica.spawned.set()
        replica.last_message = replica.last_beat = time.monotonic()
        replica.unresponsive = False
        code = await replica.process.wait()
        self._update_ready()
        deadline = time.monotonic() + EXIT_REASON_SECONDS
        self.events.read()
        # the message may arrive after the exit
        while code == 1 and replica.fatal is None and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            self.events.read()
        if replica.fatal is not None:
            return replica.fatal
        how = describe_exit(code)
        loading = replica.state is ReplicaState.STARTING
        memory = " (out of memory?)" if loading and code == -9 else ""
        return f"the backend process {how}{' while it loaded the model' if loading else ''}{memory}"

    async def _send_pings(self) -> None:
        """Heartbeats down; an end to backends that stopped answering."""
        while True:
            await asyncio.sleep(ipc_protocol.PING_SECONDS)
            self.events.read()  # this process may have been stopped meanwhile
            self._update_ready()
            for replica in self.replicas:
                if replica.state is ReplicaState.DOWN or replica.pid is None:
                    continue
                self._send(replica, ipc_protocol.Ping())
                self._log_responsiveness(replica)
                silence = time.monotonic() - replica.last_message
                if replica.state is ReplicaState.READY and silence > ipc_protocol.BACKEND_SILENCE_SECONDS:
                    replica.kill_because(
                        f"the backend process was unresponsive for {silence:.0f} s and was killed (SIGKILL)"
                    )

    def _log_responsiveness(self, replica: Replica) -> None:
        unresponsive = replica.state is ReplicaState.READY and not replica.responds
        if unresponsive and not replica.unresponsive:
            message = "%s: no heartbeat for %.0f s; no requests are sent to it until the next heartbeat"
            log.warning(message, replica.name, ipc_protocol.UNRESPONSIVE_SECONDS)
        elif replica.unresponsive and not unresponsive:
            log.info("%s: heartbeats resumed", replica.name)
        replica.unresponsive = unresponsive

    # -- messages

    def router_addr(self, replica: Replica) -> str:
        """Returns the address at which frontend processes reach the current process of a replica."""
        return f"ipc://{self.router_dir}/{replica.index}.{replica.starts}"  # a path of a socket is short

    def require_ready(self) -> list[int]:
        """Returns the replicas that serve. Raises RequestError if none does."""
        if not self.ready:
            raise RequestError("no engine process is ready; retry later", status=503, code="no_backend")
        return self.ready

    def call(self, index: int, operation: Operation) -> asyncio.Future[CallResult | None]:
        """Sends an operation to a backend. The result is None if it is not ready, or exits before it answers."""
        replica, number = self.replicas[index], next(self.numbers)
        result: asyncio.Future[CallResult | None] = asyncio.get_running_loop().create_future()
        if replica.state is not ReplicaState.READY:  # no process would answer
            result.set_result(None)
            return result
        replica.calls[number] = result
        self._send(replica, ipc_protocol.Call(number, operation))
        return result

    async def collect_stats(self, seconds: float) -> None:
        """Returns when the ready backends have sent their current stats, or after `seconds`."""
        if calls := [self.call(index, ipc_protocol.ReportStats()) for index in self.ready]:
            await asyncio.wait(calls, timeout=seconds)

    def _update_ready(self) -> None:
        """Recomputes `ready`. Requests read it several times each, so it is not computed on access."""
        self.ready = [r.index for r in self.replicas if r.state is ReplicaState.READY and r.responds and r.pid]

    def send(self, index: int, message: Any) -> None:
        self._send(self.replicas[index], message)

    def _send(self, replica: Replica, message: Any) -> None:
        # to a name that is not connected (yet, or any more) a ROUTER drops the message, which is what we want
        self.commands.send(replica.name.encode(), ipc_protocol.encode(message))

    def _sender(self, frames: list[bytes]) -> Replica | None:
        """The backend that sent a message; None for other senders and ended processes, which are ignored."""
        replica = find_slot(self.replicas, frames[0]) if len(frames) == 2 else None
        if replica is None or replica.state is ReplicaState.DOWN:
            return None
        replica.last_beat = time.monotonic()
        if replica.unresponsive:
            self._update_ready()
        return replica

    def _on_command(self, frames: list[bytes]) -> None:
        """Answers a hello."""
        replica = self._sender(frames)
        if replica is None:
            return
        replica.last_message = replica.last_beat
        try:
            ipc_protocol.decode_hello(frames[1])
        except ValueError as error:
            replica.fatal = f"the backend process has an incompatible protocol: {error}"
            self._send(replica, ipc_protocol.Stop(str(error)))
        else:
            self._send(replica, ipc_protocol.Configure.of(self.config, self.engine_config(), replica.index))

    def _on_event(self, frames: list[bytes]) -> None:
        replica = self._sender(frames)
        if replica is None:
            return
        try:
            event = ipc_protocol.decode_event(frames[1])
        except ValueError as error:
            log.error("%s: ignoring an invalid message: %s", replica.name, error)
            return
        if not isinstance(event, ipc_protocol.Heartbeat):
            replica.last_message = replica.last_beat
        match event:
            case Outputs(outputs):
                self.observer.on_outputs(replica.index, outputs)
            case Stats(stats):
                self.observer.on_stats(replica.index, stats)
            case CallResult(number):
                replica.end_call(number, event)
            case Loading():
                replica.loading = event
            case Ready(info, load_seconds):
                replica.state = ReplicaState.READY
                replica.ready_since = time.monotonic()
                self._update_ready()
                self.ever_ready = True
                log.info("%s is ready after %.1f s (%s on %s)", replica.name, load_seconds, info.family, info.device)
                self.observer.on_ready(replica.index, info, load_seconds)
            case Fatal(sentence):
                replica.fatal = sentence
                self._down(replica, sentence)
                asyncio.get_running_loop().call_later(STOP_SECONDS, _kill, replica.process)


def _kill(process: asyncio.subprocess.Process | None) -> None:
    if process is not None and process.returncode is None:
        process.kill()
