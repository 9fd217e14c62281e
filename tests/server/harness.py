"""Starts servers as real processes on free loopback ports, with access to their logs and an httpx client."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from tests.server.limits import VARIABLE
from tests.wait import TIMEOUT, wait_until
from tests.written import written

ROOT = Path(__file__).resolve().parents[2]
_MODEL_NAME = re.compile(r',model_name="[^"]*"|model_name="[^"]*",?')
STOP_SECONDS = 60.0  # from SIGTERM until the server is killed
T = TypeVar("T")
RAISED = ("tests.server.limits", "server")  # `runtime.server` with limits that a slow machine does not reach
REAL = "runtime.server"
# Further flags of every server, to run all tests with, for example, "--frontend-processes 3".
MORE_ARGS = tuple(os.environ.get("TEST_SERVER_ARGS", "").split())
FAKE = "tests.server.fake_engine"
SCRIPTED = "tests.server.scripted_engine"
KEY = "a-key-of-these-tests"  # of the fixture `keyed`


class ServerProcess:
    """A server process, ``python -m MODULE ARGS``, on a free port."""

    def __init__(
        self, *args: str, module: str | None = None, env: dict[str, str] | None = None, files: int | None = None,
        limits: dict[str, float] | None = None, program: tuple[str, ...] = (), cwd: Path = ROOT,
        host: str | None = "127.0.0.1",
    ) -> None:  # fmt: skip
        """Starts the process.

        Args:
            module: The module to run. None: the real server with raised limits.
            env: Environment variables added to those of this process.
            files: The process's limit of open files.
            limits: Limits by their dotted names, in place of those of `tests/server/limits.py`.
            program: The arguments of Python, in place of those that run `module`.
            cwd: The process's current directory.
            host: The value of --host. None: the flag is left out.
        """
        self.log_file = tempfile.TemporaryFile()  # noqa: SIM115 (closed in stop)
        program = program or ("-m", *(RAISED if module is None else (module,)))
        command = [sys.executable, *program, *(("--host", host) if host else ()), "--port", "0", *MORE_ARGS, *args]
        if files is not None:
            command = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *command]
        clean = {k: v for k, v in os.environ.items() if not k.startswith("UNMASK_")}
        self.process = subprocess.Popen(
            command, cwd=cwd, stderr=self.log_file, stdout=self.log_file,
            env={**clean, VARIABLE: json.dumps(limits or {}), **(env or {})},
        )  # fmt: skip
        self.port = 0
        self.headers: dict[str, str] = {}

    @property
    def log(self) -> str:
        return written(self.log_file)

    @property
    def url(self) -> str:
        if not self.port:
            found = wait_until(lambda: re.search(r"listening on http://[^/ ]+:(\d+)", self.log) or self._dead())
            assert found is not True, self.log
            self.port = int(found[1])
        return f"http://127.0.0.1:{self.port}"

    def _dead(self) -> bool:
        return self.process.poll() is not None

    def client(self, **options: Any) -> httpx.Client:
        common: dict[str, Any] = {"timeout": TIMEOUT, "headers": self.headers, "trust_env": False, "verify": False}
        return httpx.Client(base_url=self.url, **common, **options)

    def async_client(self, **options: Any) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
        return httpx.AsyncClient(
            base_url=self.url, timeout=TIMEOUT, headers=self.headers, limits=limits, trust_env=False, verify=False,
            **options,
        )  # fmt: skip

    def connect(self, data: bytes = b"") -> socket.socket:
        """Opens a connection and sends data."""
        assert self.url
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT)
        connection.sendall(data)
        return connection

    def until(self, condition: Callable[[], T], message: str = "") -> T:
        """Waits until a condition that sends requests is true. A request without an answer counts as false."""
        return wait_until(condition, message, interval=0.05, ignore=httpx.TransportError)

    def until_ready(self) -> ServerProcess:
        with self.client() as client:
            self.until(lambda: client.get("/ready").status_code == 200 or self._dead(), "/ready")
        assert not self._dead(), self.log
        return self

    def until_metric(self, name: str, value: float) -> None:
        """Waits until a sample of /metrics has this value."""
        self.until(lambda: self.metrics().get(name) == value, f"{name} == {value:g}")

    def backends(self) -> list[psutil.Process]:
        return self._children("--command-addr")

    def frontends(self) -> list[psutil.Process]:
        """Returns the processes of --frontend-processes."""
        return self._children("frontend")

    def trials(self) -> list[psutil.Process]:
        """Returns the processes that compile grammars."""
        return self._children("runtime.structured_output.sandbox_process")

    def _children(self, argument: str) -> list[psutil.Process]:
        found = []
        for process in psutil.Process(self.process.pid).children():
            with contextlib.suppress(psutil.NoSuchProcess):  # the process has just exited
                if argument in process.cmdline():
                    found.append(process)
        return found

    def metrics(self) -> dict[str, float]:
        """Returns samples by name with labels but the model's name: ``unmask_requests_total{outcome="stop"}``."""
        with self.client() as client:
            text = client.get("/metrics").text
        text = _MODEL_NAME.sub("", text).replace("{}", "")
        lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in lines}

    def idle(self) -> bool:
        """Returns whether no request runs or waits and no KV page is in use."""
        found = self.metrics()
        return not any(found[f"unmask_{name}"] for name in ("requests_running", "requests_waiting", "kv_pages_used"))

    def until_idle(self) -> None:
        """Waits until no request is in flight. The last step of an aborted request may not be counted yet."""
        self.until(self.idle, "idle")

    def wait(self) -> int:
        return self.process.wait(TIMEOUT)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log_file.close()


@contextlib.contextmanager
def serving(*args: str, ready: bool = True, **options: Any) -> Iterator[Any]:
    """Runs a server. `options`: those of `ServerProcess`."""
    server = ServerProcess(*args, **options)
    try:
        yield server.until_ready() if ready else server
    except BaseException:
        print(f"--- log of the server\n{server.log}---")
        raise
    finally:
        server.stop()


def has_ended(process: psutil.Process) -> bool:
    """Returns whether the process has exited. It may be a zombie that its parent has not collected yet."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def sse(text: str) -> list[str]:
    """Returns the data of each event."""
    return [block.removeprefix("data: ") for block in text.split("\n\n") if block.startswith("data: ")]


def sse_events(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Returns the name and data of each event of a stream with named events."""
    blocks = [block.split("\n") for block in text.split("\n\n") if block and not block.startswith(":")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]
