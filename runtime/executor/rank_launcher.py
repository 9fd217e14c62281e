"""Starts the ranks of a replica on this host, and accepts connections of ranks on other hosts. Imports no torch."""

from __future__ import annotations

import contextlib
import logging
import queue
import signal
import socket
import subprocess
import threading
import time
from dataclasses import dataclass, field

from runtime.child_process import module_command
from runtime.config import ServerConfig
from runtime.distributed.address import create_listener, endpoint, loopback, without_brackets
from runtime.errors import ConfigError
from runtime.executor.monitor import WorkerHandle
from runtime.executor.rpc import VERSION, ConnectionClosed, Hello, RpcConnection

RANK_COMMAND = module_command("runtime.executor.rank_worker")


log = logging.getLogger("unmask.node")
RETRY_SECONDS = 0.5  # interval of attempts to connect to node 0
HANDSHAKE_SECONDS = 10.0  # until a connection of another host has sent its `Hello`
ACCEPT_SECONDS = 0.1  # interval in which ranks that have arrived are counted
MAX_HANDSHAKES = 64  # connections at once that have sent no `Hello` yet


@dataclass(frozen=True)
class WorkerPlacement:
    """Placement of a replica's ranks.

    Attributes:
        devices: indices of the GPUs on each host; None: the ranks run on the CPU.
        nodes: number of hosts, with the same number of ranks on each.
        address, port: address of this host to which other hosts connect.
        command: command that starts a rank on this host.
    """

    devices: tuple[int, ...] | None = None
    nodes: int = 1
    address: str = field(default_factory=loopback)
    port: int = 0
    command: tuple[str, ...] = RANK_COMMAND

    def device_of(self, local: int) -> str:
        """Returns torch's name of the device of the rank with the index `local` on its host."""
        return "cpu" if self.devices is None else f"cuda:{self.devices[local]}"


