"""Processes of ranks: those of this host are started, those of others come by themselves."""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field

from runtime.distributed.address import create_listener, endpoint, loopback
from runtime.distributed.monitor import Peer
from runtime.distributed.rpc import VERSION, Gone, Hello, Wire
from runtime.errors import ConfigError

FOLLOW = (sys.executable, "-m", "runtime.distributed.rank_worker")


@dataclass(frozen=True)
class Place:
    """Where a replica's ranks run: `nodes` hosts, as many on each. `devices`: of this host's, and of the others' alike;
    none: they compute on the CPU. `address` and `port` are those of this host, where the ranks of others come to.
    `command` starts a rank here."""

    devices: tuple[int, ...] | None = None
    nodes: int = 1
    address: str = field(default_factory=loopback)
    port: int = 0
    command: tuple[str, ...] = FOLLOW

    def device_of(self, local: int) -> str:
        return "cpu" if self.devices is None else f"cuda:{self.devices[local]}"


def spawn(
    command: tuple[str, ...], connection: socket.socket, node: int, local: int, device: int | None = None
) -> subprocess.Popen[bytes]:
    """A rank that speaks on `connection`, which is its own from now on. `device`: another GPU than it is told."""
    with connection:
        descriptor = connection.fileno()
        arguments = ["--socket", str(descriptor), "--node", str(node), "--local", str(local)]
        if device is not None:
            arguments += ["--device", str(device)]
        return subprocess.Popen(
            (*command, *arguments), pass_fds=(descriptor,), stdin=subprocess.DEVNULL, start_new_session=True
        )


def gather_peers(size: int, place: Place, seconds: float) -> list[Peer]:
    """All ranks but the first, in their order, when each has said hello. ConfigError if one does not in time."""
    if size % place.nodes:
        raise ConfigError(f"--num-nodes {place.nodes} does not divide --tensor-parallel-size {size}")
    each = size // place.nodes
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as undo:
        started: list[tuple[Wire, subprocess.Popen[bytes] | None]] = []
        for local in range(1, each):
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            process = spawn(place.command, theirs, 0, local)
            undo.callback(process.kill)
            started.append((Wire(ours), process))
        peers = [_greeted(wire, process, each, until) for wire, process in started]
        if place.nodes > 1:
            peers += _others(size, each, place, until, undo)
        undo.pop_all()
    return sorted(peers, key=lambda peer: peer.rank)


def _others(size: int, each: int, place: Place, until: float, undo: contextlib.ExitStack) -> list[Peer]:
    try:
        listener = create_listener(place.address, place.port)
    except OSError as error:
        raise ConfigError(
            f"--master-addr {place.address} --master-port {place.port}: cannot be listened on: {error.strerror}"
        ) from None
    found: dict[int, Peer] = {}
    with listener:
        while len(found) < size - each:
            listener.settimeout(max(until - time.monotonic(), 0.01))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                absent = sorted({rank // each for rank in range(each, size)} - {rank // each for rank in found})
                raise ConfigError(
                    f"--num-nodes {place.nodes}: the ranks of node {', '.join(map(str, absent))} did not come to "
                    f"{endpoint(place.address, place.port)} within --distributed-timeout-seconds"
                ) from None
            connection.settimeout(None)
            undo.callback(connection.close)
            try:
                peer = _greeted(Wire(connection), None, each, min(until, time.monotonic() + 10))
            except (ConfigError, Gone, ValueError):
                connection.close()  # nobody of ours
                continue
            if peer.rank in found or not each <= peer.rank < size:
                connection.close()
                continue
            found[peer.rank] = peer
    return list(found.values())


def _greeted(wire: Wire, process: subprocess.Popen[bytes] | None, each: int, until: float) -> Peer:
    """The peer at the other end, whose rank follows from where it is."""
    poller = select.poll()
    poller.register(wire.fileno(), select.POLLIN)
    if not poller.poll(max(until - time.monotonic(), 0) * 1000):
        raise ConfigError("--distributed-timeout-seconds: a rank's process did not start in time; give more")
    try:
        hello, _ = wire.receive()
    except Gone:
        code = None if process is None else process.wait()
        raise ConfigError(f"a rank's process could not be started: it ended with exit code {code}") from None
    if not isinstance(hello, Hello) or hello.version != VERSION:
        raise ConfigError("a rank's process is of another version of this program; use the same on all hosts")
    return Peer(hello.node * each + hello.local, wire, hello, process)
