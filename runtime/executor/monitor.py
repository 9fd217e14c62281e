"""Rank 0's monitor of the other ranks: receives their messages and detects lost ranks."""

from __future__ import annotations

import logging
import queue
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable

from runtime.errors import ConfigError, ReplicaLost
from runtime.executor.rpc import ConnectionClosed, Heartbeat, Hello, Message, RpcConnection, WorkerFailed

log = logging.getLogger("unmask.ranks")

SILENCE_SECONDS = 10.0  # a rank of a loaded engine that sends nothing for this time is lost
POLL_SECONDS = 0.25  # interval of checks for lost ranks
END_SECONDS = 0.5  # maximum wait for the exit code of a process after its connection was closed


class WorkerHandle:
    """A rank other than rank 0.

    Attributes:
        process: the process of the rank if it was started on this host, else None.
        last_seen: time of its last message, on the monitor's clock.
    """

    def __init__(
        self, rank: int, connection: RpcConnection, hello: Hello, process: subprocess.Popen[bytes] | None
    ) -> None:
        self.rank = rank
        self.connection = connection
        self.hello = hello
        self.process = process
        self.last_seen = 0.0

    @property
    def name(self) -> str:
        here = self.hello.host == socket.gethostname()
        return f"rank {self.rank}" if here else f"rank {self.rank} on {self.hello.host}"

    def describe_exit(self) -> str:
        """Describes how the rank ended, after its connection was closed."""
        if self.process is None:
            return f"{self.name} has gone"
        try:
            code = self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{self.name} has gone"
        if code < 0:
            memory = " (out of memory?)" if code == -9 else ""
            return f"{self.name} was killed by signal {-code}{memory}"
        return f"{self.name} ended with exit code {code}"


class WorkerMonitor:
    """Receives the messages of the other ranks in a thread, and detects that the replica is lost.

    The replica is lost if one of these conditions holds:

    * a rank has exited or reported a failure;
    * a rank has sent nothing for `silence` seconds;
    * a step takes longer than `seconds`.

    The thread then calls `on_lost(reason)` once.

    Args:
        workers: the other ranks.
        seconds: maximum duration of a step, and of a reply.
        on_lost: called with the reason.
        silence: seconds; None: `SILENCE_SECONDS`.
        clock: returns seconds, for tests.

    Attributes:
        failure: the reason if the replica is lost, else None.
        serving: an engine is loaded. While it loads, a rank may send nothing for up to `seconds`.
        step_started: start of the current step, on the clock; None between steps.
        closed: the executor has ended the ranks, so their exit is no failure.
    """

    def __init__(
        self,
        workers: list[WorkerHandle],
        seconds: float,
        on_lost: Callable[[str], None],
        silence: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.workers = workers
        for worker in workers:
            worker.last_seen = clock()
        self.seconds = seconds
        self.silence = SILENCE_SECONDS if silence is None else silence
        self.on_lost = on_lost
        self.failure: ReplicaLost | ConfigError | None = None
        self.serving = False
        self.step_started: float | None = None
        self.closed = False
        self._replies: queue.Queue[tuple[WorkerHandle, Message] | None] = queue.Queue()
        self.thread = threading.Thread(target=self._receive_messages, daemon=True)
        self.thread.start()

    def gather_replies(self, kind: type[Message]) -> dict[int, Message]:
        """Waits for one reply of this type from each rank.

        Raises:
            ReplicaLost: a rank has exited or failed.
            ConfigError: a rank reported a configuration error, or did not reply in time.
        """
        found: dict[int, Message] = {}
        began = time.monotonic()
        while len(found) < len(self.workers):
            self.check()
            try:
                reply = self._replies.get(timeout=max(0.0, began + self.seconds - time.monotonic()))
            except queue.Empty:
                missing = ", ".join(worker.name for worker in self.workers if worker.rank not in found)
                raise ConfigError(
                    f"--distributed-timeout-seconds {self.seconds:g}: {missing} did not answer in time; raise it, or "
                    "check the state of that process"
                ) from None
            if reply is not None:
                worker, message = reply
                if not isinstance(message, kind):
                    raise ReplicaLost(f"{worker.name} sent an unexpected {type(message).__name__}")
                found[worker.rank] = message
        return found

    def check(self) -> None:
        """Raises `failure` if the replica is lost."""
        if self.failure is not None:
            raise self.failure

    def _receive_messages(self) -> None:
        poller = select.poll()
        by_socket = {worker.connection.fileno(): worker for worker in self.workers}
        for descriptor in by_socket:
            poller.register(descriptor, select.POLLIN | select.POLLRDHUP)
        while self.failure is None and not self.closed:
            for descriptor, _ in poller.poll(POLL_SECONDS * 1000):
                worker = by_socket[descriptor]
                try:
                    message = worker.connection.receive()
                except ConnectionClosed:
                    self.fail(ReplicaLost(worker.describe_exit()))
                    return
                except ValueError as error:
                    self.fail(ReplicaLost(f"{worker.name} sent an invalid message: {error}"))
                    return
                worker.last_seen = self.clock()
                self._on_message(worker, message)
            self._check_liveness()

    def _on_message(self, worker: WorkerHandle, message: Message) -> None:
        match message:
            case Heartbeat():
                pass
            case WorkerFailed(sentence, user):
                self.fail(ConfigError(sentence) if user else ReplicaLost(f"{worker.name} {sentence}"))
            case _:
                self._replies.put((worker, message))

    def _check_liveness(self) -> None:
        now, since = self.clock(), self.step_started
        for worker in self.workers:
            if now - worker.last_seen > (self.silence if self.serving else self.seconds):
                self.fail(ReplicaLost(f"{worker.name} has sent nothing for {now - worker.last_seen:.0f} s"))
        if since is not None and now - since > self.seconds:
            self.fail(ReplicaLost(f"a step took longer than --distributed-timeout-seconds, {self.seconds:g} s"))

    def fail(self, failure: ReplicaLost | ConfigError) -> None:
        """Sets the failure, ends waits for replies, and calls `on_lost`. Only the first failure counts."""
        if self.failure is not None or self.closed:
            return
        self.failure = failure
        self._replies.put(None)
        self.on_lost(str(failure))
