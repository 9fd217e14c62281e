"""Tests of an event stream: keep-alive comments, clients that disconnect or read nothing, generators never started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from runtime.server.serving import handler
from runtime.server.serving.handler import EventStream
from tests.simulated_time import run_simulated


class Job:
    """A job that records whether its context was left."""

    left = False

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.left = True


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError


def test_keep_alive_comments_are_sent_while_there_is_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handler, "KEEP_ALIVE_SECONDS", 5)
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def chunks() -> AsyncIterator[bytes]:
        yield b"data: 1\n\n"
        await asyncio.sleep(28)
        yield b"data: 2\n\n"

    job = Job()
    run_simulated(EventStream(job, chunks())({}, never, send))
    assert sent[0]["status"] == 200
    assert dict(sent[0]["headers"])[b"content-type"].startswith(b"text/event-stream")
    bodies = [m["body"] for m in sent[1:]]
    assert bodies[0] == b"data: 1\n\n"
    assert bodies[-2:] == [b"data: 2\n\n", b""]
    assert bodies.count(b": keep-alive\n\n") == 5
    assert sent[-1]["more_body"] is False
    assert job.left


@pytest.mark.parametrize("started", [True, False])
def test_a_client_that_disconnects_ends_the_job(started: bool) -> None:
    closed = []

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield b"data: 1\n\n"
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def send(message: Any) -> None:
        if not started:
            await asyncio.Event().wait()

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(5)
        return {"type": "http.disconnect"}

    job = Job()
    run_simulated(EventStream(job, chunks())({}, receive, send))
    assert job.left
    assert closed == [True] * started
