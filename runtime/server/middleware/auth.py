"""Which requests may enter: API keys, and on servers without keys the origins of browser pages.

Several keys are valid at once, for rotation. They are reloaded when their file changes. A key is looked up by a digest
with a secret of this process. So the time of a check tells nothing about the keys, and does not depend on their number.

A browser sends a ``text/plain`` POST to any server without a preflight request. A page whose name is rebound to a
loopback address (DNS rebinding) can also read the responses. Other clients send neither ``Origin`` nor
``Sec-Fetch-Site``, and are served. With keys, origins are not checked, as a page has no key.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import threading
import time
from collections.abc import Collection, Sequence
from hashlib import sha256
from urllib.parse import urlsplit

from starlette.types import Scope

from runtime.config.api_keys import SETTLE_SECONDS, Stamp, key_file_stamp, read_key_file
from runtime.errors import ConfigError, RequestError
from runtime.server.http_protocol.limits import OPEN_PATHS
from runtime.server.http_protocol.listener import parse_address

log = logging.getLogger("unmask.keys")


class ApiKeys:
    """Valid API keys: `static` ones, and those of a file, which change with it.

    A thread reads the file, as a slow file system must not delay requests. Changed content is used once it is the same
    in two reads, so that a file that is being written has no effect.
    """

    def __init__(self, static: tuple[str, ...], file: str | None = None, in_file: tuple[str, ...] = ()) -> None:
        self.file = file
        self._static = static
        self._ids = _ids((*static, *in_file))
        self._seen: Stamp | str | None = "never"  # stamp of the file in the last read
        self._taken: Stamp | str | None = "never"  # stamp of the content that was last used or rejected

    def check(self, authorization: bytes | None, api_key: bytes | None = None) -> str:
        """Returns a public id of the key; "" if the server has only one key.

        Args:
            authorization: value of the header Authorization, ``Bearer`` and a key.
            api_key: value of the header X-Api-Key of Anthropic clients, used without the former.

        Raises:
            RequestError: 401 for a missing or invalid key.
        """
        if authorization is None and api_key is not None:
            authorization = b"Bearer " + api_key
        scheme, _, key = (authorization or b"").partition(b" ")
        public_id = self._ids.get(_digest(key.strip()))
        if public_id is None or scheme.lower() != b"bearer":
            what = "API key is missing" if authorization is None else "API key is invalid"
            message = f"{what}; send it in the header Authorization: Bearer <key> or X-Api-Key: <key>"
            raise RequestError(message, status=401, code="invalid_api_key")
        return public_id

    def watch(self) -> None:
        """Starts to watch the file, until the process exits."""
        if self.file is not None:
            threading.Thread(target=self._watch, name="keys", daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.reload()
            time.sleep(SETTLE_SECONDS)

    def reload(self) -> None:
        """Takes the keys of the file if its content is new and was the same in the last read."""
        assert self.file is not None
        stamp = key_file_stamp(self.file)
        before, self._seen = self._seen, stamp
        if stamp != before or stamp == self._taken:
            return
        if stamp is None:
            self._taken = None
            log.error("--api-key-file %s is missing; keeping the current keys. Restore the file", self.file)
            return
        try:
            content = read_key_file(self.file)
        except ConfigError as error:
            self._taken = stamp
            log.error("%s; keeping the current keys. Fix the file", error)
            return
        if content.stamp != stamp:
            return  # changed meanwhile: read again later
        self._taken = stamp
        if content.problems:
            log.error(
                "%s. %d of its keys are invalid and not accepted, all others are. Fix the file",
                content.problems[0],
                len(content.problems),
            )
        ids = _ids((*self._static, *content.keys))
        if ids == self._ids:
            return
        self._ids = ids  # as a whole, as this is another thread than that of requests
        if content.keys:
            log.info("--api-key-file %s reloaded: %d keys", self.file, len(content.keys))
        else:
            effect = "only keys of --api-key are accepted" if self._static else "all requests are rejected (401)"
            log.warning("--api-key-file %s has no valid key: %s. Add a key to the file", self.file, effect)


_SECRET = secrets.token_bytes(32)


def _digest(key: bytes) -> bytes:
    return hmac.digest(_SECRET, key, "sha256")


def _ids(keys: Sequence[str]) -> dict[bytes, str]:
    """Returns the public id of each key by the digest of the key; "" for a single key, which needs no name."""
    single = len(set(keys)) == 1
    return {_digest(key.encode()): "" if single else _public_id(key.encode()) for key in keys}


def _public_id(key: bytes) -> str:
    return sha256(sha256(key).digest()).hexdigest()[:16]


_READ_HEADERS = (b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode")
MAX_ACCEPTED_HOSTS = 64  # and characters of each: any client can send others
_OWN_SITES = frozenset({"same-origin", "none"})  # "none": typed, or from a bookmark
_DEFAULT_PORTS = {"http": 80, "https": 443}
_KEYS = "or let clients send a key (--api-key-file)"


class OriginPolicy:
    """Rejects requests of pages of other origins by their headers.

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
        self._accepted_hosts: set[str] = set()  # those of earlier requests, which are not parsed again

    def check(self, scope: Scope) -> None:
        """Raises RequestError (403) for a request that a page of another origin may have caused."""
        found: dict[bytes, list[str]] = {name: [] for name in _READ_HEADERS}
        for header, value in scope["headers"]:
            if header in found:
                found[header].append(value.decode("latin-1").strip().lower())
        hosts, origins, sites, modes = found.values()
        navigates = modes[:1] == ["navigate"]
        # Probes name a pod's address.
        if self._checks_host and (self._on_loopback or scope["path"] not in OPEN_PATHS):
            self._check_hosts(hosts)
        if self._any_origin or not (sites or origins):
            return
        if sites and all(site in _OWN_SITES for site in sites):
            return
        if origins and all(origin in self._origins for origin in origins):
            return
        if sites:
            if navigates and scope["method"] in ("GET", "HEAD") and scope["path"] in self._pages:
                return
            raise _refused("Sec-Fetch-Site")
        if not all(hosts and is_own(origin, hosts[0]) for origin in origins):
            raise _refused("Origin")

    def _check_hosts(self, hosts: Collection[str]) -> None:
        for host in hosts:
            if host in self._accepted_hosts:
                continue
            name = host_name(host)
            if name not in self._hosts and not is_loopback(name):
                message = f"Host: is not a name of this server; add it with --allowed-hosts, {_KEYS}"
                raise RequestError(message, param="Host", status=403, code="host_not_allowed")
            if len(host) <= MAX_ACCEPTED_HOSTS and len(self._accepted_hosts) < MAX_ACCEPTED_HOSTS:
                self._accepted_hosts.add(host)


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
        return parse_address(host).is_loopback
    except ValueError:
        return False


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
    advice = f"allow it with --cors-allow-origins, {_KEYS}"
    message = f"{header}: a page of another origin may not call this server; {advice}"
    return RequestError(message, param=header, status=403, code="origin_not_allowed")
