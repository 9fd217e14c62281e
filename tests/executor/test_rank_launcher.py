"""Tests of the start of ranks.

Strangers who connect to node 0 delay no rank. The time limit holds. Ranks with other devices are refused.
"""

import contextlib
import os
import socket
import threading
import time

import pytest

from runtime.distributed.address import loopback
from runtime.errors import ConfigError
from runtime.executor import executor, rank_launcher
from runtime.executor.executor import MultiprocExecutor
from runtime.executor.rank_launcher import WorkerPlacement, spawn, start_workers
from runtime.executor.rpc import VERSION, Hello, RpcConnection
from tests.wait import TIMEOUT

BEGINNINGS = {
    "silence": b"",
    "a byte": b"\x05",
    "a large length": b"\xff" * 7 + b"\x00",
    "half a message": b"\x20" + b"\0" * 7 + b"x",
}


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind((loopback(), 0))
        return free.getsockname()[1]


def connect(port):
    """Connects as soon as node 0 listens."""
    while True:
        with contextlib.suppress(OSError):
            return socket.create_connection((loopback(), port))
        time.sleep(0.01)


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
def test_a_rank_does_not_wait_for_strangers(port, beginning, monkeypatch):
    monkeypatch.setattr(rank_launcher, "HANDSHAKE_SECONDS", 3600.0)
    held = []

    def arrive():
        held.extend(connect(port) for _ in range(3))
        for stranger in held:
            stranger.sendall(beginning)
        rank = RpcConnection(connect(port))
        rank.send(Hello(VERSION, "elsewhere", 1, 0))
        held.append(rank.socket)

    thread = threading.Thread(target=arrive)
    thread.start()
    (worker,) = start_workers(2, WorkerPlacement(nodes=2, port=port), 3600.0)
    thread.join()
    assert (worker.rank, worker.hello.host) == (1, "elsewhere")
    for connection in (*held, worker.connection):
        connection.close()


def test_a_rank_of_another_host_may_start_slowly(port):
    """Its imports may take minutes, and node 0 waits for seconds, as anyone may connect."""
    processes = []
    thread = threading.Thread(target=lambda: processes.append(spawn(("sleep", "3600"), connect(port), 1, 0)))
    thread.start()
    (worker,) = start_workers(2, WorkerPlacement(nodes=2, port=port), TIMEOUT)
    thread.join()
    assert (worker.rank, worker.hello.node) == (1, 1)
    worker.connection.close()
    processes[0].kill()
    processes[0].wait(TIMEOUT)


def test_a_rank_inherits_descriptors(tmp_path):
    """It opens the store as its own file: to open that of another process, it needs the permission to trace it."""
    ours, theirs = socket.socketpair()
    file, copy = os.memfd_create("store"), tmp_path / "copy"
    os.write(file, b"key")
    with ours:
        assert spawn(("sh", "-c", f"cat /proc/self/fd/{file} > {copy}"), theirs, 0, 1, inherited=(file,)).wait() == 0
    os.close(file)
    assert copy.read_bytes() == b"key"


@pytest.mark.parametrize("beginning", BEGINNINGS.values(), ids=BEGINNINGS)
def test_strangers_do_not_hold_the_start_beyond_its_limit(port, beginning):
    def arrive():
        held.append(connect(port))
        held[0].sendall(beginning)

    held = []
    thread = threading.Thread(target=arrive)
    thread.start()
    with pytest.raises(ConfigError, match="the ranks of node 1 did not connect"):
        start_workers(2, WorkerPlacement(nodes=2, port=port), 1.0)
    thread.join()
    held[0].close()


@pytest.mark.parametrize("nodes", [1, 2])
def test_ranks_with_another_model_of_device_are_refused(port, monkeypatch, nodes):
    """Otherwise their samples, and with them their tables of tokens, would differ in some step."""
    placement, processes = WorkerPlacement(nodes=nodes, port=port), []

    def start_node_1():
        processes.append(spawn(placement.command, connect(port), 1, 0))

    thread = threading.Thread(target=start_node_1 if nodes == 2 else lambda: None)
    thread.start()
    monkeypatch.setattr(executor, "device_name", lambda device: "another")
    with pytest.raises(
        ConfigError, match=r"^--tensor-parallel-size 2: rank 1 has .*, but rank 0 has 'another'; .*--device-ids"
    ):
        MultiprocExecutor(2, placement, 3600.0)
    thread.join()
    for process in processes:
        process.wait(TIMEOUT)
