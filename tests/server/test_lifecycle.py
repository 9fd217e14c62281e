"""Tests of the start and end of a server: errors in one sentence, draining, several servers per host, its memory."""

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.server.harness import FAKE, REAL, ROOT, ServerProcess, has_ended, serving
from tests.server.test_supervision import start
from tests.wait import TIMEOUT, wait_until

pytestmark = pytest.mark.processes


def ipc_directory(server: ServerProcess) -> Path:
    command = server.backends()[0].cmdline()
    return Path(command[command.index("--command-addr") + 1].removeprefix("ipc://")).parent


def test_a_drain_has_a_limit(checkpoint: Path) -> None:
    with (
        serving("--model", str(checkpoint), "--drain-timeout", "0.5", module=FAKE) as server,
        concurrent.futures.ThreadPoolExecutor(3) as pool,
    ):
        answers = start(server, pool, 3)
        server.process.send_signal(signal.SIGTERM)
        assert [one.result(TIMEOUT).status_code for one in answers] == [504] * 3
        assert server.wait() == 0


def test_a_second_signal_ends_at_once(checkpoint: Path) -> None:
    with (
        serving("--model", str(checkpoint), "--drain-timeout", "600", module=FAKE) as server,
        concurrent.futures.ThreadPoolExecutor(3) as pool,
    ):
        directory = ipc_directory(server)
        (backend,) = server.backends()
        answers = start(server, pool, 3)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: "draining" in server.log)
        assert "at most 600 s" in server.log
        assert "A second signal, such as Ctrl-C, ends the server at once" in server.log
        server.process.send_signal(signal.SIGINT)
        assert server.wait() == 128 + signal.SIGINT
        assert all(isinstance(one.exception(TIMEOUT), httpx.TransportError) for one in answers)
        wait_until(lambda: has_ended(backend))
        assert not directory.exists()


@pytest.mark.matrix
def test_the_command_starts_every_kind_of_process(checkpoint: Path) -> None:
    """Runs the command without `tests/server/limits.py`: head, frontend processes, backend, grammar compiler."""
    args = ("--model", str(checkpoint), "--frontend-processes", "2")
    with serving(*args, module=REAL) as server:
        with server.client() as client:
            body = {"prompt": "x", "max_tokens": 8, "regex": "a|b"}
            server.until(lambda: client.post("/generate", json=body).json().get("text") in ("a", "b"))
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        ("runtime.server.cli", {"torch", "fastapi", "pydantic", "zmq", "tokenizers"}),
        ("runtime.server.http_server, runtime.server.launcher", {"numpy", "torch", "transformers"}),
    ],
)
def test_processes_import_no_modules_that_they_do_not_need(modules: str, absent: set[str]) -> None:
    code = f"import sys, {modules}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert "sys" in loaded
    assert not absent & set(loaded)


def test_the_frontend_is_small_and_without_torch(server: ServerProcess) -> None:
    proc = Path(f"/proc/{server.process.pid}")
    assert "libtorch" not in (proc / "maps").read_text()
    rollup = (proc / "smaps_rollup").read_text().splitlines()
    pss = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    assert pss < 200 * 1024  # KiB


@pytest.mark.matrix
def test_a_server_without_a_home_directory_serves(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the home directory belongs")
    env = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "HF_HOME"), str(tmp_path / "home"))
    with serving("--model", str(checkpoint), env=os.environ | env) as server, server.client() as client:
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 4}).status_code == 200


def test_sockets_and_the_format_of_the_log_are_flags(
    checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("z")
    flags = ["--zmq-command-addr", f"ipc://{directory}/c", "--zmq-event-addr", f"ipc://{directory}/e"]
    flags += ["--log-format", "json", "--log-level", "debug"]
    with serving("--model", str(checkpoint), *flags, module=FAKE) as server:
        with server.client() as client:
            assert client.post("/generate", json={"prompt": "x", "max_tokens": 3}).json()["text"] == "abc"
        server.process.send_signal(signal.SIGTERM)
        server.wait()
        lines = [json.loads(line) for line in server.log.splitlines()]
    assert len(lines) > 2
    assert all({"time", "level", "message", "process"} <= line.keys() for line in lines)
