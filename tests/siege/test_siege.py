"""The siege measures what it says: harmless attacks pass, a server that gives way is told of, nothing stays behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.server.checkpoint import write_checkpoint
from tests.server.harness import FAKE
from tests.siege import attacks, measure, report, samples, verdict
from tests.siege.registry import ATTACKS
from tests.siege.server import Besieged, SiegeError, besieged

OPTIONS = measure.Options(settle=2, think=0.5)
BUSY = ("/health took", "an innocent request took", "probes of /health failed")  # what a busy machine alone may do


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Besieged]:
    with besieged(FAKE, ("--model", str(model)), descriptors=300) as server:
        yield server


def run(server: Besieged, *names: str, seconds: float = 2.0, good: int = 0) -> dict:
    return measure.siege(server, [ATTACKS[name] for name in names], seconds, OPTIONS, good=good)


def but_for_the_machine(missed: list[str]) -> list[str]:
    return [sentence for sentence in missed if not any(word in sentence for word in BUSY)]


def test_a_harmless_attack_passes_and_a_broken_promise_does_not(server: Besieged) -> None:
    before = psutil.Process(server.pid).num_fds()
    found = run(server, "onlookers", "liars")
    assert but_for_the_machine(verdict.alone(found)) == ["liars: a body became a request"]
    assert but_for_the_machine(verdict.alone(found | {"broken": []})) == []
    idle = found | {"did": {"onlookers": {}}, "attacks_did": False}
    assert any("nothing was measured" in sentence for sentence in verdict.alone(idle))
    assert all(report._cells(found | {"attack": "both", "rate": "twice a second", "missed": []}))
    assert found["did"]["onlookers"]["answer 401"] >= 2
    assert found["health"]["probes"] > 5
    assert found["innocent"]["requests"] >= 2
    assert found["usual_seconds"] > 0
    assert 20 < found["rss_before_mb"] <= found["rss_peak_mb"]
    assert abs(found["descriptors_before"] - before) < 10
    assert found["cpu_seconds"]["attackers"] < found["cpu_seconds"]["machine"]
    assert psutil.Process(server.pid).rlimit(psutil.RLIMIT_NOFILE)[0] == 300


def test_good_clients_keep_and_close_connections_and_stream(server: Besieged) -> None:
    found = run(server, "onlookers", seconds=2.0, good=4)
    assert found["good"]["requests"] >= 4
    assert [s for s in verdict.together(found) if "in a row" not in s] == []


def test_a_server_that_gives_way_is_told_of(model: Path) -> None:
    with besieged("tests.siege.leaking", ("--model", str(model))) as server:
        found = run(server, "onlookers", seconds=3.0)
    missed = "; ".join(verdict.alone(found))
    for words in ("memory grew by", "MB were still held", "/health took", "log lines in a second"):
        assert words in missed, missed


def test_a_process_that_ended_is_told_of(model: Path) -> None:
    with besieged(FAKE, ("--model", str(model))) as server:
        assert server.ended() == []
        backend = next(p for p in server.family.values() if "--command-addr" in p.cmdline())
        backend.kill()
        backend.wait(10)
        assert server.ended() == [f"a child (pid {backend.pid})"]


def test_nothing_is_left_behind_when_it_is_interrupted(server: Besieged, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(psutil.Process().children(recursive=True))

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "_settle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(server, "idlers", seconds=0.5)
    end = time.monotonic() + 20
    while (left := _python(set(psutil.Process().children(recursive=True)) - before)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left


def _python(processes: set[psutil.Process]) -> list[str]:
    """Those that run something of ours; multiprocessing keeps a process of its own for its semaphores."""
    found = []
    for process in processes:
        try:
            command = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        if "resource_tracker" not in command:
            found.append(command)
    return found


def test_a_server_that_does_not_start_says_why(model: Path) -> None:
    with pytest.raises(SiegeError, match="--max-num-reqs"), besieged(FAKE, ("--max-num-reqs", "0")):
        pass


def test_every_attack_is_in_the_table() -> None:
    here = {name for name, attack in ATTACKS.items() if attack.run.__module__.startswith(attacks.__name__)}
    assert len(here) >= 25
    assert {attack.run.__module__.rsplit(".", 1)[1] for attack in ATTACKS.values()} == {*attacks.__all__, "samples"}
    assert samples.__doc__
