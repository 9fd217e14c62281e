"""Servers as real processes on free loopback ports, with their logs and an httpx client."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.written import written

ROOT = Path(__file__).resolve().parents[2]
_MODEL_NAME = re.compile(r',model_name="[^"]*"|model_name="[^"]*",?')
_ENGINES_TOTALS = ("unmask_generated_tokens_total", "unmask_forwards_total")
REAL = "runtime.server"
# to try every test over servers of another kind, such as "--frontend-processes 3"
MORE_ARGS = tuple(os.environ.get("TEST_SERVER_ARGS", "").split())
FAKE = "tests.server.fake_server"
SCRIPTED = "tests.server.scripted_server"


class ServerProcess:
    """``python -m MODULE ARGS`` listening on a port that it chose itself."""

    def __init__(
        self, *args: str, module: str = REAL, env: dict[str, str] | None = None, files: int | None = None
    ) -> None:
        """`files`: its limit of open files."""
        self.log_file = tempfile.TemporaryFile()  # noqa: SIM115 (closed in stop)
        command = [sys.executable, "-m", module, "--host", "127.0.0.1", "--port", "0", *MORE_ARGS, *args]
        if files is not None:
            command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("UNMASK_")}
        self.process = subprocess.Popen(
            command, cwd=ROOT, stderr=self.log_file, stdout=self.log_file, env={**clean, **(env or {})}
        )
        self.port = 0
        self.headers: dict[str, str] = {}

    @property
    def log(self) -> str:
        return written(self.log_file)

    @property
    def url(self) -> str:
        if not self.port:
            found = wait_for(lambda: re.search(r"listening on http://127.0.0.1:(\d+)", self.log) or self._dead(), 60)
            assert found is not True, self.log
            self.port = int(found[1])
        return f"http://127.0.0.1:{self.port}"

    def _dead(self) -> bool:
        return self.process.poll() is not None

    def client(self, **options: Any) -> httpx.Client:
        fixed: dict[str, Any] = {"timeout": 60, "headers": self.headers, "trust_env": False, "verify": False}
        return httpx.Client(base_url=self.url, **fixed, **options)

    def async_client(self, **options: Any) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        return httpx.AsyncClient(
            base_url=self.url, timeout=60, headers=self.headers, limits=limits, trust_env=False, verify=False, **options
        )

    def until_ready(self, seconds: float = 120) -> ServerProcess:
        with self.client() as client:
            wait_for(lambda: client.get("/ready").status_code == 200 or self._dead(), seconds)
        assert not self._dead(), self.log
        return self

    def backends(self) -> list[psutil.Process]:
        return [p for p in psutil.Process(self.process.pid).children() if "--command-addr" in p.cmdline()]

    def metrics(self) -> dict[str, float]:
        """Samples by name with labels, as in ``unmask_requests_total{outcome="stop"}``, less the model's name."""
        with self.client() as client:
            text = client.get("/metrics").text
        text = _MODEL_NAME.sub("", text).replace("{}", "")
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def idle(self) -> bool:
        """Whether nothing runs, waits or holds a page."""
        found = self.metrics()
        return not any(found[f"unmask_{name}"] for name in ("requests_running", "requests_waiting", "kv_pages_used"))

    def until_idle(self, seconds: float = 20) -> None:
        """Nothing is in flight, and the engines have told of their last steps: a request that its client gave up is
        forgotten at once, and the step that it was in ends and is counted a little later."""
        wait_for(self.idle, seconds)
        told: dict[str, float] = {}

        def settled() -> bool:
            nonlocal told
            before, told = told, {k: v for k, v in self.metrics().items() if k.startswith(_ENGINES_TOTALS)}
            if told != before:
                time.sleep(0.15)
            return told == before

        wait_for(settled, seconds)

    def wait(self, seconds: float = 30) -> int:
        return self.process.wait(seconds)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log_file.close()


def wait_for(what: Callable[[], Any], seconds: float) -> Any:
    """The first true value of `what`; fails after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(httpx.TransportError):
            if found := what():
                return found
        assert time.monotonic() < end, f"not so after {seconds} s"
        time.sleep(0.05)


@contextlib.contextmanager
def serving(
    *args: str,
    module: str = REAL,
    ready: bool = True,
    env: dict[str, str] | None = None,
    files: int | None = None,
) -> Iterator[Any]:
    server = ServerProcess(*args, module=module, env=env, files=files)
    try:
        yield server.until_ready() if ready else server
    except BaseException:
        print(f"--- log of the server\n{server.log}---")
        raise
    finally:
        server.stop()


def sse(text: str) -> list[str]:
    """The data of each event."""
    return [block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")]


def sse_events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Name and data of each event, of streams that name them."""
    blocks = [block.split("\n") for block in text.split("\n\n") if block and not block.startswith(":")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]
