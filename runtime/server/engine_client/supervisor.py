"""Supervision of the backend processes: start, messages, heartbeats, restart with back-off, stop.

The supervisor knows processes and messages. Requests are the concern of its `ReplicaObserver`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import zmq

from runtime.child_process import module_command
from runtime.config import EngineConfig, ServerConfig
from runtime.errors import ConfigError
from runtime.request.engine_messages import EngineInfo, EngineOutput, EngineStats
from runtime.server.engine_client import ipc_protocol
from runtime.server.engine_client.ipc_protocol import Fatal, Loading, Outputs, Ready, Stats
from runtime.server.engine_client.ipc_sockets import MAX_FRAME_BYTES, bind_private, receive
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
    def on_result(self, replica: int, result: ipc_protocol.AdapterResult | ipc_protocol.ProfileResult) -> None: ...
    def on_down(self, replica: int, reason: str) -> None: ...


class Replica:
    """One backend's place: the process in it changes at every restart, and its name with it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.starts = 0
        self.state = ReplicaState.STARTING
        self.process: asyncio.subprocess.Process | None = None
        self.spawned = asyncio.Event()
        self.loading = Loading("start", 0, 0)
        self.fatal: str | None = None  # reason that the current process sent
        self.exit_reason = ""  # of the last process that ended
        self.reported = asyncio.Event()  # set by each `Stats`
        self.last_message = 0.0  # when its engine's thread sent something
        self.last_beat = 0.0  # when its process sent anything
        self.unresponsive = False  # as last logged
        self.ready_since = 0.0
        self.served = 0.0  # seconds, of the last process that ended

    @property
    def name(self) -> str:
        return f"backend-{self.index}.{self.starts}"

    @property
    def responds(self) -> bool:
        return time.monotonic() - self.last_beat < ipc_protocol.UNRESPONSIVE_SECONDS

    @property
    def exited(self) -> bool:
        """Whether the current process has ended. The state follows once the reason has been read."""
        return self.process is not None and self.process.returncode is not None


