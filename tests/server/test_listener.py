"""Tests of the listening socket: its default, its address families, the logged URL, and the addresses of clients."""

import asyncio
import errno
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from runtime.config import parse
from runtime.errors import ConfigError
from runtime.server.http_protocol.guarded_protocol import unmapped
from runtime.server.http_protocol.limits import Limits
from runtime.server.http_protocol.listener import describe, is_reachable, listen, listener_url
from runtime.server.http_server import HttpServer
from runtime.server.metrics import RequestMetrics
from tests.networks import NAMESPACES, TARGETS, needs_ipv6, needs_namespaces, python_in_namespace
from tests.server.harness import FAKE, ROOT, serving
from tests.server.test_acceptor import app
from tests.wait import TIMEOUT, wait_until, wait_until_async

WILDCARDS = ["::", "[::]", "", "0:0:0:0:0:0:0:0"]


def accepts(listener: socket.socket, address: str) -> str:
    """Connects to the listener at this address, and returns the client's address as the listener sees it."""
    with socket.create_connection((address, listener.getsockname()[1]), TIMEOUT):
        connection, client = listener.accept()
        connection.close()
    return str(client[0])


def fail_for_ipv6(monkeypatch: pytest.MonkeyPatch, method: str, number: int) -> None:
    """Makes this method of IPv6 sockets raise OSError, as on a host without IPv6."""

    class Failing(socket.socket):
        def __init__(self, family: int = -1, *args: Any, **options: Any) -> None:
            if method == "__init__" and family == socket.AF_INET6:
                raise OSError(number, os.strerror(number))
            super().__init__(family, *args, **options)

        def bind(self, address: Any) -> None:
            if method == "bind" and self.family == socket.AF_INET6:
                raise OSError(number, os.strerror(number))
            super().bind(address)

    monkeypatch.setattr(socket, "socket", Failing)


def test_the_default_is_this_machine_only() -> None:
    assert parse([], {}).host == "127.0.0.1"
    with listen(parse([], {}).host, 0) as listener:
        assert not is_reachable(listener)
        assert describe(listener) == "this machine only; --host :: accepts other machines"


@needs_ipv6
@pytest.mark.parametrize("host", WILDCARDS)
def test_a_wildcard_accepts_both_families(host: str) -> None:
    with listen(host, 0) as listener:
        assert [unmapped(accepts(listener, address)) for address in ("127.0.0.1", "::1")] == ["127.0.0.1", "::1"]
        assert describe(listener) == "all IPv4 and IPv6 addresses"


@pytest.mark.parametrize(
    ("host", "own", "other", "reason"),
    [*((host, "127.0.0.1", "::1", "refused|unreachable|assign") for host in ("0.0.0.0", "127.0.0.1")),
     *(pytest.param(host, "::1", "127.0.0.1", "refused", marks=needs_ipv6) for host in ("::1", "[::1]"))],
)  # fmt: skip
def test_an_address_accepts_only_its_family(host: str, own: str, other: str, reason: str) -> None:
    with listen(host, 0) as listener:
        assert listener.family == (socket.AF_INET6 if ":" in own else socket.AF_INET)
        assert accepts(listener, own) == own
        with pytest.raises(OSError, match=reason):
            accepts(listener, other)


@pytest.mark.parametrize(
    ("host", "method", "number"),
    [
        *((host, "__init__", errno.EAFNOSUPPORT) for host in WILDCARDS),
        ("::", "__init__", errno.EPROTONOSUPPORT),
        ("::", "bind", errno.EADDRNOTAVAIL),
        ("::", "bind", errno.EAFNOSUPPORT),
    ],
)
def test_a_wildcard_is_ipv4_on_a_host_without_ipv6(
    monkeypatch: pytest.MonkeyPatch, host: str, method: str, number: int
) -> None:
    fail_for_ipv6(monkeypatch, method, number)
    with listen(host, 0) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"
        assert describe(listener) == "all IPv4 addresses"
        assert accepts(listener, "127.0.0.1") == "127.0.0.1"


