"""Supervision of the backend processes: start, messages, heartbeats, restart with back-off, stop.

The supervisor handles processes and messages. Its `ReplicaObserver` handles requests.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Protocol, Self, TypeVar

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

STOP_SECONDS = 5.0  # time for a backend to exit after `Stop`, before it is killed
EXIT_REASON_SECONDS = 1.0  # time to wait for the message with the reason after a backend exited with code 1
BACKEND_COMMAND = module_command("runtime.server.engine_process.backend")

ReplicaState = Literal["starting", "ready", "down"]


class ReplicaObserver(Protocol):
    """Receives the events of the replicas. `replica` is the index of a replica."""

    def on_ready(self, replica: int, info: EngineInfo, load_seconds: float) -> None: ...
    def on_outputs(self, replica: int, outputs: list[EngineOutput]) -> None: ...
    def on_stats(self, replica: int, stats: EngineStats) -> None: ...
    def on_down(self, replica: int, reason: str) -> None: ...


FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.5, 30.0  # delay before a restart; it doubles with each restart
RESET_SECONDS = 60.0  # after a process that served for longer, the delay is the first one again


class ProcessSlot:
    """A process that is restarted when it exits. Each start creates another process with another name.

    Attributes:
        starts: number of starts.
        process: the current process, or the last one. None before the first start.
        fatal: reason for the exit of the current process, if it is known before the exit. None: unknown.
        last_message: time of the last message of the process that shows progress, monotonic seconds.
        serving_since: time since which the process serves, monotonic seconds; 0 before.
    """

    def __init__(self, role: str, index: int) -> None:
        self.role, self.index = role, index
        self.starts = 0
        self._restart_delay = FIRST_DELAY_SECONDS
        self.process: asyncio.subprocess.Process | None = None
        self.fatal: str | None = None
        self.last_message = 0.0
        self.serving_since = 0.0

    async def supervise(self, run: Callable[[Self], Awaitable[str]], on_exit: Callable[[Self, str], bool]) -> None:
        """Runs one process after another.

        Args:
            run: starts a process, waits for its exit, and returns the reason.
            on_exit: handles the exit for this reason. It returns whether another process is started.
        """
        while True:
            try:
                reason = await run(self)
            except OSError as error:  # no descriptors, processes or disk space are left
                reason = f"the {self.role} process could not be started: {error}"
            if not on_exit(self, reason):
                return
            seconds = self.restart_delay()
            log.error("%s exited: %s. It is restarted in %.1f s", self.name, reason, seconds)
            await asyncio.sleep(seconds)

    def restart_delay(self) -> float:
        """Returns the seconds until the next start.

        They double with each exit up to a limit, and begin again after a process that served for `RESET_SECONDS`.
        """
        if self.serving_since and time.monotonic() - self.serving_since > RESET_SECONDS:
            self._restart_delay = FIRST_DELAY_SECONDS
        self.serving_since = 0.0
        seconds = self._restart_delay
        self._restart_delay = min(2 * seconds, MAX_DELAY_SECONDS)
        return seconds

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}.{self.starts}"

    @property
    def pid(self) -> int | None:
        """The pid of the current process; None if no process runs."""
        return None if self.process is None or self.process.returncode is not None else self.process.pid

    def kill(self) -> None:
        _kill(self.process)

    def kill_because(self, reason: str) -> None:
        """Kills the current process and stores the reason, which is reported after its exit."""
        self.fatal = reason
        self.kill()


S = TypeVar("S", bound=ProcessSlot)


def find_slot(slots: Iterable[S], name: bytes) -> S | None:
    """Returns the slot whose current process has this name; None for an unknown name or that of an earlier process."""
    return next((slot for slot in slots if slot.name.encode() == name), None)


def pids(slots: Iterable[ProcessSlot]) -> dict[str, int]:
    """Returns the pids of running processes by role and index, such as "backend-0"."""
    return {f"{slot.role}-{slot.index}": pid for slot in slots if (pid := slot.pid) is not None}


def describe_exit(code: int) -> str:
    """Returns a text for the exit code of a process; negative codes are signals."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


class Replica(ProcessSlot):
    """One replica, whose process is a backend.

    Attributes:
        spawned: set when the first process has started, or could not be started.
        exit_reason: reason for the exit of the last process that exited.
        calls: futures of calls without a result yet, by the number of the call.
        last_beat: time of the last message of any kind, monotonic seconds.
        unresponsive: state of `responds` as logged last.
    """

    def __init__(self, index: int) -> None:
        super().__init__("backend", index)
        self.state: ReplicaState = "starting"
        self.spawned = asyncio.Event()
        self.loading = Loading("start", 0, 0)
        self.exit_reason = ""
        self.calls: dict[int, asyncio.Future[CallResult | None]] = {}
        self.last_beat = 0.0
        self.unresponsive = False

    @property
    def responds(self) -> bool:
        return time.monotonic() - self.last_beat < ipc_protocol.UNRESPONSIVE_SECONDS

    def end_call(self, number: int, result: CallResult | None) -> None:
        call = self.calls.pop(number, None)
        if call is not None and not call.done():
            call.set_result(result)


