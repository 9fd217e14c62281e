"""Tests of the siege: harmless attacks pass, a failing server is reported, and no process is left behind."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.server.checkpoint import write_checkpoint
from tests.server.harness import FAKE
from tests.siege import measure, report, samples, verdict
from tests.siege.faults import FAULTS, Fault, Outcome
from tests.siege.faults import missed as missed_of_a_fault
from tests.siege.registry import ATTACKS
from tests.siege.server import Besieged, SiegeError
from tests.wait import wait_until

pytestmark = pytest.mark.processes

# Bars that may be missed because the machine is busy.
BUSY = ("/health took", "an innocent request took", "probes of /health failed")
HEALTH = {"probes": 100, "failed": 0, "longest_seconds": 0.02, "stand_in_longest_seconds": 0.01}
CONTROL = Outcome(["a"], ["a"], Counter(answered=10), health=HEALTH)
KILL, CLOCK = FAULTS["killed-rank"], FAULTS["clock-jumps"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


def run_until(enough: Callable[[dict[str, Any]], bool], server: Besieged, *names: str, settle: float) -> dict[str, Any]:
    """Runs sieges, each four times as long as the previous one, until one was long enough on this machine."""
    attacks = [ATTACKS[name] for name in names]
    for seconds in (2.0, 8.0, 32.0, 128.0):
        found = measure.siege(server, attacks, seconds, measure.Options(settle=settle, think=0.5))
        if enough(found):
            break
    return found


def missed(found: dict[str, Any], **changes: Any) -> list[str]:
    sentences = verdict.alone(found | changes)
    return [sentence for sentence in sentences if not any(word in sentence for word in BUSY)]


@pytest.mark.matrix
def test_a_harmless_attack_passes_and_a_broken_promise_does_not(model: Path) -> None:
    def measured(found: dict[str, Any]) -> bool:
        return bool(
            found["did"][samples.ONLOOKERS].get("answer 401", 0) >= 2
            and found["broken"] != []
            and found["health"]["probes"] > 5
            and found["innocent"]["requests"] >= 2
        )

    before = set(psutil.Process().children(recursive=True))
    with Besieged.started(FAKE, ("--model", str(model))) as server:
        found = run_until(measured, server, samples.ONLOOKERS, samples.LIARS, settle=60)
    assert measured(found)
    assert missed(found) == [f"{samples.LIARS}: a body became a request"]
    assert missed(found, broken=[]) == []
    innocent = found["innocent"]
    turned_away = innocent | {"failed": 1, "turned_away": 1, "failures": ["503: full"]}
    assert missed(found, broken=[], innocent=turned_away) == ["1 innocent requests failed: 503: full"]
    assert missed(found, broken=[], innocent=turned_away, full=True) == []
    assert "nothing was measured" in missed(found, broken=[], attacks_did=False)[0]
    slow = {"innocent": innocent | {"median_times_usual": 5.0}, "slowdown": 2.0, "broken": []}
    for control, misses in ((None, True), (2.6, False), (2.4, True)):
        assert bool(missed(found, **slow, control_median_times_usual=control)) == misses
    assert "holds" in report.row(found | {"attack": "both", "rate": "twice a second", "missed": []})
    wait_until(lambda: not _commands(set(psutil.Process().children(recursive=True)) - before))


@pytest.mark.matrix
def test_a_server_that_misses_the_bars_is_reported(model: Path) -> None:
    sentences = ("memory grew by", "MB were still held", "/health took", "log lines in a second")

    def reported(found: dict[str, Any]) -> bool:
        all_missed = "; ".join(verdict.alone(found))
        return all(sentence in all_missed for sentence in sentences)

    with Besieged.started("tests.siege.leaking", ("--model", str(model))) as server:
        found = run_until(reported, server, samples.ONLOOKERS, settle=2)
    assert reported(found), verdict.alone(found)


def _commands(processes: set[psutil.Process]) -> list[str]:
    """Returns the commands of the processes without the one that multiprocessing keeps for its semaphores."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found.append(" ".join(process.cmdline()))
    return [command for command in found if "resource_tracker" not in command]


@pytest.mark.matrix
def test_a_server_that_does_not_start_is_reported_with_the_cause() -> None:
    with pytest.raises(SiegeError, match="--max-num-reqs"), Besieged.started(FAKE, ("--max-num-reqs", "0")):
        pass


@pytest.mark.parametrize(
    ("fault", "changes"),
    [
        (CLOCK, {"requests": Counter(answered=9, error=1)}),
        (KILL, {"requests": Counter(answered=9, broken=1), "broken": ["ServerDisconnected"]}),
        (KILL, {"recovery_seconds": None}),
        (KILL, {"recovery_seconds": 90.0}),
        (CLOCK, {"answers_after": ["b"]}),
        (CLOCK, {"requests": Counter()}),
        (CLOCK, {"longest_seconds": 61.0}),
        (CLOCK, {"health": HEALTH | {"failed": 1}}),
        (CLOCK, {"health": HEALTH | {"longest_seconds": 0.3}}),
        (CLOCK, {"growth_mb": 120.0}),
        (CLOCK, {"lines_per_second": 51}),
        (CLOCK, {"notes": ["a key was not accepted"]}),
    ],
)
def test_each_bar_of_a_fault_is_judged(fault: Fault, changes: dict[str, Any]) -> None:
    recovered = replace(CONTROL, recovery_seconds=1.0)
    assert missed_of_a_fault(fault, CONTROL, recovered) == []
    assert len(missed_of_a_fault(fault, CONTROL, replace(recovered, **changes))) == 1
