"""The other ranks as the leading one sees them: what they answer, and when one is lost."""

from __future__ import annotations

import logging
import queue
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable

from runtime.distributed.rpc import Beat, Failed, Gone, Hello, Message, Wire
from runtime.errors import ConfigError, ReplicaLost

log = logging.getLogger("unmask.ranks")

SILENCE_SECONDS = 10.0  # of a rank that serves: it hangs
LOOK_SECONDS = 0.25
END_SECONDS = 0.5  # for a process whose end of the wire has closed, until its exit code is there


class Peer:
    """One of them; `process` if it runs on this host, as it was started here."""

    def __init__(self, rank: int, wire: Wire, hello: Hello, process: subprocess.Popen[bytes] | None) -> None:
        self.rank = rank
        self.wire = wire
        self.hello = hello
        self.process = process
        self.last_seen = 0.0  # time of its last message, on the clock of `Watch`

    @property
    def name(self) -> str:
        here = self.hello.host == socket.gethostname()
        return f"rank {self.rank}" if here else f"rank {self.rank} on {self.hello.host}"

    def end(self) -> str:
        """How it went, when its end of the wire has closed."""
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


class Watch:
    """Receives the messages of the other ranks in a thread.

    It calls `lost(sentence)` there, once, when the replica cannot continue: a rank has exited, reported a failure or
    sent nothing for `silence` seconds (SILENCE_SECONDS by default), or a step takes longer than `seconds`.
    """

    def __init__(
        self,
        peers: list[Peer],
        seconds: float,
        lost: Callable[[str], None],
        silence: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.clock = clock
        self.peers = peers
        for peer in peers:
            peer.last_seen = clock()
        self.seconds = seconds
        self.silence = SILENCE_SECONDS if silence is None else silence
        self.lost = lost
        self.failure: ReplicaLost | ConfigError | None = None
        self.serving = False  # before, a rank may be busy for long without a word
        self.since: float | None = None  # when the step began that is under way
        self.closed = False
        self._answers: queue.Queue[tuple[Peer, Message] | None] = queue.Queue()
        self.thread = threading.Thread(target=self._hear, daemon=True)
        self.thread.start()

    def answers(self, kind: type[Message]) -> dict[int, Message]:
        """One of each peer. Raises ReplicaLost, or ConfigError where a rank says so."""
        found: dict[int, Message] = {}
        began = time.monotonic()
        while len(found) < len(self.peers):
            self.check()
            try:
                answer = self._answers.get(timeout=max(0.0, began + self.seconds - time.monotonic()))
            except queue.Empty:
                late = ", ".join(peer.name for peer in self.peers if peer.rank not in found)
                raise ConfigError(
                    f"--distributed-timeout-seconds {self.seconds:g}: {late} did not answer in time; give more, or see "
                    "what it is at"
                ) from None
            if answer is not None:
                peer, message = answer
                if not isinstance(message, kind):
                    raise ReplicaLost(f"{peer.name} said {type(message).__name__} out of turn")
                found[peer.rank] = message
        return found

    def check(self) -> None:
        """Raises what ended the replica."""
        if self.failure is not None:
            raise self.failure

    def _hear(self) -> None:
        poller = select.poll()
        by_socket = {peer.wire.fileno(): peer for peer in self.peers}
        for descriptor in by_socket:
            poller.register(descriptor, select.POLLIN | select.POLLRDHUP)
        while self.failure is None and not self.closed:
            for descriptor, _ in poller.poll(LOOK_SECONDS * 1000):
                peer = by_socket[descriptor]
                try:
                    message, _ = peer.wire.receive()
                except Gone:
                    self.fail(ReplicaLost(peer.end()))
                    return
                except ValueError as error:
                    self.fail(ReplicaLost(f"{peer.name} cannot be understood: {error}"))
                    return
                peer.last_seen = self.clock()
                self._take(peer, message)
            self._look()

    def _take(self, peer: Peer, message: Message) -> None:
        match message:
            case Beat():
                pass
            case Failed(sentence, user):
                self.fail(ConfigError(sentence) if user else ReplicaLost(f"{peer.name} {sentence}"))
            case _:
                self._answers.put((peer, message))

    def _look(self) -> None:
        now, since = self.clock(), self.since
        for peer in self.peers:
            if now - peer.last_seen > (self.silence if self.serving else self.seconds):
                self.fail(ReplicaLost(f"{peer.name} has said nothing for {now - peer.last_seen:.0f} s"))
        if since is not None and now - since > self.seconds:
            self.fail(ReplicaLost(f"a step took longer than --distributed-timeout-seconds, {self.seconds:g} s"))

    def fail(self, failure: ReplicaLost | ConfigError) -> None:
        """End what waits for the peers, and tell."""
        if self.failure is not None or self.closed:
            return
        self.failure = failure
        self._answers.put(None)
        self.lost(str(failure))
