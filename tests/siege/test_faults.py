"""Tests that the program for faults of the machine reports the bars that are missed."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from tests.siege.faults import FAULTS, SHIFTED_CLOCK, Fault, Outcome, ask, missed

HEALTH = {"probes": 100, "failed": 0, "longest_seconds": 0.02, "stand_in_longest_seconds": 0.01}
CONTROL = Outcome(["a"], ["a"], Counter(answered=10), health=HEALTH)
KILL = FAULTS["killed-rank"]
CLOCK = FAULTS["clock-jumps"]


def test_a_run_like_its_control_misses_nothing() -> None:
    assert missed(CLOCK, CONTROL, CONTROL) == []
    recovered = replace(CONTROL, requests=Counter(answered=5, error=5), recovery_seconds=9.0)
    assert missed(KILL, CONTROL, recovered) == []


@pytest.mark.parametrize(
    ("fault", "changes", "sentence"),
    [
        (CLOCK, {"requests": Counter(answered=9, error=1)}, "1 requests failed"),
        (KILL, {"requests": Counter(answered=9, broken=1), "broken": ["ServerDisconnected"]}, "without an answer"),
        (KILL, {"recovery_seconds": None}, "/ready was 200 again after None s"),
        (KILL, {"recovery_seconds": 90.0}, "/ready was 200 again after 90.0 s (bar 60)"),
        (CLOCK, {"answers_after": ["b"]}, "answers differ"),
        (CLOCK, {"requests": Counter()}, "no request was answered"),
        (CLOCK, {"longest_seconds": 61.0}, "a request took 61 s"),
        (CLOCK, {"health": HEALTH | {"failed": 1}}, "1 of 100 probes of /health failed"),
        (CLOCK, {"health": HEALTH | {"longest_seconds": 0.3}}, "/health took up to 300 ms (bar 200)"),
        (CLOCK, {"growth_mb": 120.0}, "grew by 120 MB"),
        (CLOCK, {"lines_per_second": 51}, "51 log lines in a second"),
        (CLOCK, {"notes": ["a key was not accepted"]}, "a key was not accepted"),
    ],
)
def test_a_missed_bar_is_named(fault: Fault, changes: dict[str, Any], sentence: str) -> None:
    found = replace(CONTROL, recovery_seconds=1.0)
    assert any(sentence in each for each in missed(fault, CONTROL, replace(found, **changes)))


def test_requests_that_fail_without_the_fault_are_named() -> None:
    control = replace(CONTROL, requests=Counter(answered=1, error=1))
    assert "without the fault, requests failed" in missed(CLOCK, control, CONTROL)[0]


@pytest.mark.parametrize(
    ("status", "text", "how"),
    [
        (200, '{"choices": [{"finish_reason": "stop"}]}', "answered"),
        (200, '{"choices": [', "broken"),
        (503, '{"error": {"message": "no backend"}}', "error"),
        (503, "<html>", "broken"),
    ],
)
def test_an_answer_is_complete_an_error_or_broken(status: int, text: str, how: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status, text=text)

    async def scene() -> str:
        app = web.Application()
        app.router.add_post("/v1/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            async with ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
                return (await ask(client, {"stream": False}))[0]
        finally:
            await runner.cleanup()

    assert asyncio.run(scene()) == how


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "clock"
    file.write_text(f"{0.0:<40}")
    monkeypatch.setenv("SIEGE_CLOCK", str(file))
    for name in ("time", "time_ns"):
        monkeypatch.setattr(time, name, getattr(time, name))
    return file


def test_the_wall_clock_is_shifted_and_the_monotonic_one_is_not(clock: Path) -> None:
    exec(compile(SHIFTED_CLOCK, "sitecustomize.py", "exec"), {})
    before, ticks = time.time(), time.monotonic()
    clock.write_text(f"{-1e6:<40}")
    assert time.time() - before < -9e5
    assert time.time_ns() / 1e9 - before < -9e5
    assert time.monotonic() >= ticks