def spawn(
    command: tuple[str, ...], connection: socket.socket, node: int, local: int, device: int | None = None,
    inherited: tuple[int, ...] = (),
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Starts a rank.

    Args:
        command: command of the process.
        connection: connection to rank 0, which is passed to the process and closed here.
        node: index of the host.
        local: index of the rank on its host.
        device: GPU to use instead of that of its `Join` message.
        inherited: descriptors that the process has too, under the same numbers.
    """
    with connection:
        if node:  # the process cannot: its imports may take longer than node 0 waits for a `Hello`
            with contextlib.suppress(ConnectionClosed):
                RpcConnection(connection).send(Hello(VERSION, socket.gethostname(), node, local))
        descriptor = connection.fileno()
        arguments = ["--socket", str(descriptor), "--node", str(node), "--local", str(local)]
        if device is not None:
            arguments += ["--device", str(device)]
        return subprocess.Popen(
            (*command, *arguments), pass_fds=(descriptor, *inherited), stdin=subprocess.DEVNULL, start_new_session=True
        )


def start_workers(
    size: int, placement: WorkerPlacement, seconds: float, inherited: tuple[int, ...] = ()
) -> list[WorkerHandle]:
    """Starts or accepts all ranks except rank 0, and waits for their `Hello`.

    Args:
        size: number of ranks.
        placement: hosts and devices of the ranks.
        seconds: timeout.
        inherited: see `spawn`; for the ranks on this host.

    Returns:
        The ranks in ascending order.

    Raises:
        ConfigError: a rank does not connect in time.
    """
    if size % placement.nodes:
        raise ConfigError(f"--num-nodes {placement.nodes} does not divide --tensor-parallel-size {size}")
    ranks_per_node = size // placement.nodes
    until = time.monotonic() + seconds
    with contextlib.ExitStack() as undo:
        started: list[tuple[RpcConnection, subprocess.Popen[bytes] | None]] = []
        for local in range(1, ranks_per_node):
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            process = spawn(placement.command, theirs, 0, local, inherited=inherited)
            undo.callback(process.kill)
            started.append((RpcConnection(ours), process))
        workers = [_handshake(connection, process, ranks_per_node, until) for connection, process in started]
        if placement.nodes > 1:
            workers += _accept_remote(size, ranks_per_node, placement, until, undo)
        undo.pop_all()
    return sorted(workers, key=lambda worker: worker.rank)


def _accept_remote(
    size: int, ranks_per_node: int, placement: WorkerPlacement, until: float, undo: contextlib.ExitStack
) -> list[WorkerHandle]:
    try:
        listener = create_listener(placement.address, placement.port)
    except OSError as error:
        raise ConfigError(
            f"--master-addr {placement.address} --master-port {placement.port}: cannot be listened on: {error.strerror}"
        ) from None
    found: dict[int, WorkerHandle] = {}
    arrived: queue.SimpleQueue[WorkerHandle] = queue.SimpleQueue()
    free = threading.BoundedSemaphore(MAX_HANDSHAKES)

    def greet(connection: RpcConnection) -> None:
        """Waits for the `Hello` of one connection. Others do not wait for it: anyone may connect and be silent."""
        try:
            arrived.put(_handshake(connection, None, ranks_per_node, min(until, time.monotonic() + HANDSHAKE_SECONDS)))
        except (ConfigError, ValueError):
            connection.close()  # not a rank of this replica
        finally:
            free.release()

    with listener:
        listener.settimeout(ACCEPT_SECONDS)
        while len(found) < size - ranks_per_node:
            if time.monotonic() > until:
                absent = sorted(set(range(1, placement.nodes)) - {rank // ranks_per_node for rank in found})
                raise ConfigError(
                    f"--num-nodes {placement.nodes}: the ranks of node {', '.join(map(str, absent))} did not connect "
                    f"to {endpoint(placement.address, placement.port)} within --distributed-timeout-seconds; "
                    "start them, or check the network"
                )
            if free.acquire(timeout=ACCEPT_SECONDS):
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    free.release()
                else:
                    threading.Thread(target=greet, args=(RpcConnection(connection),), daemon=True).start()
            while not arrived.empty():
                worker = arrived.get()
                if worker.rank in found or not ranks_per_node <= worker.rank < size:
                    worker.connection.close()
                else:
                    undo.callback(worker.connection.close)
                    found[worker.rank] = worker
    return list(found.values())


def _handshake(
    connection: RpcConnection, process: subprocess.Popen[bytes] | None, ranks_per_node: int, until: float
) -> WorkerHandle:
    """Waits for the `Hello` of a rank, and computes its rank from its node and its index on the node."""
    try:
        hello = connection.receive_first(until)
    except TimeoutError:
        raise ConfigError("--distributed-timeout-seconds: a rank's process did not start in time; raise it") from None
    except ConnectionClosed:
        code = None if process is None else process.wait()
        raise ConfigError(f"a rank's process could not be started: it ended with exit code {code}") from None
    if not isinstance(hello, Hello) or hello.version != VERSION:
        raise ConfigError("a rank's process is of another version of this program; use the same on all hosts")
    return WorkerHandle(hello.node * ranks_per_node + hello.local, connection, hello, process)


def run_node(config: ServerConfig, command: tuple[str, ...] = RANK_COMMAND) -> int:
    """Runs the ranks of this node until SIGTERM, and restarts them when the replica exits. Returns the exit code.

    Raises:
        ConfigError: node 0 cannot be reached in time.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        while True:
            for local, device in enumerate(config.devices_of(0)):
                ranks.append(spawn(command, _connect(config), config.node_rank, local, device))
            log.info("Started %d ranks of node %d for node 0 at %s", len(ranks), config.node_rank, config.master_addr)
            while all(rank.poll() is None for rank in ranks):
                time.sleep(0.1)
            log.warning("Replica exited; restarting local ranks")
            _end(ranks)
            time.sleep(RETRY_SECONDS)
    except KeyboardInterrupt:
        return 0
    finally:
        _end(ranks)


def _connect(config: ServerConfig) -> socket.socket:
    seconds = config.engine.distributed_timeout_seconds
    until = time.monotonic() + seconds
    address = (without_brackets(config.master_addr), config.master_port or 0)
    while True:
        try:
            connection = socket.create_connection(address, timeout=max(until - time.monotonic(), 0.1))
        except OSError as error:
            if time.monotonic() > until:
                raise ConfigError(
                    f"--master-addr {address[0]} --master-port {address[1]}: node 0 did not accept connections within "
                    f"--distributed-timeout-seconds, {seconds:g} s: {error.strerror or error}; start it, or "
                    "check the network"
                ) from None
            time.sleep(RETRY_SECONDS)
        else:
            connection.settimeout(None)
            return connection


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.kill()
    for rank in ranks:
        rank.wait()
    ranks.clear()
