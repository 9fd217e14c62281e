"""The server's listening socket: its address families, the URL that reaches it, and the addresses of its clients."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket

from runtime.distributed.address import endpoint, without_brackets
from runtime.errors import ConfigError
from runtime.server.http_protocol.limits import BACKLOG, Limits

# Errors of a host without the address family: its kernel lacks it, or no interface has it.
_NO_FAMILY = frozenset({errno.EAFNOSUPPORT, errno.EPFNOSUPPORT, errno.EPROTONOSUPPORT, errno.EADDRNOTAVAIL})


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that accepts at once, so that clients that connect while the model loads get an answer.

    The wildcard ``::`` accepts IPv6 and, through IPv4-mapped addresses, IPv4. On a host without IPv6 it is 0.0.0.0. A
    name is the first of its addresses whose family this host has.

    Args:
        host: Name or address, an IPv6 address also in brackets. "" is the wildcard.
        port: 0 selects a free one.

    Raises:
        ConfigError: The address does not exist here, is in use, or is malformed.
    """
    refused: OSError | UnicodeError | None = None
    reason = ""
    try:
        for family, address in _addresses(without_brackets(host), port):
            try:
                return _listen_at(family, address)
            except OSError as error:
                refused, reason = refused or error, reason or os.strerror(error.errno or 0)
                if error.errno not in _NO_FAMILY:
                    break
    except (OSError, UnicodeError) as error:  # of the name
        refused, reason = error, getattr(error, "strerror", None) or str(error)
    raise ConfigError(f"--host {host} --port {port}: cannot be listened on: {reason}{_advice(host, refused)}") from None


def listener_url(host: str, listener: socket.socket) -> str:
    """URL under which this machine reaches the listener.

    Args:
        host: The value of --host.
        listener: The socket that `listen` returned for it.
    """
    address, port = listener.getsockname()[:2]
    if parse_address(address).is_unspecified:
        return f"http://localhost:{port}"
    return f"http://{endpoint(without_brackets(host), port)}"


def describe(listener: socket.socket) -> str:
    """Returns which clients the listener accepts, for logs; "" for a single address that is not loopback."""
    if not is_reachable(listener):
        return "this machine only; --host :: accepts other machines"
    if not parse_address(listener.getsockname()[0]).is_unspecified:
        return ""
    return "all IPv4 and IPv6 addresses" if listener.family == socket.AF_INET6 else "all IPv4 addresses"


def is_reachable(listener: socket.socket) -> bool:
    """Whether other machines may reach the listener: it is not bound to a loopback address."""
    return not parse_address(listener.getsockname()[0]).is_loopback


def parse_address(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parses an IP address. An IPv4-mapped IPv6 address becomes its IPv4 address. Raises ValueError."""
    parsed = ipaddress.ip_address(address)
    return getattr(parsed, "ipv4_mapped", None) or parsed


def _addresses(host: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
    try:
        wildcard = not host or ipaddress.ip_address(host) == ipaddress.IPv6Address("::")
    except ValueError:
        wildcard = False
    if wildcard:
        return [(socket.AF_INET6, ("::", port)), (socket.AF_INET, ("0.0.0.0", port))]
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(family, address) for family, _, _, _, address in found]


def _listen_at(family: int, address: tuple[object, ...]) -> socket.socket:
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()  # for a mapped address too
    listener = socket.create_server(address, family=family, backlog=BACKLOG, dualstack_ipv6=both)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # bounds how long the kernel keeps unacknowledged data of an answer
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(Limits.stall_seconds * 1000))
    return listener


def _advice(host: str, refused: OSError | UnicodeError | None) -> str:
    """Returns the fix for a port in use, and for a value that is no host, but a URL or an address with its port."""
    if getattr(refused, "errno", None) == errno.EADDRINUSE:
        return "; give another port with --port, or end the program that uses this one"
    name = host.rpartition("://")[2]
    if name != host or "/" in name or "]:" in name or name.count(":") == 1:
        return "; give a name or an IP address alone, and the port with --port"
    return ""
