"""A backend's profile: torch.profiler around its steps, and the file that is made of them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runtime.server.messages import ProfileResult

log = logging.getLogger("unmask.backend")

STEP = "engine step"  # each one's name in the trace


class ProfileWorker:
    """`say` sends news to the frontend. All of it is for the thread of the steps, which the profiler watches.

    Attributes:
        on: steps are being recorded. pending: a file is being written; `look` sees when it is there.
    """

    def __init__(self, name: str, send: Callable[[ProfileResult], None]) -> None:
        self.name = name
        self.send = send
        self.recording = False
        self._directory = Path()
        self._profile: Any = None
        self._written: ProfileResult | None = None
        self._writer: threading.Thread | None = None

    @property
    def pending(self) -> bool:
        return self._writer is not None

    def start(self, directory: str) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        try:
            self._directory = Path(directory)
            self._directory.mkdir(parents=True, exist_ok=True)
            if not os.access(self._directory, os.W_OK):
                raise PermissionError(f"{directory} cannot be written to")
            self._profile = profile(activities=activities)
            self._profile.start()
        except Exception as error:
            log.exception("no profile can be made")
            self.send(ProfileResult(error=f"no profile can be made: {type(error).__name__}: {error}"))
            return
        self.recording = True
        self.send(ProfileResult())

    def step(self, engine: Any) -> None:
        """One of the engine's, under its name in the trace."""
        from torch.profiler import record_function

        with record_function(STEP):
            engine.execute_step()

    def stop(self, keep: bool) -> None:
        """The file is written beside the steps that follow."""
        made, self._profile, self.recording = self._profile, None, False
        if made is None:
            self.send(ProfileResult(error="no profile is under way"))
            return
        made.stop()
        if not keep:
            self.send(ProfileResult())
            return
        now = time.time_ns()  # two of one second have names of their own
        stamp = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now // 10**9))}.{now % 10**9 // 10**6:03}"
        file = self._directory / f"{self.name}-{stamp}-{os.getpid()}.pt.trace.json.gz"
        self._writer = threading.Thread(target=self._write, args=(made, file), name="profile", daemon=True)
        self._writer.start()

    def _write(self, made: Any, file: Path) -> None:
        try:
            made.export_chrome_trace(str(file))
            self._written = ProfileResult(file=str(file))
        except Exception as error:
            log.exception("the profile could not be written")
            self._written = ProfileResult(error=f"{file} could not be written: {type(error).__name__}: {error}")

    def poll(self) -> None:
        """Between steps: tell of a file that has been written."""
        if self._written is not None:
            self.send(self._written)
            self._written = self._writer = None
