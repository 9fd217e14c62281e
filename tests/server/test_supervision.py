"""Tests of backends that are killed, fail, are full or do not start, with an engine that does so on demand.

See docs/operations/server.md#shutdown.
"""

import concurrent.futures
import json
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.server.fake_engine import LOAD_VARIABLE
from tests.server.harness import FAKE, ServerProcess, serving, sse
from tests.wait import TIMEOUT

ENDLESS = {"prompt": "x", "max_tokens": 400, "cache_salt": "endless"}


def start(fake: ServerProcess, pool: concurrent.futures.Executor, count: int = 8, **more: object) -> list:
    """Sends requests that do not end by themselves, and waits until the server has them all."""

    def post() -> httpx.Response:
        with fake.client() as client:
            return client.post("/generate", json={**ENDLESS, **more})

    futures = [pool.submit(post) for _ in range(count)]

    def live() -> float:
        found = fake.metrics()
        return found["unmask_requests_running"] + found["unmask_requests_waiting"]

    fake.until(lambda: live() == count, f"{count} requests")
    return futures


def test_a_killed_backend_ends_its_requests_and_is_restarted(fake: ServerProcess) -> None:
    (backend,) = fake.backends()
    failures = fake.metrics()["unmask_backend_failures_total"]
    with concurrent.futures.ThreadPoolExecutor(16) as pool, fake.client() as client:
        pending = start(fake, pool, 6)
        streams = [pool.submit(client.post, "/generate", json={**ENDLESS, "stream": True}) for _ in range(2)]
        fake.until(lambda: fake.metrics()["unmask_requests_running"] + fake.metrics()["unmask_requests_waiting"] == 8)
        os.kill(backend.pid, signal.SIGKILL)
        answers = [f.result(timeout=TIMEOUT) for f in pending]
        events = [sse(f.result(timeout=TIMEOUT).text) for f in streams]
        for answer in answers:
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
            assert answer.json()["error"]["code"] == "no_backend"
        for event in events:
            assert json.loads(event[-2])["event"] == "error"
            assert event[-1] == "[DONE]"
        fake.until_ready()
        answer = client.post("/generate", json={"prompt": "x", "max_tokens": 4})
        assert answer.json()["text"] == "abca"
    fake.until_idle()
    assert fake.backends()[0].pid != backend.pid
    assert fake.metrics()["unmask_backend_failures_total"] == failures + 1


def test_the_server_is_not_ready_while_its_backend_loads(checkpoint: Path, tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    env = {LOAD_VARIABLE: str(loaded)}
    with (
        serving("--model", str(checkpoint), module=FAKE, ready=False, env=env) as loading,
        loading.client() as client,
    ):
        startup = client.get("/startup")
        assert startup.status_code == 503
        assert {"phase", "bytes", "percent"} <= startup.json().keys()
        loading.until(lambda: client.get("/startup").json().get("percent") == 50)
        assert client.get("/health").status_code == 200
        assert client.get("/ready").status_code == 503
        assert client.get("/v1/models").status_code == 503
        refused = client.post("/generate", json={"prompt": "x"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        loaded.touch()
        loading.until_ready()
        assert client.get("/startup").status_code == 200
        assert client.get("/startup").json() == {"status": "started", "model_revision": "0123456789" * 4}
        assert client.get("/v1/models").status_code == 200


@pytest.mark.parametrize("salt", ["crash", "exit"])
def test_a_backend_that_breaks_is_restarted(fake: ServerProcess, salt: str) -> None:
    failures = fake.metrics()["unmask_backend_failures_total"]
    with fake.client() as client:
        answer = client.post("/generate", json={"prompt": "x", "cache_salt": salt})
        assert answer.status_code == 503
        assert "engine process" in answer.json()["error"]["message"]
        fake.until_metric("unmask_backend_failures_total", failures + 1)
        fake.until_ready()
        assert client.post("/generate", json={"prompt": "x", "max_tokens": 2}).status_code == 200


def test_a_failed_step_fails_only_its_request(fake: ServerProcess, tmp_path: Path) -> None:
    done = tmp_path / "done"
    with concurrent.futures.ThreadPoolExecutor() as pool, fake.client() as client:
        (other,) = start(fake, pool, 1, max_tokens=20, cache_salt=f"hold:{done}")
        answer = client.post("/generate", json={"prompt": "x", "cache_salt": "fail"})
        assert answer.status_code == 500
        error = answer.json()["error"]
        assert error["code"] == "engine_error"
        assert "gen-" in error["message"]
        stream = sse(client.post("/generate", json={"prompt": "x", "cache_salt": "fail", "stream": True}).text)
        assert json.loads(stream[-2])["error"]["code"] == "engine_error"
        chat = {"messages": [{"role": "user", "content": "x"}], "cache_salt": "fail", "stream": True}
        stream = sse(client.post("/v1/chat/completions", json=chat).text)
        assert json.loads(stream[-2])["error"]["type"] == "server_error"
        assert stream[-1] == "[DONE]"
        done.touch()
        assert other.result().status_code == 200


def test_replicas_divide_the_load_fail_separately_and_end_with_the_server(checkpoint: Path, tmp_path: Path) -> None:
    done = tmp_path / "done"
    with serving("--model", str(checkpoint), "--data-parallel-size", "2", module=FAKE) as server:
        server.until_metric("unmask_backends_ready", 2)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            futures = start(server, pool, 4, max_tokens=60, cache_salt=f"hold:{done}")
            first, second = server.backends()
            first.kill()
            server.until_metric("unmask_backend_failures_total", 1)
            done.touch()
            statuses = sorted(f.result().status_code for f in futures)
        assert statuses == [200, 200, 503, 503]
        with server.client() as client:
            assert client.get("/ready").status_code == 200
        server.process.kill()
        second.wait(TIMEOUT)


def test_a_full_queue_refuses_requests(checkpoint: Path, tmp_path: Path) -> None:
    done = tmp_path / "done"
    with serving("--model", str(checkpoint), "--max-num-reqs", "2", "--max-queue", "1", module=FAKE) as server:
        with concurrent.futures.ThreadPoolExecutor(4) as pool, server.client() as client:
            futures = start(server, pool, 3, cache_salt=f"hold:{done}")
            full = client.post("/generate", json={"prompt": "x"})
            assert full.status_code == 429
            assert int(full.headers["retry-after"]) > 0
            assert full.json()["error"]["code"] == "queue_full"
            assert client.post("/v1/completions", json={"prompt": "x", "n": 1}).status_code == 429
            wrong = client.post("/v1/completions", json={"prompt": "x", "temperature": -1})
            # Invalid requests are refused as such also while the queue is full.
            assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "temperature")
            never = client.post("/v1/completions", json={"prompt": "x", "n": 2})
            assert (never.status_code, never.json()["error"]["param"]) == (400, "n")
            done.touch()
            assert [future.result().status_code for future in futures] == [200] * 3
        server.until_idle()
        assert server.metrics()['unmask_requests_total{outcome="refused"}'] == 4
