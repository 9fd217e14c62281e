"""Refuses what pages of other origins make a browser send to a server without keys.

A browser sends a ``text/plain`` POST to any server without asking it first, and a page whose name is rebound to a
loopback address (DNS rebinding) reads the answers too. Clients that are no browsers send neither ``Origin`` nor
``Sec-Fetch-Site``, and are served. With keys nothing is checked: a page has no key.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.types import Scope

from runtime.errors import RequestError
from runtime.server.middleware.auth import OPEN_PATHS

_OWN_SITES = frozenset({b"same-origin", b"none"})  # "none": typed, or from a bookmark
_DEFAULT_PORTS = {"http": 80, "https": 443}
_KEYS = "or let clients send a key (--api-key-file)"


class OriginPolicy:
    """Decides by a request's headers.

    Args:
        host: The address that the server listens on.
        origins: Origins whose pages may call the server; ``*`` is any.
        hosts: Names by which the server is requested, without a port; ``*`` is any.
        pages: Paths of the pages that a link of another site may lead to.
    """

    def __init__(
        self, host: str, origins: Collection[str], hosts: Collection[str], pages: Collection[str] = ()
    ) -> None:
        self._on_loopback = is_loopback(host_name(host))
        self._checks_host = "*" not in hosts and (self._on_loopback or bool(hosts))
        self._hosts = {host_name(name) for name in hosts}
        self._any_origin = "*" in origins
        self._origins = {origin.rstrip("/").lower() for origin in origins}
        self._pages = frozenset(pages)

    def check(self, scope: Scope) -> None:
        """Raises RequestError (403) for a request that another origin's page may have caused."""
        hosts, origins, sites, navigates = list[str](), list[str](), list[bytes](), False
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value.decode("latin-1"))
            elif name == b"origin":
                origins.append(value.decode("latin-1"))
            elif name == b"sec-fetch-site":
                sites.append(value.strip().lower())
            elif name == b"sec-fetch-mode":
                navigates = value.strip().lower() == b"navigate"
        # Probes name a pod's address.
        if self._checks_host and (self._on_loopback or scope["path"] not in OPEN_PATHS):
            self._check_hosts(hosts)
        if self._any_origin or not (sites or origins):
            return
        if sites and all(site in _OWN_SITES for site in sites):
            return
        if origins and all(origin.lower() in self._origins for origin in origins):
            return
        if sites:
            if navigates and scope["method"] in ("GET", "HEAD") and scope["path"] in self._pages:
                return
            raise _refused("Sec-Fetch-Site")
        if not all(hosts and is_own(origin, hosts[0]) for origin in origins):
            raise _refused("Origin")

    def _check_hosts(self, hosts: Collection[str]) -> None:
        for host in hosts:
            name = host_name(host)
            if name not in self._hosts and not is_loopback(name):
                raise RequestError(
                    f"Host: is not a name of this server; add it with --allowed-hosts, {_KEYS}",
                    param="Host",
                    status=403,
                    code="host_not_allowed",
                )


def host_name(host: str) -> str:
    """The name or address in a Host header, without its port, brackets and final dot, in lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, colon, port = host.rpartition(":")
    if colon and ":" not in name and (port.isdigit() or not port):
        host = name
    return host.rstrip(".")


def is_loopback(host: str) -> bool:
    """Whether a name or address can only mean this machine."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def is_own(origin: str, host: str) -> bool:
    """Whether a page of `origin` was loaded from the server that `host`, of the same request, names."""
    try:
        parts = urlsplit(origin)
        port = parts.port or _DEFAULT_PORTS[parts.scheme]
        requested = urlsplit(f"//{host.strip()}").port or _DEFAULT_PORTS[parts.scheme]
    except (KeyError, ValueError):  # "null" too: a page in a sandbox, or of a file
        return False
    return bool(parts.hostname) and host_name(parts.hostname or "") == host_name(host) and port == requested


def _refused(header: str) -> RequestError:
    return RequestError(
        f"{header}: a page of another origin may not call this server; allow it with --cors-allow-origins, {_KEYS}",
        param=header,
        status=403,
        code="origin_not_allowed",
    )
