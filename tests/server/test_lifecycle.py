"""Tests of the start and end of a server: errors in one sentence, draining, several servers per host, its memory."""

from __future__ import annotations

import concurrent.futures
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.matrix import marked
from tests.server.checkpoint import CONFIG, make_weights
from tests.server.harness import FAKE, REAL, ROOT, ServerProcess, has_ended, serving
from tests.server.test_supervision import start
from tests.wait import TIMEOUT, wait_until


def ipc_directory(server: ServerProcess) -> Path:
    command = server.backends()[0].cmdline()
    return Path(command[command.index("--command-addr") + 1].removeprefix("ipc://")).parent


class Load:
    """Closed loops of short requests that end when the server accepts no more connections.

    The kernel refuses a connection after the listener has closed, and resets one that arrives while it closes. Both
    happen only on new connections. `tests/server/test_acceptor.py` checks that earlier connections are answered.
    """

    def __init__(self, server: ServerProcess, clients: int) -> None:
        self.server = server
        self.seen: list[int | str] = []
        self.pool = concurrent.futures.ThreadPoolExecutor(clients)
        self.loops = [self.pool.submit(self._loop) for _ in range(clients)]

    def _loop(self) -> None:
        new = True  # the next request opens a connection
        with self.server.client() as client:
            while True:
                try:
                    answer = client.post("/generate", json={"prompt": "x", "max_tokens": 20})
                except httpx.TransportError as error:
                    self.seen.append("refused" if new else repr(error))
                    return
                self.seen.append(answer.status_code)
                new = answer.headers.get("connection") == "close"

    def end(self) -> list[int | str]:
        """Returns the statuses, and "refused" once for each loop that reached the closed listener."""
        for loop in self.loops:
            loop.result(TIMEOUT)
        self.pool.shutdown()
        return self.seen


@pytest.mark.matrix
@pytest.mark.parametrize("delay", [False, True])
def test_sigterm_under_load_fails_no_request(checkpoint: Path, tmp_path: Path, delay: bool) -> None:
    done = tmp_path / "done"
    flags = ("--model", str(checkpoint), "--drain-timeout", "600", "--drain-delay", "5" if delay else "0")
    grace = {"runtime.server.http_server.IDLE_GRACE": 60.0}  # a client may be slow to use its idle connection
    with (
        serving(*flags, module=FAKE, limits=grace) as server,
        concurrent.futures.ThreadPoolExecutor(4) as pool,
    ):
        directory = ipc_directory(server)
        (backend,) = server.backends()
        long = start(server, pool, 4, cache_salt=f"hold:{done}")
        load = Load(server, 16)
        wait_until(lambda: load.seen.count(200) >= 32)
        server.process.send_signal(signal.SIGTERM)
        if delay:
            with server.client() as client:
                server.until(lambda: client.get("/ready").status_code == 503)
                answer = client.post("/generate", json={"prompt": "x", "max_tokens": 2})
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        seen = load.end()
        done.touch()
        assert [one.result(TIMEOUT).status_code for one in long] == [200] * 4
        assert server.wait() == 0
        assert set(seen) == {200, "refused"}  # every loop reached the closed listener, none failed
        assert seen.count("refused") == 16
        assert not directory.exists()
        wait_until(lambda: has_ended(backend))


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


@pytest.mark.matrix
def test_two_servers_do_not_collide(checkpoint: Path) -> None:
    with (
        serving("--model", str(checkpoint), "--served-model-name", "a", module=FAKE) as one,
        serving("--model", str(checkpoint), "--served-model-name", "b", module=FAKE) as two,
        one.client() as first,
        two.client() as second,
    ):
        assert ipc_directory(one) != ipc_directory(two)
        assert first.get("/v1/models").json()["data"][0]["id"] == "a"
        assert second.get("/v1/models").json()["data"][0]["id"] == "b"
        command = [sys.executable, "-m", FAKE, "--model", str(checkpoint), "--host", "127.0.0.1"]
        taken = subprocess.run([*command, "--port", str(one.port)], cwd=ROOT, capture_output=True, text=True)
        assert taken.returncode == 1
        assert f"--port {one.port}" in taken.stderr.splitlines()[-1]


