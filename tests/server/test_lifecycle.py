"""Start and end of a server: refusals with one sentence, draining, several on one host, what the process holds."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.server.checkpoint import CONFIG, make_weights
from tests.server.harness import FAKE, REAL, ROOT, ServerProcess, serving, wait_for

SLOW = {"prompt": "x", "max_tokens": 30, "cache_salt": "slow"}  # 1.5 s with the fake engine


def ipc_place(server: ServerProcess) -> Path:
    command = server.backends()[0].cmdline()
    return Path(command[command.index("--command-addr") + 1].removeprefix("ipc://")).parent


async def load(server: ServerProcess, seconds: float, body: dict[str, object], clients: int) -> list[int | str]:
    """What `clients` closed loops saw: statuses, or "refused" once nobody listens any more."""
    seen: list[int | str] = []
    end = time.monotonic() + seconds

    async def loop() -> None:
        async with server.async_client() as client:
            first = True
            while first or time.monotonic() < end:
                first = False
                try:
                    seen.append((await client.post("/generate", json=body)).status_code)
                except httpx.ConnectError:
                    seen.append("refused")
                    return
                except httpx.TransportError as error:
                    seen.append(repr(error))
                    return

    await asyncio.gather(*(loop() for _ in range(clients)))
    return seen


@pytest.mark.parametrize("delay", [0, 1.5])
def test_sigterm_under_load_fails_nobody(checkpoint: Path, delay: float) -> None:
    with serving("--model", str(checkpoint), "--drain-delay", str(delay), module=FAKE) as server:
        place = ipc_place(server)
        (backend,) = server.backends()
        told: list[httpx.Response] = []

        async def drive() -> list[int | str]:
            task = asyncio.create_task(load(server, 6, {"prompt": "x", "max_tokens": 20}, 16))
            slow = asyncio.create_task(load(server, 0.1, SLOW, 4))
            await asyncio.sleep(1)
            server.process.send_signal(signal.SIGTERM)
            if delay:
                async with server.async_client() as client:
                    await asyncio.sleep(0.4)
                    told.append(await client.get("/ready"))
                    told.append(await client.post("/generate", json={"prompt": "x", "max_tokens": 2}))
            return await task + await slow

        seen = asyncio.run(drive())
        assert server.wait(10) == 0
        assert set(seen) <= {200, "refused"}
        assert seen.count(200) >= 10  # it was a load: how much one gets done in a second is no test
        assert seen.count("refused") == 16  # every loop met the closed listener, none an error
        if delay:
            assert [answer.status_code for answer in told] == [503, 200]
            assert all(answer.headers["connection"] == "close" for answer in told)
        assert not place.exists()
        assert not backend.is_running()


def test_a_drain_has_a_limit_and_a_second_signal_ends_at_once(checkpoint: Path) -> None:
    with serving("--model", str(checkpoint), "--drain-timeout", "0.5", module=FAKE) as server:

        async def drive() -> list[int | str]:
            task = asyncio.create_task(load(server, 0.1, {**SLOW, "max_tokens": 400}, 3))
            await asyncio.sleep(0.5)
            server.process.send_signal(signal.SIGTERM)
            return await task

        assert asyncio.run(drive()) == [504] * 3
        assert server.wait(5) == 0
    with serving("--model", str(checkpoint), module=FAKE) as server:
        place = ipc_place(server)
        (backend,) = server.backends()

        async def twice() -> None:
            task = asyncio.create_task(load(server, 0.1, {**SLOW, "max_tokens": 400}, 3))
            await asyncio.sleep(0.5)
            server.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.3)
            assert server.process.poll() is None
            server.process.send_signal(signal.SIGINT)
            await task

        asyncio.run(twice())
        assert server.wait(2) == 128 + signal.SIGINT
        wait_for(lambda: not backend.is_running() or backend.status() == "zombie", 2)
        assert not place.exists()


def test_two_servers_do_not_collide(checkpoint: Path) -> None:
    with (
        serving("--model", str(checkpoint), "--served-model-name", "a", module=FAKE) as one,
        serving("--model", str(checkpoint), "--served-model-name", "b", module=FAKE) as two,
        one.client() as first,
        two.client() as second,
    ):
        assert ipc_place(one) != ipc_place(two)
        assert first.get("/v1/models").json()["data"][0]["id"] == "a"
        assert second.get("/v1/models").json()["data"][0]["id"] == "b"
        command = [sys.executable, "-m", FAKE, "--model", str(checkpoint), "--host", "127.0.0.1"]
        taken = subprocess.run([*command, "--port", str(one.port)], cwd=ROOT, capture_output=True, text=True)
        assert taken.returncode == 1
        assert f"--port {one.port}" in taken.stderr.splitlines()[-1]


def test_tcp_addresses(checkpoint: Path, unused_tcp_ports: tuple[int, int]) -> None:
    commands, events = unused_tcp_ports
    addresses = (
        "--zmq-command-addr", f"tcp://127.0.0.1:{commands}", "--zmq-event-addr", f"tcp://127.0.0.1:{events}",
    )  # fmt: skip
    with serving("--model", str(checkpoint), *addresses, module=FAKE) as server, server.client() as client:
        assert client.post("/generate", json={"prompt": "x", "max_tokens": 3}).json()["text"] == "abc"


@pytest.fixture
def unused_tcp_ports() -> tuple[int, int]:
    import socket

    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]


def test_help_is_quick() -> None:
    times = []
    for _ in range(3):
        started = time.monotonic()
        done = subprocess.run([sys.executable, "-m", REAL, "--help"], cwd=ROOT, capture_output=True, text=True)
        times.append(time.monotonic() - started)
        assert done.returncode == 0
        assert "--max-num-reqs" in done.stdout
    assert min(times) < 1.0
    listed = "import sys, runtime.server.cli; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", listed], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert not {"torch", "fastapi", "pydantic", "zmq", "tokenizers"} & set(modules)


def test_the_frontend_is_small_and_without_torch(server: ServerProcess) -> None:
    pid = server.process.pid
    maps = Path(f"/proc/{pid}/maps").read_text()
    assert "libtorch" not in maps
    loaded = "import sys, runtime.server.http, runtime.server.serve; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", loaded], cwd=ROOT, capture_output=True, text=True).stdout.split()
    assert not {"torch", "transformers"} & set(modules)
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    pss = next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
    assert pss < 200 * 1024  # KiB


# what to break in a copy of the checkpoint -> words of the one sentence that start-up ends with
BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no directory": (lambda place: shutil.rmtree(place), "is not a directory"),
    "no config": (lambda place: (place / "config.json").unlink(), "config.json"),
    "no tokenizer": (lambda place: (place / "tokenizer.json").unlink(), "tokenizer"),
    "no weights": (lambda place: (place / "model.safetensors").unlink(), "safetensors"),
    "unknown family": (lambda place: _config(place, model_type="gpt2"), "gpt2"),
    "missing tensor": (lambda place: _lose(place, "model.norm.weight"), "model.norm.weight"),
    "a link to secrets": (
        lambda place: (place / "chat_template.jinja").symlink_to("/proc/self/environ"),
        "chat_template.jinja leads out of the checkpoint",
    ),
    "heads": (lambda place: _config(place, num_key_value_heads=3), "num_key_value_heads"),
}


def _config(place: Path, **changes: object) -> None:
    (place / "config.json").write_text(json.dumps({**CONFIG, **changes}))


def _lose(place: Path, name: str) -> None:
    from safetensors.numpy import save_file

    tensors = make_weights(1)
    del tensors[name]
    save_file(tensors, place / "model.safetensors")


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_ends_start_up_with_one_sentence(checkpoint: Path, tmp_path: Path, case: str) -> None:
    place = tmp_path / "broken"
    shutil.copytree(checkpoint, place)
    breaks, words = BROKEN[case]
    breaks(place)
    command = [sys.executable, "-m", REAL, "--host", "127.0.0.1", "--port", "0", "--model", str(place)]
    done = subprocess.run([*command, "--log-level", "error"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    *before, sentence = done.stderr.strip().splitlines()
    assert sentence.startswith("error: ")
    assert words in sentence
    assert not before


def test_a_wrong_flag_ends_start_up_with_one_sentence() -> None:
    for args, words in (
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
        assert words in sentence


def test_json_logs_are_json(checkpoint: Path) -> None:
    with serving("--model", str(checkpoint), "--log-format", "json", "--log-level", "debug", module=FAKE) as server:
        server.process.send_signal(signal.SIGTERM)
        server.wait(10)
        lines = [json.loads(line) for line in server.log.splitlines() if '"time"' in line or "{" in line]
    assert len(lines) > 2
    assert all({"time", "level", "message", "process"} <= line.keys() for line in lines)
