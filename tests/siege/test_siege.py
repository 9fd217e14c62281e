"""Tests of the siege: harmless attacks pass, a failing server is reported, and no process is left behind."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.server.checkpoint import write_checkpoint
from tests.server.harness import FAKE, has_ended
from tests.siege import attacks, clients, measure, observers, report, samples, verdict
from tests.siege.registry import ATTACKS
from tests.siege.server import Besieged, SiegeError, besieged
from tests.wait import TIMEOUT, wait_until

pytestmark = pytest.mark.matrix

OPTIONS = measure.Options(settle=60, think=0.5)  # a maximum: memory and descriptors are mostly back at once
NEVER_BACK = measure.Options(settle=2, think=0.5)  # for a server that never releases memory
# Bars that may be missed because the machine is busy.
BUSY = ("/health took", "an innocent request took", "probes of /health failed")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Besieged]:
    with besieged(FAKE, ("--model", str(model)), descriptors=300) as server:
        yield server


def run(
    server: Besieged, *names: str, seconds: float = 2.0, good: int = 0, options: measure.Options = OPTIONS
) -> dict[str, Any]:
    return measure.siege(server, [ATTACKS[name] for name in names], seconds, options, good=good)


def run_until(enough: Callable[[dict[str, Any]], bool], server: Besieged, *names: str, **more: Any) -> dict[str, Any]:
    """Runs sieges, each four times as long as the previous one, until one was long enough on this machine."""
    for seconds in (2.0, 8.0, 32.0, 128.0):
        found = run(server, *names, seconds=seconds, **more)
        if enough(found):
            break
    return found


def but_for_the_machine(missed: list[str]) -> list[str]:
    return [sentence for sentence in missed if not any(word in sentence for word in BUSY)]


def test_a_harmless_attack_passes_and_a_broken_promise_does_not(server: Besieged) -> None:
    before = psutil.Process(server.pid).num_fds()

    def measured(found: dict[str, Any]) -> bool:
        return bool(
            found["did"]["onlookers"].get("answer 401", 0) >= 2
            and found["broken"] != []
            and found["health"]["probes"] > 5
            and found["innocent"]["requests"] >= 2
        )

    found = run_until(measured, server, "onlookers", "liars")
    assert measured(found)
    assert but_for_the_machine(verdict.alone(found)) == ["liars: a body became a request"]
    assert but_for_the_machine(verdict.alone(found | {"broken": []})) == []
    turned_away = found["innocent"] | {"failed": 1, "turned_away": 1, "failures": ["503: full"]}
    full = found | {"broken": [], "innocent": turned_away}
    assert but_for_the_machine(verdict.alone(full)) == ["1 innocent requests failed: 503: full"]
    assert but_for_the_machine(verdict.alone(full | {"full": True})) == []
    idle = found | {"did": {"onlookers": {}}, "attacks_did": False}
    assert any("nothing was measured" in sentence for sentence in verdict.alone(idle))
    slow = found["innocent"] | {"median_times_usual": 5.0}
    slow = found | {"innocent": slow, "slowdown": 2.0, "broken": [], "control_median_times_usual": None}
    assert any("took 5.0 times as long as usual (bar 2)" in sentence for sentence in verdict.alone(slow))
    for control, misses in ((2.6, False), (2.4, True)):
        sentences = verdict.alone(slow | {"control_median_times_usual": control})
        bar = f"took 5.0 times as long as usual (control: {control} times; limit: 2 times the control)"
        assert misses == any(bar in sentence for sentence in sentences)
    assert all(report._cells(found | {"attack": "both", "rate": "twice a second", "missed": []}))
    assert found["usual_seconds"] > 0
    assert 20 < found["rss_before_mb"] <= found["rss_peak_mb"]
    assert abs(found["descriptors_before"] - before) < 10
    assert found["cpu_seconds"]["attackers"] < found["cpu_seconds"]["machine"]
    assert psutil.Process(server.pid).rlimit(psutil.RLIMIT_NOFILE)[0] == 300


def test_good_clients_keep_and_close_connections_and_stream(server: Besieged) -> None:
    found = run_until(lambda found: found["good"]["requests"] >= 4, server, "onlookers", good=4)
    assert found["good"]["requests"] >= 4
    assert [s for s in verdict.together(found) if "in a row" not in s] == []


def test_a_server_that_misses_the_bars_is_reported(model: Path) -> None:
    sentences = ("memory grew by", "MB were still held", "/health took", "log lines in a second")

    def missed(found: dict[str, Any]) -> str:
        return "; ".join(verdict.alone(found))

    with besieged("tests.siege.leaking", ("--model", str(model))) as server:
        found = run_until(
            lambda found: all(sentence in missed(found) for sentence in sentences),
            server,
            "onlookers",
            options=NEVER_BACK,
        )
    for sentence in sentences:
        assert sentence in missed(found), missed(found)


def test_the_time_and_cause_of_failed_probes_are_reported(server: Besieged) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert observers.probe(closed.getsockname()[1])[0] == "refused"
        closed.listen()
        assert observers.probe(closed.getsockname()[1], timeout=0.2)[0] == "timed out"
        started = time.monotonic()
        checks = iter([False, True])
        port = closed.getsockname()[1]
        found = observers.prober(lambda: next(checks), lambda _: None, port, server.port)
        took = time.monotonic() - started
    (spell,) = observers.since(started, found["worst"])
    assert (spell["failed"], spell["how"], found["most_failed_in_a_row"]) == (1, {"timed out": 1}, 1)
    assert 0 <= spell["at"] <= round(took, 1)
    assert spell["seconds"] >= observers.PROBE_TIMEOUT
    assert "s in and lasted" in verdict._longest_spell(found)
    assert observers.probe(server.port, timeout=TIMEOUT)[0] is None


def test_slow_and_refused_requests_are_counted_separately() -> None:
    found = clients.tally([clients.Asked(10.0, "503: full", 0.1, 0.1), clients.Asked(12.0, None, 4.0, 0.2)])
    assert (found["failed"], found["turned_away"], found["late"]) == (1, 1, 1)
    assert observers.since(8.0, found["worst"]) == [{"at": 4.0, "seconds": 4.0, "over_usual": 3.8, "how": "answered"}]
    assert len(json.dumps(clients.chat_body(1, "x", "y" * 900, False))) > clients.LONG_BYTES - 2 * clients.NOTE
    assert clients.chat_body(0, "x", "y", False)["messages"] == [{"role": "user", "content": "x"}]


def test_holders_of_keys_and_ended_processes_are_reported(model: Path) -> None:
    names = ("choices", "lost-bodies")
    with besieged(FAKE, ("--model", str(model)), holders=names) as server:
        keys = [measure._order(ATTACKS[name], server, 1.0, OPTIONS)[3] for name in (*names, "aborted-requests")]
        assert keys == [*server.keys_of.values(), server.attackers_key]
        assert len({*keys, server.key}) == 4
        assert measure._order(ATTACKS["pipeline"], server, 1.0, OPTIONS)[3] is None
        for key in keys:
            request = urllib.request.Request(
                f"http://127.0.0.1:{server.port}/v1/models", headers={"Authorization": f"Bearer {key}"}
            )
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                assert answer.status == 200
        assert server.ended() == []
        backend = next(p for p in server.family.values() if "--command-addr" in p.cmdline())
        backend.kill()
        wait_until(lambda: has_ended(backend))
        wait_until(server.ended)
        assert server.ended() == [f"a child (pid {backend.pid})"]


def test_an_interrupted_siege_leaves_no_process_behind(server: Besieged, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(psutil.Process().children(recursive=True))

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(measure, "_settle", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(server, "idlers", seconds=0.5)
    wait_until(lambda: not _python(set(psutil.Process().children(recursive=True)) - before))


def _python(processes: set[psutil.Process]) -> list[str]:
    """Returns the commands of the processes without the one that multiprocessing keeps for its semaphores."""
    found = []
    for process in processes:
        try:
            command = " ".join(process.cmdline())
        except psutil.NoSuchProcess:
            continue
        if "resource_tracker" not in command:
            found.append(command)
    return found


def test_a_server_that_does_not_start_is_reported_with_the_cause(model: Path) -> None:
    with pytest.raises(SiegeError, match="--max-num-reqs"), besieged(FAKE, ("--max-num-reqs", "0")):
        pass


def test_every_attack_is_in_the_table() -> None:
    here = {name for name, attack in ATTACKS.items() if attack.run.__module__.startswith(attacks.__name__)}
    assert len(here) >= 35
    assert {attack.run.__module__.rsplit(".", 1)[1] for attack in ATTACKS.values()} == {*attacks.__all__, "samples"}
    assert samples.__doc__
