"""Tests of the addresses at which the processes of a replica connect, for IPv4 and IPv6."""

from __future__ import annotations

import socket
import subprocess
import threading

import pytest
import torch

from runtime.distributed import process_group as groups
from runtime.distributed.address import create_listener, endpoint, resolve
from runtime.errors import ConfigError
from runtime.executor.rank_launcher import WorkerPlacement, start_workers
from runtime.executor.rpc import VERSION, Hello, RpcConnection
from tests.networks import needs_ipv6, needs_namespaces, python_in_namespace
from tests.server.harness import ROOT
from tests.wait import TIMEOUT

ADDRESSES = ["127.0.0.1", pytest.param("::1", marks=needs_ipv6)]


@pytest.mark.parametrize(
    ("host", "address"),
    [("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("[::1]", "::1"), ("2001:DB8::0:1", "2001:db8::1")],
)
def test_an_address_resolves_to_itself(host: str, address: str) -> None:
    assert resolve(host) == address


def test_a_name_with_addresses_of_both_families_is_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    six = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 0, 0, 0))
    four = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0))
    for found, address in (([six, four], "10.0.0.1"), ([six], "2001:db8::1")):
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, found=found, **__: found)
        assert resolve("node-0.example") == address


def test_a_name_that_is_not_resolved_yet_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    attempts: list[str] = []

    def getaddrinfo(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        attempts.append(host)
        if len(attempts) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr("runtime.distributed.address.RETRY_SECONDS", 0.01)
    with pytest.raises(OSError, match="not known"):
        resolve("node-0.engine")
    assert resolve("node-0.engine", 3600.0) == "10.0.0.1"
    assert len(attempts) == 3


@pytest.mark.parametrize(
    ("host", "shown"),
    [("10.0.0.1", "10.0.0.1:5"), ("fd00::1", "[fd00::1]:5"), ("fe80::1%eth0", "[fe80::1%25eth0]:5"), ("a", "a:5")],
)
def test_an_endpoint_is_shown_as_in_a_url(host: str, shown: str) -> None:
    assert endpoint(host, 5) == shown


LOOPBACK = """
from runtime.distributed.address import loopback
print(loopback())
"""


@needs_ipv6
@needs_namespaces
@pytest.mark.parametrize(("setup", "address"), [("true", "127.0.0.1"), ("ip -4 addr flush dev lo", "::1")])
def test_ranks_of_one_host_meet_at_an_address_that_its_loopback_has(setup: str, address: str) -> None:
    done = subprocess.run(python_in_namespace(LOOPBACK, (), setup), cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == address, done.stderr


@pytest.mark.parametrize("address", ADDRESSES)
def test_ranks_connect_to_a_store_and_all_reduce_tensors(address: str) -> None:
    store = groups.make_store(address, TIMEOUT)
    sums: list[float] = []

    def join(rank: int) -> None:
        own = store if rank == 0 else groups.make_store(address, TIMEOUT, store.port)
        group = groups.init_process_group(rank, 2, own, torch.device("cpu"), TIMEOUT, address)
        sums.append(group.all_reduce(torch.full((1,), 1.0 + rank)).item())

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert sums == [3.0, 3.0]


@pytest.mark.parametrize("address", ADDRESSES)
def test_ranks_of_another_host_connect_to_the_first(address: str) -> None:
    with create_listener(address, 0) as free:
        port = free.getsockname()[1]
    found: list[int] = []

    def first() -> None:
        found.extend(
            peer.rank for peer in start_workers(2, WorkerPlacement(nodes=2, address=address, port=port), TIMEOUT)
        )

    thread = threading.Thread(target=first)
    thread.start()
    while thread.is_alive():
        try:
            connection = socket.create_connection((address, port), TIMEOUT)
        except ConnectionRefusedError:
            continue
        with connection:
            RpcConnection(connection).send(Hello(VERSION, "host", 1, 0))
            thread.join(TIMEOUT)
    assert found == [1]


@needs_ipv6
def test_ranks_that_do_not_connect_are_reported_with_the_address() -> None:
    with create_listener("::1", 0) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"did not connect to \[::1\]:{port} within"):
        start_workers(2, WorkerPlacement(nodes=2, address="::1", port=port), 0.01)