class Supervisor:
    """The backends of one server.

    `on_give_up(sentence)` is called when the server cannot start: no backend has ever been ready, and one failed.
    """

    def __init__(
        self,
        config: ServerConfig,
        observer: ReplicaObserver,
        command_addr: str,
        event_addr: str,
        on_give_up: Callable[[str], None],
        backend_command: tuple[str, ...] = BACKEND_COMMAND,
        router_dir: Path | None = None,
    ) -> None:
        self.config = config
        self.observer = observer
        self.addresses = (command_addr, event_addr)
        self.on_give_up, self.backend_command = on_give_up, backend_command
        self.router_dir = router_dir  # of the sockets for frontend processes, if there are several
        self.engine_config: Callable[[], EngineConfig] = lambda: config.engine  # for new processes
        self.replicas = [Replica(i) for i in range(config.data_parallel_size)]
        self.ready: list[int] = []  # indices of the replicas that serve
        self.ever_ready = self.stopping = False
        self.tasks: list[asyncio.Task[None]] = []
        self.context = zmq.Context()
        self.commands = self._bind(zmq.ROUTER, command_addr)
        self.events = self._bind(zmq.PULL, event_addr)

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
        loop = asyncio.get_running_loop()
        loop.add_reader(self.commands.fileno(), self._read_commands)
        loop.add_reader(self.events.fileno(), self._read_events)
        self.tasks = [asyncio.create_task(self._supervise(replica)) for replica in self.replicas]
        self.tasks.append(asyncio.create_task(self._send_pings()))
        for replica in self.replicas:
            await replica.spawned.wait()

    async def stop(self, reason: str) -> None:
        """End every backend: by message, then by force."""
        self.stopping = True
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for replica in self.replicas:
            if replica.state is ReplicaState.READY:
                self._send(replica, ipc_protocol.Stop(reason))
            else:
                _kill(replica.process)  # nothing is lost, and a loading process may not listen for long
        alive = [r.process for r in self.replicas if r.process is not None and r.process.returncode is None]
        if alive:
            _, pending = await asyncio.wait([asyncio.create_task(p.wait()) for p in alive], timeout=STOP_SECONDS)
            if pending:
                self.kill()
                await asyncio.wait(pending)
        loop = asyncio.get_running_loop()
        for socket in (self.commands, self.events):
            loop.remove_reader(socket.fileno())
        self.context.destroy()

    def kill(self) -> None:
        """End every backend process at once."""
        for replica in self.replicas:
            _kill(replica.process)

    async def _supervise(self, replica: Replica) -> None:
        """Run a backend in this place for ever."""
        back_off = BackOff()
        while True:
            reason = await self._run(replica)
            self._down(replica, reason)
            if not self.ever_ready:
                self.on_give_up(reason)
                return
            log.error("%s exited: %s. It is restarted", replica.name, reason)
            seconds = back_off.after(replica.served)
            log.info("restarting backend %d in %.1f s", replica.index, seconds)
            await asyncio.sleep(seconds)

    def _down(self, replica: Replica, reason: str) -> None:  # once for each process, as soon as it says that it ends
        if replica.state is not ReplicaState.DOWN:
            replica.served = time.monotonic() - replica.ready_since if replica.state is ReplicaState.READY else 0.0
            replica.state, replica.exit_reason = ReplicaState.DOWN, reason
            self._update_ready()
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
        self._read_events()
        # the message may arrive after the exit
        while code == 1 and replica.fatal is None and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
            self._read_events()
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
            self._read_commands()
            self._read_events()
            self._update_ready()
            for replica in self.replicas:
                if replica.state is ReplicaState.DOWN or replica.process is None or replica.exited:
                    continue
                self._send(replica, ipc_protocol.Ping())
                self._log_responsiveness(replica)
                silence = time.monotonic() - replica.last_message
                if replica.state is ReplicaState.READY and silence > ipc_protocol.BACKEND_SILENCE_SECONDS:
                    replica.fatal = f"the backend process was unresponsive for {silence:.0f} s and was killed (SIGKILL)"
                    replica.process.kill()

    def _log_responsiveness(self, replica: Replica) -> None:
        unresponsive = replica.state is ReplicaState.READY and not replica.responds
        if unresponsive != replica.unresponsive:
            replica.unresponsive = unresponsive
            if unresponsive:
                seconds = ipc_protocol.UNRESPONSIVE_SECONDS
                log.warning(
                    "%s: no heartbeat for %.0f s; no requests are sent to it until the next heartbeat",
                    replica.name,
                    seconds,
                )
            else:
                log.info("%s: heartbeats resumed", replica.name)

    # -- messages

    def router_addr(self, replica: Replica) -> str:
        """Returns the address at which frontend processes reach the current process of a replica."""
        return f"ipc://{self.router_dir}/{replica.index}.{replica.starts}"  # a path of a socket is short

    async def collect_stats(self, seconds: float) -> None:
        """Returns when the ready backends have sent their current stats, or after `seconds`."""
        asked = [self.replicas[index] for index in self.ready]
        for replica in asked:
            replica.reported.clear()
            self._send(replica, ipc_protocol.ReportStats())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                for replica in asked:
                    await replica.reported.wait()

    def _update_ready(self) -> None:
        """Recomputes `ready`. Requests read it several times each, so it is not computed on access."""
        self.ready = [r.index for r in self.replicas if r.state is ReplicaState.READY and r.responds and not r.exited]

    def send(self, index: int, message: Any) -> None:
        self._send(self.replicas[index], message)

    def _send(self, replica: Replica, message: Any) -> None:
        # to a name that is not connected (yet, or any more) a ROUTER drops the message, which is what we want
        self.commands.send_multipart([replica.name.encode(), ipc_protocol.encode(message)], zmq.NOBLOCK)
        self._read_commands()  # a send may swallow the descriptor's edge

    def _read_commands(self) -> None:
        """Answer the hellos."""
        while (found := self._receive(self.commands)) is not None:
            replica, data = found
            replica.last_message = replica.last_beat
            try:
                ipc_protocol.decode_hello(data)
            except ValueError as error:
                replica.fatal = f"the backend process has an incompatible protocol: {error}"
                self._send(replica, ipc_protocol.Stop(str(error)))
                continue
            self._send(replica, ipc_protocol.Configure.of(self.config, self.engine_config(), replica.index))

    def _read_events(self) -> None:
        while (found := self._receive(self.events)) is not None:
            replica, data = found
            try:
                event = ipc_protocol.decode_event(data)
            except ValueError as error:
                log.error("%s: ignoring an invalid message: %s", replica.name, error)
                continue
            self._on_event(replica, event)

    def _receive(self, socket: zmq.Socket[bytes]) -> tuple[Replica, bytes] | None:
        """The next message of a backend that lives, None when there is none; what others say is dropped."""
        while not socket.closed:
            try:
                message = receive(socket)
            except zmq.Again:
                return None
            if message is not None and (replica := self._named(message[0])) is not None:
                replica.last_beat = time.monotonic()
                if replica.unresponsive:
                    self._update_ready()
                return replica, message[1]
        return None

    def _named(self, name: bytes) -> Replica | None:
        return next((r for r in self.replicas if r.name.encode() == name and r.state is not ReplicaState.DOWN), None)

    def _on_event(self, replica: Replica, event: ipc_protocol.Event) -> None:
        if not isinstance(event, ipc_protocol.Heartbeat):
            replica.last_message = replica.last_beat
        match event:
            case Outputs(outputs):
                self.observer.on_outputs(replica.index, outputs)
            case Stats(stats):
                replica.reported.set()
                self.observer.on_stats(replica.index, stats)
            case ipc_protocol.AdapterResult() | ipc_protocol.ProfileResult():
                self.observer.on_result(replica.index, event)
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


FIRST_DELAY_SECONDS, MAX_DELAY_SECONDS = 0.5, 30.0  # before the next process starts; doubled with every one that ends
RESET_SECONDS = 60.0  # one that served for so long is followed as the first was


class BackOff:
    """Of one place."""

    def __init__(self) -> None:
        self._next = FIRST_DELAY_SECONDS

    def after(self, served: float) -> float:
        """Seconds until the next one starts, after one that served for so many."""
        if served > RESET_SECONDS:
            self._next = FIRST_DELAY_SECONDS
        seconds = self._next
        self._next = min(2 * seconds, MAX_DELAY_SECONDS)
        return seconds


def describe_exit(code: int) -> str:
    """How a process ended, by its exit code."""
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
