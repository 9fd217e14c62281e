"""Tests of random requests to a server, and of when a request hangs. `pytest -m slow tests/soak` runs the long ones."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.server.harness import ROOT
from tests.soak.fuzz import MAX_STEPS, Fault, Fuzzer


@pytest.mark.slow
@pytest.mark.timeout(4000)
def test_ten_thousand_requests_lose_nothing_and_leave_nothing() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.soak.fuzz"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def finished(work: Callable[[Fuzzer], Coroutine[Any, Any, str]]) -> str:
    """Returns the outcome of a request that is checked every millisecond."""

    async def run() -> str:
        fuzzer = Fuzzer("http://127.0.0.1:1", seed=0)
        return await fuzzer.finished(work(fuzzer), 0.001)

    return asyncio.run(run())


async def working(fuzzer: Fuzzer, steps: int) -> str:
    """A request during which the engine makes one step per iteration of the event loop."""
    for _ in range(steps):
        fuzzer.steps += 1
        await asyncio.sleep(0)
    return "slow"


async def hanging(_: Fuzzer) -> str:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_request_may_take_as_long_as_the_engine_works_on_it() -> None:
    assert finished(lambda fuzzer: working(fuzzer, MAX_STEPS)) == "slow"


def test_a_request_without_steps_of_the_engine_hangs() -> None:
    with pytest.raises(Fault, match="no step of the engine"):
        finished(hanging)


def test_a_request_that_others_starve_is_a_hang() -> None:
    with pytest.raises(Fault, match=f"more than {MAX_STEPS} steps"):
        finished(lambda fuzzer: working(fuzzer, 10**9))