def test_the_paths_of_the_sockets_can_be_chosen(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = tmp_path_factory.mktemp("z")
    addresses = ("--zmq-command-addr", f"ipc://{directory}/c", "--zmq-event-addr", f"ipc://{directory}/e")
    with serving("--model", str(checkpoint), *addresses, module=FAKE) as server, server.client() as client:
        assert client.post("/generate", json={"prompt": "x", "max_tokens": 3}).json()["text"] == "abc"


def test_help_imports_no_module_of_the_running_server() -> None:
    done = subprocess.run([sys.executable, "-m", REAL, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    assert "--max-num-reqs" in done.stdout
    assert "--help-all" in done.stdout
    listed = "import sys, runtime.server.cli; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", listed], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert not {"torch", "fastapi", "pydantic", "zmq", "tokenizers"} & set(modules)


def test_the_frontend_is_small_and_without_torch(server: ServerProcess) -> None:
    pid = server.process.pid
    maps = Path(f"/proc/{pid}/maps").read_text()
    assert "libtorch" not in maps
    loaded = "import sys, runtime.server.http_server, runtime.server.launcher; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert not {"torch", "transformers"} & set(modules)
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    pss = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    assert pss < 200 * 1024  # KiB


# What breaks a copy of the checkpoint, and a part of the one sentence with which the start ends.
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no directory": (lambda directory: shutil.rmtree(directory), "is not a directory"),
    "no config": (lambda directory: (directory / "config.json").unlink(), "config.json"),
    "no tokenizer": (lambda directory: (directory / "tokenizer.json").unlink(), "tokenizer"),
    "no weights": (lambda directory: (directory / "model.safetensors").unlink(), "safetensors"),
    "unknown family": (lambda directory: _config(directory, model_type="gpt2"), "gpt2"),
    "missing tensor": (lambda directory: _lose(directory, "model.norm.weight"), "model.norm.weight"),
    "a link to secrets": (
        lambda directory: (directory / "chat_template.jinja").symlink_to("/proc/self/environ"),
        "chat_template.jinja leads out of the checkpoint",
    ),
    "heads": (lambda directory: _config(directory, num_key_value_heads=3), "num_key_value_heads"),
}


def _config(directory: Path, **changes: object) -> None:
    (directory / "config.json").write_text(json.dumps({**CONFIG, **changes}))


def _lose(directory: Path, name: str) -> None:
    from safetensors.numpy import save_file

    tensors = make_weights(1)
    del tensors[name]
    save_file(tensors, directory / "model.safetensors")


@pytest.mark.parametrize("case", marked(BROKEN, quick=["no weights", "missing tensor"]))
def test_a_broken_checkpoint_ends_start_up_with_one_sentence(checkpoint: Path, tmp_path: Path, case: str) -> None:
    directory = tmp_path / "broken"
    shutil.copytree(checkpoint, directory)
    breaks, message = BROKEN[case]
    breaks(directory)
    command = [sys.executable, "-m", REAL, "--host", "127.0.0.1", "--port", "0", "--model", str(directory)]
    done = subprocess.run([*command, "--log-level", "error"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    *before, sentence = done.stderr.strip().splitlines()
    assert sentence.startswith("error: ")
    assert message in sentence
    assert not before


@pytest.mark.parametrize("pages", [10**12, 9 * 10**18])
def test_pages_that_do_not_fit_in_memory_end_the_start_with_one_sentence(checkpoint: Path, pages: int) -> None:
    command = [sys.executable, "-m", REAL, "--port", "0", "--model", str(checkpoint), "--device", "cpu"]
    command += ["--num-pages", str(pages), "--log-level", "error"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 1
    (sentence,) = done.stderr.strip().splitlines()
    assert sentence.startswith("error: the model and its KV cache do not fit in memory (")
    assert sentence.endswith("); set a smaller --num-pages, --max-num-reqs or --max-model-len")


def test_a_wrong_flag_ends_start_up_with_one_sentence() -> None:
    for args, message in (
        (["--max-num-reqs", "0"], "--max-num-reqs"),
        (["--no-such-flag"], "--no-such-flag"),
        (["--lora", "a"], "NAME=PATH"),
        (["--quantization", "int2"], "--quantization"),
        (["--api-key-file", "/nowhere"], "--api-key-file"),
        (["--host", "256.1.1.1", "--model", "/tmp"], "--host"),
    ):
        done = subprocess.run([sys.executable, "-m", REAL, *args], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 1
        (sentence,) = done.stderr.strip().splitlines()
        assert sentence.startswith("error: ")
        assert message in sentence


def test_json_logs_are_json(checkpoint: Path) -> None:
    with serving("--model", str(checkpoint), "--log-format", "json", "--log-level", "debug", module=FAKE) as server:
        server.process.send_signal(signal.SIGTERM)
        server.wait()
        lines = [json.loads(line) for line in server.log.splitlines() if '"time"' in line or "{" in line]
    assert len(lines) > 2
    assert all({"time", "level", "message", "process"} <= line.keys() for line in lines)
