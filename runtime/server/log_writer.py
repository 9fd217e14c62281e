"""A log handler that never waits for the reader of the log.

A pipe is full if nobody reads it: a paused terminal, or a collector that hangs. A write would then stop the event loop,
and with it all requests, probes and the reaction to signals.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque

MAX_LINES = 2000  # lines that wait to be written; further ones are dropped and counted
BATCH_SECONDS = 0.005  # in which further lines are collected, so that a thread does not wake up for each
FLUSH_SECONDS = 1.0  # maximum time that the end of the process waits for the reader


class LogWriter(logging.Handler):
    """Writes lines to a file descriptor in a thread. `logging.shutdown` waits for it, up to `FLUSH_SECONDS`."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._writing = False
        self._dropped = 0
        threading.Thread(target=self._run, name="log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            if len(self._lines) < MAX_LINES:
                self._lines.append(line.encode(errors="backslashreplace") + b"\n")
                self._changed.notify_all()
            else:
                self._dropped += 1

    def flush(self) -> None:
        """Waits until all lines are written, up to `FLUSH_SECONDS`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._writing, FLUSH_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: len(self._lines) > 0)
            time.sleep(BATCH_SECONDS)
            with self._changed:
                lines, self._dropped, dropped = list(self._lines), 0, self._dropped
                self._lines.clear()
                self._writing = True
            if dropped:
                lines.append(self._report(dropped))
            while lines:
                self._write(_next_piece(lines))

    def _write(self, data: bytes) -> None:
        """Writes all bytes. What the system refuses is dropped: on a full disk there is nowhere to report it."""
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                select.select([], [self._descriptor], [])
            except OSError:
                return

    def _report(self, dropped: int) -> bytes:
        entry = {
            "name": "unmask.server", "levelno": logging.WARNING, "levelname": "WARNING",
            "msg": f"dropped {dropped} lines, because the log was not read",
        }  # fmt: skip
        return self.format(logging.makeLogRecord(entry)).encode() + b"\n"


def _next_piece(lines: list[bytes]) -> bytes:
    """Removes and returns the first lines, as many as a pipe takes at once: other processes write to it, too."""
    count, size = 1, len(lines[0])
    while count < len(lines) and size + len(lines[count]) <= select.PIPE_BUF:
        size += len(lines[count])
        count += 1
    piece = b"".join(lines[:count])
    del lines[:count]
    return piece
