"""How long a server's event loop is held: `/health` asked again and again on a connection of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from tests.server.harness import ServerProcess


class Pings:
    """The answers' times so far, in seconds."""

    def __init__(self, port: int) -> None:
        self.connection = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.seconds: list[float] = []
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._ping)

    def _ping(self) -> None:
        while not self.over.is_set():
            start = time.monotonic()
            self.connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while b'{"status":"ok"}' not in answer:
                answer += self.connection.recv(4096)
            self.seconds.append(time.monotonic() - start)
            self.over.wait(0.005)

    @property
    def longest(self) -> float:
        return max(self.seconds)


@contextlib.contextmanager
def pinging(server: ServerProcess) -> Iterator[Pings]:
    pings = Pings(server.port)
    pings.thread.start()
    try:
        yield pings
    finally:
        pings.over.set()
        pings.thread.join()
        pings.connection.close()


class Peak:
    """The most memory a process had since the object was made, beyond what it had then, in MB."""

    def __init__(self, pid: int) -> None:
        self.place = Path(f"/proc/{pid}")
        (self.place / "clear_refs").write_text("5")  # the high-water mark starts anew
        self.start = self._mark()

    @property
    def grown(self) -> float:
        return self._mark() - self.start

    def _mark(self) -> float:
        lines = (self.place / "status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