def test_a_name_resolves_to_the_first_of_its_addresses_that_this_host_has(monkeypatch: pytest.MonkeyPatch) -> None:
    both = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    fail_for_ipv6(monkeypatch, "bind", errno.EADDRNOTAVAIL)
    with listen("localhost", 0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


@pytest.mark.parametrize(
    ("taken", "host"), [("0.0.0.0", "::"), ("127.0.0.1", "::"), ("127.0.0.1", "127.0.0.1"), ("::", "::")]
)
@needs_ipv6
def test_a_port_in_use_is_refused_with_the_fix(taken: str, host: str) -> None:
    with listen(taken, 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--host {host} --port .* in use; give another port with --port"):
            listen(host, port)


@pytest.mark.parametrize(
    ("host", "advice"),
    [
        ("https://example.com", True), ("http://[::1]:8000", True), ("localhost:8000", True), ("[::1]:8000", True),
        ("example.com/path", True), ("256.1.1.1", False), ("fe80::1%nosuchdevice", False), ("2001:db8::dead", False),
        ("." * 300, False), ("a" * 70, False),
    ],
)  # fmt: skip
def test_an_address_that_this_host_lacks_is_refused_by_the_flags_name(host: str, advice: bool) -> None:
    with pytest.raises(ConfigError, match=r"--host .* cannot be listened on") as refusal:
        listen(host, 0)
    assert ("the port with --port" in str(refusal.value)) is advice


@pytest.mark.parametrize(
    ("host", "url", "reachable"),
    [
        ("0.0.0.0", "http://localhost:", True),
        ("localhost", "http://localhost:", False),
        ("127.0.0.1", "http://127.0.0.1:", False),
        ("127.0.0.2", "http://127.0.0.2:", False),
        pytest.param("::", "http://localhost:", True, marks=needs_ipv6),
        pytest.param("", "http://localhost:", True, marks=needs_ipv6),
        pytest.param("::1", "http://[::1]:", False, marks=needs_ipv6),
        pytest.param("[::1]", "http://[::1]:", False, marks=needs_ipv6),
        pytest.param("::ffff:127.0.0.1", "http://[::ffff:127.0.0.1]:", False, marks=needs_ipv6),
        pytest.param("::ffff:0.0.0.0", "http://localhost:", True, marks=needs_ipv6),
    ],
)
def test_the_logged_url_can_be_opened_on_this_machine(host: str, url: str, reachable: bool) -> None:
    with listen(host, 0) as listener:
        logged = listener_url(host, listener)
        assert logged == f"{url}{listener.getsockname()[1]}"
        assert is_reachable(listener) is reachable
        target = httpx.URL(logged)
        accepts(listener, target.host)


@pytest.mark.parametrize(
    ("address", "logged"),
    [
        ("::ffff:10.0.0.1", "10.0.0.1"), ("10.0.0.1", "10.0.0.1"), ("::1", "::1"),
        ("2001:db8::ffff:1", "2001:db8::ffff:1"), ("fe80::1%eth0", "fe80::1%eth0"),
        ("::ffff:0:a00:1", "::ffff:0:a00:1"),
    ],
)  # fmt: skip
def test_a_mapped_address_is_logged_as_ipv4(address: str, logged: str) -> None:
    assert unmapped(address) == logged


@needs_ipv6
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_connection_has_the_clients_own_address(address: str) -> None:
    async def client_and_server(listener: socket.socket) -> list[object]:
        http = HttpServer(app, Limits(), RequestMetrics())
        serving = asyncio.create_task(http.serve([listener]))
        await wait_until_async(lambda: http.started)
        with socket.create_connection((address, listener.getsockname()[1]), TIMEOUT) as client:
            await wait_until_async(lambda: http.manager.open)
            (connection,) = http.manager.open
            seen = [connection.client, connection.server]
            own = [client.getsockname()[:2], client.getpeername()[:2]]
        http.should_exit = True
        await serving
        return [seen, own]

    seen, own = uvloop.run(client_and_server(listen("::", 0)))
    assert seen == own


@needs_ipv6
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_server_with_the_default_of_the_image_serves_both_families(checkpoint: Path, processes: str) -> None:
    flags, env = ("--frontend-processes", processes), {"UNMASK_DEFAULT_HOST": "::"}
    with serving("--model", str(checkpoint), *flags, module=FAKE, host=None, env=env) as server:
        for address in ("127.0.0.1", "[::1]"):
            with httpx.Client(base_url=f"http://{address}:{server.port}", timeout=TIMEOUT, trust_env=False) as client:
                wait_until(lambda: client.get("/ready").status_code == 200)
                assert client.post("/generate", json={"prompt": "x", "max_tokens": 3}).json()["text"] == "abc"
        assert "all IPv4 and IPv6 addresses" in server.log
        assert "open to the network" in server.log
        assert "--host 127.0.0.1" in server.log, "localhost may be only ::1, which the docs do not use"


def test_a_server_without_host_serves_this_machine_only(checkpoint: Path) -> None:
    with serving("--model", str(checkpoint), module=FAKE, host=None) as server:
        url = server.url
        assert f"listening on {url} (this machine only; --host :: accepts other machines)" in server.log
        assert f"web page: {url}, base URL of the API: {url}/v1" in server.log
        assert "open to the network" not in server.log


@needs_ipv6
def test_a_server_that_needs_a_key_does_not_warn(checkpoint: Path) -> None:
    with serving("--model", str(checkpoint), "--api-key", "k" * 32, module=FAKE, host="::") as server:
        url = f"http://[::1]:{server.port}/ready"
        assert httpx.get(url, timeout=TIMEOUT, trust_env=False).status_code == 200
        assert "open to the network" not in server.log


SCRIPT = """
from runtime.server.http_protocol.listener import listen
report(listen(sys.argv[1], 0), sys.argv[2:])
"""


@needs_ipv6
@needs_namespaces
@pytest.mark.parametrize("name", NAMESPACES)
def test_the_wildcard_reaches_every_address_of_a_network_namespace(name: str) -> None:
    setup, expected = NAMESPACES[name]
    command = python_in_namespace(SCRIPT, ["::", *TARGETS], setup)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == expected


@needs_ipv6
@needs_namespaces
@pytest.mark.parametrize("host", ["fe80::7%lo", "[fe80::7%lo]"])
def test_a_link_local_address_with_its_zone_is_served(host: str) -> None:
    command = python_in_namespace(SCRIPT, [host, "fe80::7%lo", "127.0.0.1"])
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["fe80::7%lo"]
