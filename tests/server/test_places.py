"""Places of frontend processes, seen by their head: what ends, hangs or cannot start there."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.server.engine_client.client import OutputQueue, fail_queues
from runtime.server.engine_client.ipc_protocol import Loading
from runtime.server.engine_client.local_client import LocalEngineClient
from runtime.server.engine_client.supervisor import MAX_DELAY_SECONDS, RESET_SECONDS, BackOff
from runtime.server.frontends import crew as crews
from runtime.server.frontends import place as places
from runtime.server.frontends.board import Board
from runtime.server.frontends.crew import Crew
from runtime.server.frontends.place import Place
from runtime.server.frontends.reports import Reports
from runtime.server.frontends.words import Ask, Finish, GaveUp, Observations, Observe, Stop, ToHead
from runtime.server.metrics import Metrics, RequestMetrics
from tests.wait import TIMEOUT, wait_until_async

HANGS = (sys.executable, "-c", "import time; time.sleep(3600)")  # and says nothing
CONFIG = ServerConfig(frontend_processes=2)


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "COMMAND", HANGS)


def empty_place(tmp_path: Path) -> Place:
    return Place(0, Board(tmp_path / "board", 2), lambda place, message: None)


@contextlib.asynccontextmanager
async def crew_of(tmp_path: Path, failures: list[str]) -> AsyncIterator[Crew]:
    """Over engines that load for ever; it ends in the end."""
    table = LocalEngineClient(CONFIG, RequestMetrics(), Metrics("m", Reports()))
    table.supervisor = cast(Any, SimpleNamespace(replicas=[SimpleNamespace(loading=Loading("start", 0, 0))], ready=[]))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        crew = Crew(CONFIG, table, Reports(), listener, tmp_path / "board", failures.append)
        await crew.start()
        try:
            yield crew
        finally:
            await crew.stop()


@pytest.mark.parametrize("word", [Finish(), Stop()])
@pytest.mark.parametrize("moment", ["before", "spawning", "starting"])
@pytest.mark.usefixtures("hanging")
def test_who_has_not_begun_when_the_server_ends_goes_at_once(tmp_path: Path, word: Any, moment: str) -> None:
    async def start_and_end() -> str:
        place = empty_place(tmp_path)
        if moment == "before":
            place.end(word)
        running = asyncio.create_task(place.run(CONFIG, str(tmp_path / "board")))
        if moment == "spawning":
            await asyncio.sleep(0)
            assert place.pid is None
            place.end(word)
        async with asyncio.timeout(TIMEOUT):
            if moment == "starting":
                await wait_until_async(lambda: place.behind)
            place.end(word)
            return await running

    assert asyncio.run(start_and_end()) == "the process was killed by signal 9"


@pytest.mark.usefixtures("hanging")
def test_a_crew_that_is_still_starting_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "LAST_SECONDS", 600.0)  # what it would take otherwise
    failures: list[str] = []

    async def start_and_end() -> None:
        async with asyncio.timeout(TIMEOUT), crew_of(tmp_path, failures) as crew:
            await asyncio.sleep(0)
            await crew.finish()
            assert not crew.pids()

    asyncio.run(start_and_end())
    assert not failures


@pytest.mark.usefixtures("hanging")
def test_one_that_hangs_before_it_takes_connections_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(places, "START_SECONDS", 0.2)
    failures: list[str] = []

    async def start() -> None:
        async with crew_of(tmp_path, failures):
            await wait_until_async(lambda: len(failures) == CONFIG.frontend_processes)

    asyncio.run(start())
    assert sorted(failures) == [f"frontend-{i}: the process was killed by signal 9" for i in range(2)]


def test_who_does_not_answer_gets_no_connections_that_others_take(tmp_path: Path) -> None:
    async def look() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            table = LocalEngineClient(CONFIG, RequestMetrics(), Metrics("m", Reports()))
            crew = Crew(CONFIG, table, Reports(), listener, tmp_path / "board", lambda sentence: None)
            takers, (first, second) = crew.dealer.takers, crew.places
            assert not takers()
            first.begins()
            assert takers() == [first]
            second.begins()
            assert takers() == [first, second]
            second.able = True
            assert takers() == [second]
            first.able = True
            first.behind = 0.001  # for as long as this machine runs
            assert first.late
            assert takers() == [second]
            second.behind = 0.001
            assert takers() == [first, second]  # better than nobody
            first.hears(first.told)
            assert takers() == [first]

    asyncio.run(look())


def test_a_report_that_is_on_its_way_is_not_taken_for_one_of_now(tmp_path: Path) -> None:
    async def ask() -> None:
        place, said = empty_place(tmp_path), list[Any]()
        place.say = said.append  # type: ignore[method-assign]
        place.begins()
        first = place.observe()
        asked = [asyncio.create_task(place.report(3600)) for _ in range(3)]
        await asyncio.sleep(0)
        assert said == [Observe()]
        first.set_result(None)
        while len(said) < 2:
            await asyncio.sleep(0)
        assert not any(task.done() for task in asked)
        assert place.observed is not None
        place.observed.set_result(None)
        await asyncio.gather(*asked)
        assert said == [Observe(), Observe()]  # the three of them share one

    asyncio.run(ask())


def test_one_that_is_late_is_not_waited_for(tmp_path: Path) -> None:
    async def ask() -> None:
        place = empty_place(tmp_path)
        place.begins()
        place.behind = 0.001
        async with asyncio.timeout(TIMEOUT):
            await place.report(600)

    asyncio.run(ask())


@pytest.mark.usefixtures("hanging")
def test_reports_come_with_every_ping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that of one that is killed no more than the last seconds' is missing from totals."""
    monkeypatch.setattr(crews, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(crews, "PING_SECONDS", 0.01)
    monkeypatch.setattr(places, "SILENCE_SECONDS", 3600.0)

    async def look() -> None:
        async with crew_of(tmp_path, []) as crew:
            place, said = crew.places[0], list[Any]()
            place.say = said.append  # type: ignore[method-assign]
            place.begins()
            await wait_until_async(lambda: Observe() in said)
            place.heard(place, Observations([("unmask_requests", "counter", "", [("unmask_requests_total", {}, 3.0)])]))
            assert crew.reports.current[0].metrics[0][3][0][2] == 3.0
            place.up = False  # it is none that could be told to end

    asyncio.run(look())


def test_slow_starts_are_borne_longer_than_silence(tmp_path: Path) -> None:
    place = empty_place(tmp_path)
    assert places.SILENCE_SECONDS < places.START_SECONDS
    since = places.time.monotonic() - (places.SILENCE_SECONDS + places.START_SECONDS) / 2
    place.behind = since
    assert not place.hangs
    place.begins()
    assert not place.late  # what it took to start is forgotten
    place.behind = since
    assert place.hangs


def test_one_that_cannot_be_started_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "COMMAND", (str(tmp_path / "no such program"),))
    place = empty_place(tmp_path)

    async def start() -> None:
        before = set(os.listdir("/proc/self/fd"))
        with pytest.raises(FileNotFoundError) as info:
            await place.run(CONFIG, str(tmp_path / "board"))
        assert set(os.listdir("/proc/self/fd")) == before
        assert info.value.filename == str(tmp_path / "no such program")

    asyncio.run(start())


