"""Tests of the delays before a process is restarted, and of queues of requests that fail together."""

from __future__ import annotations

import asyncio
import time

import pytest

from runtime.errors import RequestError
from runtime.server.engine_client.client import OutputQueue, fail_queues
from runtime.server.engine_client.supervisor import MAX_DELAY_SECONDS, RESET_SECONDS, ProcessSlot


def test_back_off_doubles_up_to_its_limit_and_is_reset_by_a_process_that_served() -> None:
    slot = ProcessSlot("backend", 0)

    def delay(served: float) -> float:
        slot.serving_since = time.monotonic() - served if served else 0.0
        return slot.restart_delay()

    seconds = [delay(1.0) for _ in range(9)]
    assert seconds[:4] == [0.5, 1.0, 2.0, 4.0]
    assert seconds[-1] == MAX_DELAY_SECONDS
    assert [delay(RESET_SECONDS + 1), delay(0.0)] == [0.5, 1.0]


def test_starts_that_fail_after_a_long_service_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)

    async def fail(slot: ProcessSlot) -> str:
        raise OSError("no space is left")

    monkeypatch.setattr(asyncio, "sleep", sleep)
    slot = ProcessSlot("backend", 0)
    slot.serving_since = time.monotonic() - RESET_SECONDS - 1
    asyncio.run(slot.supervise(fail, lambda slot, reason: len(delays) < 4))
    assert delays == [0.5, 1.0, 2.0, 4.0]


def test_each_queue_receives_an_error_once() -> None:
    first, second, error = OutputQueue(), OutputQueue(), RequestError("no", status=503)
    assert fail_queues([first, second, first], error) == 2
    for queue in (first, second):
        assert queue.get_nowait() is error
        assert queue.empty()