class Supervisor:
    """Starts, supervises and stops the backends of one server.

    Attributes:
        observer: receives events of the replicas. It is set before `start` is called.
        on_give_up: called with the reason if a backend fails before any backend has ever been ready, if ranks on other
            hosts do not join again in time, or if the sockets were removed. The server then ends.
        socket_directory: directory of the sockets.
        engine_config: returns the engine configuration of new processes.
        ready: indices of the ready replicas.
        numbers: numbers of calls.
    """

    observer: ReplicaObserver

    def __init__(
        self,
        config: ServerConfig,
        socket_directory: Path,
        on_give_up: Callable[[str], None],
        backend_command: tuple[str, ...] = BACKEND_COMMAND,
    ) -> None:
        self.config = config
        self.socket_directory = socket_directory
        self.command_addr = config.zmq_command_addr or f"ipc://{socket_directory}/commands"
        self.event_addr = config.zmq_event_addr or f"ipc://{socket_directory}/events"
        self.on_give_up, self.backend_command = on_give_up, backend_command
        self.engine_config: Callable[[], EngineConfig] = lambda: config.engine
        self.replicas = [Replica(i) for i in range(config.data_parallel_size)]
        self.ready: list[int] = []
        self.ever_ready = False
        self.tasks: list[asyncio.Task[None]] = []
        self.numbers = itertools.count()
        self.context = zmq.Context()

    def _bind(self, kind: zmq.SocketType, addr: str) -> zmq.Socket[bytes]:
        socket = self.context.socket(kind)  # a ROUTER ignores a second peer with the same name
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME_BYTES[kind])
        try:
            bind_private(socket, addr)
        except zmq.ZMQError as error:
            flag = "--zmq-command-addr" if kind == zmq.ROUTER else "--zmq-event-addr"
            raise ConfigError(f"{flag}: cannot bind {addr}: {error.strerror}; choose another address") from None
        return socket

    # -- lifecycle

    async def start(self) -> None:
        """Starts all backends, and returns when each process has started or could not be started.

        Raises:
            ConfigError: a socket cannot be bound.
        """
        self.commands = Endpoint(self._bind(zmq.ROUTER, self.command_addr), self._on_command)
        self.events = Endpoint(self._bind(zmq.PULL, self.event_addr), self._on_event)
        self.tasks = [asyncio.create_task(replica.supervise(self._run, self._on_exit)) for replica in self.replicas]
        self.tasks.append(asyncio.create_task(self._send_pings()))
        for replica in self.replicas:
            await replica.spawned.wait()

    async def stop(self, reason: str) -> None:
        """Sends `Stop` to all ready backends, and kills those that do not exit in time."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for replica in self.replicas:
            if replica.state == "ready":
                self.send(replica.index, ipc_protocol.Stop(reason))
            else:
                replica.kill()  # it has no requests, and may not read messages for a long time while it loads
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
        """Kills all backend processes."""
        for replica in self.replicas:
            replica.kill()

    def _on_exit(self, replica: Replica, reason: str) -> bool:
        """Handles the exit of a process. Returns whether another one is started: otherwise the server ends."""
        self._down(replica, reason)
        gone = [addr for addr in (self.command_addr, self.event_addr) if not Path(addr.removeprefix("ipc://")).exists()]
        if gone:
            self.on_give_up(
                f"{gone[0]} was removed while the server ran, so that no backend can connect; keep what cleans up "
                "temporary files away from it, or set TMPDIR"
            )
            return False
        # Hosts that do not join again in time need whoever starts this server, as they do at its start.
        if self.ever_ready and (replica.serving_since or self.config.num_nodes == 1):
            return True
        self.on_give_up(reason)
        return False

    def _down(self, replica: Replica, reason: str) -> None:
        """Handles the exit of a process, or the message that announces it, whichever is first."""
        if replica.state != "down":
            replica.state, replica.exit_reason = "down", reason
            self._update_ready()
            for number in list(replica.calls):
                replica.end_call(number, None)
            self.observer.on_down(replica.index, reason)

    async def _run(self, replica: Replica) -> str:
        """Starts a process, waits for its exit, and returns the reason."""
        replica.starts += 1
        replica.state = "starting"
        replica.fatal = None
        replica.loading = Loading("start", 0, 0)
        arguments = ["--name", replica.name, "--command-addr", self.command_addr, "--event-addr", self.event_addr]
        if self.config.frontend_processes > 1:
            arguments += ["--router-addr", self.router_addr(replica)]
        try:
            replica.process = await asyncio.create_subprocess_exec(
                *self.backend_command,
                *arguments,
                stdin=asyncio.subprocess.PIPE,  # end of file means that this process has exited
                env=backend_environment(self.config.engine.model, fetches=self.config.fetches_adapters),
                start_new_session=True,  # Ctrl-C must reach only the frontend, which drains before it stops backends
            )
        finally:
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
        loading = replica.state == "starting"
        memory = " (out of memory?)" if loading and code == -9 else ""
        return f"the backend process {how}{' while it loaded the model' if loading else ''}{memory}"

    async def _send_pings(self) -> None:
        """Sends `Ping` to all backends, and kills backends whose steps hang."""
        while True:
            await asyncio.sleep(ipc_protocol.PING_SECONDS)
            self.events.read()  # after a SIGSTOP of this process, messages are waiting
            self._update_ready()
            for replica in self.replicas:
                if replica.state == "down" or replica.pid is None:
                    continue
                self.send(replica.index, ipc_protocol.Ping())
                self._log_responsiveness(replica)
                silence = time.monotonic() - replica.last_message
                if replica.state == "ready" and silence > ipc_protocol.BACKEND_SILENCE_SECONDS:
                    replica.kill_because(
                        f"the backend process was unresponsive for {silence:.0f} s and was killed (SIGKILL)"
                    )

    def _log_responsiveness(self, replica: Replica) -> None:
        unresponsive = replica.state == "ready" and not replica.responds
        if unresponsive and not replica.unresponsive:
            message = "%s: no heartbeat for %.0f s; no requests are sent to it until the next heartbeat"
            log.warning(message, replica.name, ipc_protocol.UNRESPONSIVE_SECONDS)
        elif replica.unresponsive and not unresponsive:
            log.info("%s: heartbeats resumed", replica.name)
        replica.unresponsive = unresponsive

    # -- messages

    def router_addr(self, replica: Replica) -> str:
        """Returns the address at which frontend processes reach the current process of a replica."""
        return f"ipc://{self.socket_directory}/{replica.index}.{replica.starts}"  # the length of the path is limited

    def require_ready(self) -> list[int]:
        """Returns the indices of the ready replicas. Raises RequestError 503 if there are none."""
        if not self.ready:
            raise RequestError("no engine process is ready; retry later", status=503, code="no_backend")
        return self.ready

    def call(self, index: int, operation: Operation) -> asyncio.Future[CallResult | None]:
        """Sends an operation to the backend of replica `index`.

        Returns:
            A future of the result. It is None if the backend is not ready, or exits before it sends the result.
        """
        replica, number = self.replicas[index], next(self.numbers)
        result: asyncio.Future[CallResult | None] = asyncio.get_running_loop().create_future()
        if replica.state != "ready":  # no process would send a result
            result.set_result(None)
            return result
        replica.calls[number] = result
        self.send(replica.index, ipc_protocol.Call(number, operation))
        return result

    async def collect_stats(self, seconds: float) -> None:
        """Requests stats of the ready backends, and returns when they have arrived, or after `seconds`."""
        if calls := [self.call(index, ipc_protocol.ReportStats()) for index in self.ready]:
            await asyncio.wait(calls, timeout=seconds)

    def _update_ready(self) -> None:
        """Recomputes `ready`. Each request reads it several times, so it is not computed on access."""
        self.ready = [r.index for r in self.replicas if r.state == "ready" and r.responds and r.pid]

    def send(self, replica: int, message: Any) -> None:
        """Sends a message to the backend of the replica with this index."""
        # a ROUTER drops the message if the process is not connected yet, or has exited; it needs none then
        self.commands.send(self.replicas[replica].name.encode(), ipc_protocol.encode(message))

    def _sender(self, frames: list[bytes]) -> Replica | None:
        """Returns the backend that sent a message; None for unknown senders and exited processes."""
        replica = find_slot(self.replicas, frames[0]) if len(frames) == 2 else None
        if replica is None or replica.state == "down":
            return None
        replica.last_beat = time.monotonic()
        if replica.unresponsive:
            self._update_ready()
        return replica

    def _on_command(self, frames: list[bytes]) -> None:
        """Replies to `Hello` with `Configure`, or with `Stop` if the versions differ."""
        replica = self._sender(frames)
        if replica is None:
            return
        replica.last_message = replica.last_beat
        try:
            ipc_protocol.decode_hello(frames[1])
        except ValueError as error:
            replica.fatal = f"the backend process has an incompatible protocol: {error}"
            self.send(replica.index, ipc_protocol.Stop(str(error)))
        else:
            self.send(replica.index, ipc_protocol.Configure.of(self.config, self.engine_config(), replica.index))

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
                replica.state = "ready"
                replica.serving_since = time.monotonic()
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
