"""Tests of profiles of the engines' steps: access, files, and their content."""

import gzip
import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from runtime.config import parse
from runtime.errors import ConfigError
from runtime.server.engine_client.ipc_protocol import CallResult
from runtime.server.engine_process import background_work
from runtime.server.engine_process.background_work import STEP, ProfileWorker
from tests.server.harness import FAKE, KEY, ServerProcess, serving
from tests.wait import wait_until

pytestmark = pytest.mark.processes

GENERATE = {"prompt": "profile", "max_tokens": 16, "ignore_eos": True}


def steps_in(file: str) -> list[dict[str, Any]]:
    with gzip.open(file) as opened:
        return [event for event in json.load(opened)["traceEvents"] if event.get("name") == STEP]


@pytest.mark.matrix
def test_a_profile_has_the_steps_of_every_backend(checkpoint: Any, tmp_path: Path) -> None:
    directory = tmp_path / "new" / "place"
    flags = ["--model", str(checkpoint), "--profiler", "torch", "--torch-profiler-dir", str(directory)]
    with serving(*flags, "--api-key", KEY, "--data-parallel-size", "2") as server:
        with server.client() as stranger:
            assert stranger.post("/start_profile").status_code == 401
        server.headers = {"Authorization": f"Bearer {KEY}"}
        server.until_metric("unmask_backends_ready", 2)
        with server.client() as client:

            def steps(answers: int) -> float:
                """Returns the number of steps once so many answers are complete and the engine is idle."""

                def found() -> float:
                    totals = server.metrics()
                    complete = totals["unmask_generated_tokens_total"] == 16 * answers
                    return totals["unmask_engine_steps_total"] if complete and not totals["unmask_kv_pages_used"] else 0

                return server.until(found)

            refused = client.post("/stop_profile")
            assert refused.status_code == 409
            assert "no profile is running" in refused.json()["error"]["message"]
            client.post("/generate", json=GENERATE).raise_for_status()
            before = steps(1)
            assert client.post("/start_profile").json() == {"status": "started", "backends": [0, 1]}
            again = client.post("/start_profile")
            assert again.status_code == 409
            assert "/stop_profile" in again.json()["error"]["message"]
            client.post("/generate", json=GENERATE).raise_for_status()
            done = steps(2) - before
            files = client.post("/stop_profile").raise_for_status().json()["files"]
            client.post("/generate", json=GENERATE).raise_for_status()
            assert client.post("/start_profile").status_code == 200  # a second profile
            assert client.post("/stop_profile").status_code == 200
    assert len(files) == 2
    assert all(Path(file).parent == directory for file in files)
    assert sum(len(steps_in(file)) for file in files) == done > 0


def test_an_impossible_directory_is_reported_and_changes_nothing(checkpoint: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    flags = ["--model", str(checkpoint), "--profiler", "torch", "--torch-profiler-dir", str(tmp_path / "file")]
    with serving(*flags) as server, server.client() as client:
        refused = client.post("/start_profile")
        assert refused.status_code == 500
        assert "failed to start the profile" in refused.json()["error"]["message"]
        assert client.post("/stop_profile").status_code == 409
        client.post("/generate", json=GENERATE).raise_for_status()


def test_without_the_flags_both_routes_are_refused(fake: ServerProcess) -> None:
    with fake.client() as client:
        for route in ("/start_profile", "/stop_profile"):
            refused = client.post(route)
            assert refused.status_code == 409
            assert refused.json()["error"]["code"] == "profiler_off"


@pytest.mark.matrix
def test_a_profile_ends_with_its_backend(tmp_path: Path) -> None:
    with serving("--profiler", "torch", "--torch-profiler-dir", str(tmp_path), module=FAKE) as server:  # noqa: SIM117
        with server.client() as client:
            client.post("/start_profile").raise_for_status()
            server.backends()[0].kill()
            server.until_metric("unmask_backend_failures_total", 1)
            server.until_metric("unmask_backends_ready", 1)
            assert client.post("/stop_profile").status_code == 409
            assert client.post("/start_profile").status_code == 200


def test_stopping_a_profile_that_is_not_running_is_an_error() -> None:
    sent: list[Any] = []
    ProfileWorker("backend-0.1", sent.append).stop(7, keep=True)
    assert sent == [CallResult(7, error="no profile is running")]


@pytest.mark.parametrize("flags", [["--profiler", "torch"], ["--torch-profiler-dir", "/tmp"]])
def test_one_flag_without_the_other_is_refused(flags: list[str]) -> None:
    with pytest.raises(ConfigError, match="--profiler and --torch-profiler-dir go together"):
        parse(flags, {})


@pytest.mark.parametrize("keep", [False, True])
def test_a_profile_stops_by_itself_and_can_be_written_later(keep: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_work, "MAX_PROFILED_STEPS", 3)
    sent: list[CallResult] = []
    worker, profile = ProfileWorker("backend-0.1", sent.append), Mock()
    monkeypatch.setattr(worker, "_make_profile", lambda: profile)
    worker.start(1, "traces")
    for _ in range(3):
        assert worker.recording
        worker.step(Mock())
    assert not worker.recording
    worker.stop(2, keep=keep)
    wait_until(lambda: worker.poll() or len(sent) == 2)
    assert [result.error for result in sent] == [None, None]
    profile.stop.assert_called_once_with()
    assert profile.export_chrome_trace.called == keep
