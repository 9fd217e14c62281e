"""Checks a server's event loop under heavy requests: requests `/health` repeatedly on a separate connection."""

import concurrent.futures
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.server.harness import ServerProcess
from tests.wait import TIMEOUT


def _ping(connection: socket.socket, over: threading.Event) -> None:
    while True:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b""
        while b'{"status":"ok"}' not in answer:
            data = connection.recv(4096)
            assert data, "the server closed the connection of the probes"
            answer += data
        if over.wait(0.005):
            return


@contextlib.contextmanager
def pinging(server: ServerProcess) -> Iterator[None]:
    """Requests `/health` repeatedly, and fails unless each is answered, also after the last heavy request."""
    over = threading.Event()
    with server.connect() as connection, concurrent.futures.ThreadPoolExecutor(1) as pool:
        pings = pool.submit(_ping, connection, over)
        try:
            yield
        finally:
            over.set()
            pings.result(TIMEOUT)


class Peak:
    """Measures by how many MB the peak memory of a process exceeds its memory when the object was made."""

    def __init__(self, pid: int) -> None:
        self.proc = Path(f"/proc/{pid}")
        (self.proc / "clear_refs").write_text("5")  # resets the peak, VmHWM
        self.start = self._mark()

    @property
    def grown(self) -> float:
        return self._mark() - self.start

    def _mark(self) -> float:
        lines = (self.proc / "status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
