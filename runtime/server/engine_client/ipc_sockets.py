"""Sockets between frontend and backends: their directory, and authentication of the processes that connect."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import zmq
from zmq.utils import z85

from runtime.errors import ConfigError

PREFIX = "unmask-"
LOCK = "lock"  # locked as long as the server lives; the kernel unlocks it with the process's end


@contextlib.contextmanager
def socket_dir() -> Iterator[Path]:
    """Makes a directory that only this user may enter, and removes it at the end.

    Raises:
        ConfigError: No directory for temporary files can be written.
    """
    try:
        remove_abandoned()
        path, lock = _make()
    except OSError:
        raise ConfigError(
            "the server needs a directory for temporary files, and none can be written; set TMPDIR to one"
        ) from None
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _make() -> tuple[Path, int]:
    """Returns a new directory and a descriptor of its locked file."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX))
        try:
            lock = _locked(path / LOCK, create=True)
        except OSError:  # the file system is full
            shutil.rmtree(path, ignore_errors=True)
            raise
        if lock is not None:
            return path, lock


def remove_abandoned() -> None:
    """Removes this user's directories of servers that no longer run."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # of another user, or removed meanwhile
            if path.is_symlink() or path.stat().st_uid != os.getuid():
                continue
            if (lock := _locked(path / LOCK, create=False)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(path: Path, *, create: bool) -> int | None:
    """A descriptor of the locked file; None if another process has locked it or removed it meanwhile."""
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o600)
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
            return descriptor
    os.close(descriptor)
    return None


log = logging.getLogger("unmask.peers")

ZAP = "inproc://zeromq.zap.01"  # where libzmq sends authentication requests (RFC 27)
LIMITS = {zmq.ROUTER: 64 << 10, zmq.PULL: 64 << 20}  # bytes of a frame: of a hello; of the events of one step
_CREDENTIALS_BYTES = 4096
_IPV4 = re.compile(r"[0-9.]+")


class CurveCredentials(msgspec.Struct, frozen=True):
    """What a backend needs to prove itself over tcp: one JSON line, the first on its standard input."""

    server_public: str = ""
    public: str = ""
    secret: str = ""

    def __repr__(self) -> str:
        return "Invitation(...)"  # never into a log

    def line(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


def uses_curve(addr: str) -> bool:
    """Whether peers at this address authenticate with CURVE."""
    return addr.startswith(("tcp://", "ipc://@"))  # an abstract socket has no owner and no mode


def require_curve(addr: str, flag: str) -> None:
    """Raises ConfigError for an address that needs CURVE where libzmq was built without it."""
    if uses_curve(addr) and not zmq.has("curve"):
        raise ConfigError(
            f"{flag}: {addr} needs a libzmq with CURVE, which this build lacks; use an ipc:// path, or leave it out"
        )


def enable_ipv6(socket: zmq.Socket[bytes], addr: str) -> None:
    """Lets a socket use IPv6 at this address. ZeroMQ uses IPv4 alone by default, also where the host has none."""
    host = addr.removeprefix("tcp://").rpartition(":")[0]
    if addr.startswith("tcp://") and not _IPV4.fullmatch(host):
        socket.setsockopt(zmq.IPV6, 1)


def read_credentials(descriptor: int) -> CurveCredentials | None:
    """The invitation that the frontend writes first; None where it ended before."""
    data = b""
    while not data.endswith(b"\n"):
        more = os.read(descriptor, _CREDENTIALS_BYTES)
        if not more or len(data) > _CREDENTIALS_BYTES:
            return None
        data += more
    return msgspec.json.decode(data, type=CurveCredentials)


def apply_credentials(socket: zmq.Socket[bytes], addr: str, invitation: CurveCredentials) -> None:
    """Prepare a backend's socket to connect to `addr`."""
    enable_ipv6(socket, addr)
    if uses_curve(addr):
        socket.setsockopt(zmq.CURVE_SERVERKEY, invitation.server_public.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, invitation.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, invitation.secret.encode())


class ZapAuthenticator:
    """The frontend's side: the keys, and the answers to libzmq's questions about those that connect."""

    def __init__(self, context: zmq.Context[Any]) -> None:
        self.names: dict[bytes, str] = {}  # public key -> the backend that holds its secret
        self.zap = context.socket(zmq.REP)
        self.zap.setsockopt(zmq.LINGER, 0)
        self.zap.bind(ZAP)
        self.public, self.secret = zmq.curve_keypair() if zmq.has("curve") else (b"", b"")

    def secure(self, socket: zmq.Socket[bytes], addr: str) -> None:
        """Prepare a socket of the frontend to be bound to `addr`."""
        enable_ipv6(socket, addr)
        socket.setsockopt(zmq.MAXMSGSIZE, LIMITS[cast(zmq.SocketType, socket.type)])
        if uses_curve(addr):
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self.secret)
            socket.setsockopt(zmq.ZAP_DOMAIN, b"unmask")

    def issue(self, name: str) -> CurveCredentials:
        """Returns new credentials for a backend, and accepts them."""
        if not self.public:
            return CurveCredentials()
        public, secret = zmq.curve_keypair()
        self.names[z85.decode(public)] = name
        return CurveCredentials(self.public.decode(), public.decode(), secret.decode())

    def revoke(self, name: str) -> None:
        """Rejects the credentials of a backend from now on."""
        self.names = {key: other for key, other in self.names.items() if other != name}

    def handle_requests(self) -> None:
        """Answer every question that is here."""
        while not self.zap.closed:
            try:
                question = self.zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            version, request, _, address, _, mechanism, *credentials = question
            name = self.names.get(credentials[0]) if mechanism == b"CURVE" and credentials else None
            verdict = (b"200", b"OK", name.encode()) if name else (b"400", b"not a backend of this server", b"")
            if name is None:
                log.debug("a connection from %s is no backend of this server", address.decode(errors="replace"))
            self.zap.send_multipart([version, request, *verdict, b""])


def receive(socket: zmq.Socket[bytes], addr: str) -> tuple[bytes, bytes] | None:
    """The next message as (name, data), the name as its sender gives it or, over tcp, proved; None for a message that
    is not of that form or whose sender is another than it says. Raises zmq.Again where nothing is there."""
    if not uses_curve(addr):
        message = socket.recv_multipart(zmq.NOBLOCK)
        return (message[0], message[1]) if len(message) == 2 else None
    frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)  # frames have the id of the authenticated peer
    name = frames[0].bytes
    if len(frames) != 2 or frames[1].get("User-Id") != name.decode(errors="replace"):
        return None
    return name, frames[1].bytes
