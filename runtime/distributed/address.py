"""Host names and addresses of IPv4 and IPv6, as in flags and for sockets."""

from __future__ import annotations

import socket
import time

RETRY_SECONDS = 0.5  # interval of attempts to resolve a name


def without_brackets(host: str) -> str:
    """Removes the brackets that an IPv6 address has in a URL."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def endpoint(host: str, port: int) -> str:
    """Returns ``HOST:PORT`` as in a URL: an IPv6 address has brackets, and its zone is escaped (RFC 6874)."""
    return f"[{host.replace('%', '%25')}]:{port}" if ":" in host else f"{host}:{port}"


def resolve(host: str, seconds: float = 0.0) -> str:
    """Returns the address of a host name, an IPv4 address if there is one.

    Args:
        host: name or address.
        seconds: time for which a name without an address is tried again. That of a pod appears after its start.

    Raises:
        OSError: the name has no address.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            found = socket.getaddrinfo(without_brackets(host), None, type=socket.SOCK_STREAM)
            break
        except socket.gaierror:
            if time.monotonic() >= until:
                raise
            time.sleep(RETRY_SECONDS)
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return socket.getnameinfo(address, socket.NI_NUMERICHOST)[0] if family == socket.AF_INET6 else str(address[0])


def loopback() -> str:
    """Returns 127.0.0.1, or ::1 in a network namespace whose loopback interface has no IPv4 address."""
    try:
        create_listener("127.0.0.1", 0).close()
    except OSError:
        return "::1"
    return "127.0.0.1"


def create_listener(address: str, port: int) -> socket.socket:
    """Returns a socket that listens only on this address, IPv4 or IPv6.

    Raises:
        OSError: the address does not exist on this host or is in use.
    """
    return socket.create_server((address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET)