def test_one_that_cannot_begin_says_why(tmp_path: Path) -> None:
    said: list[ToHead] = []

    async def start() -> str:
        place = Place(1, Board(tmp_path / "board", 2), lambda place, message: said.append(message))
        running = asyncio.create_task(place.run(CONFIG, str(tmp_path / "nowhere" / "board")))
        await wait_until_async(lambda: said or running.done())
        place.end(Stop())
        return await running

    assert asyncio.run(start()) == "the process was killed by signal 9"
    (last,) = said
    assert isinstance(last, GaveUp)
    assert "frontend-1 could not begin: FileNotFoundError" in last.sentence


@pytest.mark.usefixtures("hanging")
def test_a_fault_of_the_heads_is_answered(tmp_path: Path) -> None:
    """Who asked would wait for ever."""

    async def ask() -> None:
        async with asyncio.timeout(TIMEOUT), crew_of(tmp_path, []) as crew:
            place, said = crew.places[0], list[Any]()
            place.say = said.append  # type: ignore[method-assign]
            place.heard(place, Ask(7, "load_adapter", ["name", "demo://roman", "route"]))  # without any supervisor
            while not said:
                await asyncio.sleep(0)
            (answer,) = said
            assert (answer.number, answer.refusal.status) == (7, 500)
            assert "load_adapter" in answer.refusal.message

    asyncio.run(ask())


def test_back_off_doubles_up_to_its_most_and_begins_anew_after_one_that_served() -> None:
    back_off = BackOff()
    seconds = [back_off.after(1.0) for _ in range(9)]
    assert seconds[:4] == [0.5, 1.0, 2.0, 4.0]
    assert seconds[-1] == MAX_DELAY_SECONDS
    assert [back_off.after(RESET_SECONDS + 1), back_off.after(0.0)] == [0.5, 1.0]


def test_an_end_is_told_to_each_inbox_once() -> None:
    first, second, error = OutputQueue(), OutputQueue(), RequestError("no", status=503)
    assert fail_queues([first, second, first], error) == 2
    assert [list(inbox.items) for inbox in (first, second)] == [[error], [error]]
