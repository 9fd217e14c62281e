"""The frontend processes of a server, as its head has them: started, told, listened to, started again, drained.

To the server it is what ``Speaking`` is where one process does everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import RequestSpec
from runtime.server.engine_client.ipc_protocol import Abort, encode
from runtime.server.engine_client.local_client import LocalEngineClient
from runtime.server.engine_client.supervisor import BackOff
from runtime.server.frontends.board import Board, Owned
from runtime.server.frontends.dealer import Dealer
from runtime.server.frontends.place import Place, Post
from runtime.server.frontends.reports import Reports
from runtime.server.frontends.words import (
    Able,
    Answer,
    Ask,
    Facts,
    Failed,
    Finish,
    GaveUp,
    Goodbye,
    Heard,
    Observations,
    Refusal,
    Stop,
    Submit,
    ToHead,
    Up,
)

log = logging.getLogger("unmask.frontends")

LOOK_SECONDS = 0.2  # how old what the processes know of a load's progress may grow
PING_SECONDS = 2.0  # and how often each has to say that it heard
REPORT_SECONDS = 0.5  # that a process has for what it observed
LAST_SECONDS = 5.0  # beyond --drain-timeout, until processes are killed


class Crew:
    """All of them."""

    def __init__(
        self, config: ServerConfig, table: LocalEngineClient, reports: Reports, listener: socket.socket, board: Path,
        give_up: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`board`: the file to make. `give_up` is told why the server cannot start."""
        self.config, self.table, self.reports = config, table, reports
        self.path, self.board = board, Board(board, config.frontend_processes)
        self.give_up = give_up
        self.places = [Place(i, self.board, self._hear) for i in range(config.frontend_processes)]
        self.dealer = Dealer(listener, self._takers)
        self.draining = False
        self.ending = asyncio.Event()
        self.tasks: set[asyncio.Task[Any]] = set()
        self._told = b""  # the facts, as they were told last
        self._ever_up = self._complete = False
        table.live_by_key = Owned(self.board)
        table.on_change = table.adapters.on_change = self._tell

    # -- life, as the server sees it

    async def start(self) -> None:
        self.keeping = [asyncio.create_task(self._keep(place)) for place in self.places]
        self._task(self._look())

    @property
    def in_flight(self) -> int:
        """Engine requests that have not ended."""
        return self.table.live

    def pids(self) -> dict[str, int]:
        return {place.name: pid for place in self.places if (pid := place.pid) is not None}

    def say_goodbye(self) -> None:
        self.draining = True
        for place in self.places:
            place.say(Goodbye())

    async def finish(self) -> None:
        """Accept nobody any more, and return once every process has given its answers and ended."""
        await self.dealer.close()
        self.ending.set()
        for place in self.places:
            place.end(Finish())
        await self._ended(self.config.drain_timeout + LAST_SECONDS)

    async def stop(self) -> None:
        self.ending.set()
        for place in self.places:
            place.end(Stop())
        await self._ended(LAST_SECONDS)
        for task in (*self.tasks, *self.keeping):
            task.cancel()

    def close(self) -> None:
        """Nothing is left."""

    def kill(self) -> None:
        for place in self.places:
            place.kill()

    async def _ended(self, seconds: float) -> None:
        """Every process has: by itself, or by force after so long."""
        _, late = await asyncio.wait(self.keeping, timeout=seconds)
        if late:
            log.warning("%d frontend processes did not end in time and were killed", len(late))
            self.kill()
            await asyncio.wait(late)

    async def _keep(self, place: Place) -> None:
        """Run a process in this place until the server ends."""
        back_off = BackOff()
        while not self.ending.is_set():
            try:
                how = await place.run(self.config, str(self.path))
            except OSError as error:  # no descriptors, processes or memory are left
                how = f"it could not be started: {error}"
            served = time.monotonic() - place.since if place.since else 0.0
            place.since = 0.0
            self._bury(place)
            if self.ending.is_set():
                return
            if not self._ever_up:
                self.give_up(f"{place.name}: {how}")
                return
            seconds = back_off.after(served)
            log.error("%s ended: %s; another one starts in %.1f s", place.name, how, seconds)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ending.wait(), seconds)

    def _bury(self, place: Place) -> None:
        """Nobody waits any more for what a process asked for."""
        self.reports.retire(place.index)
        self.table.abort(list(place.live))
        place.live.clear()

    def _task(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _look(self) -> None:
        """Tell what has changed without a word, and find those that hang."""
        pinged = 0.0
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            now = time.monotonic()
            ping = now - pinged > PING_SECONDS
            self._tell(always=ping)
            if ping:
                pinged = now
                for place in self.places:
                    if place.up:
                        place.observe()  # as no more than the last seconds' is to go with one that is killed
            for place in self.places:
                if place.hangs:
                    log.error("%s said nothing for %.0f s and is killed", place.name, now - place.behind)
                    place.behind = 0.0
                    place.kill()

    def _takers(self) -> list[Place]:
        """Those that take connections: who can serve requests too, and answers us soon, where there is any."""
        up = [place for place in self.places if place.up]
        able = [place for place in up if place.able] or up
        return [place for place in able if not place.late] or able

    # -- what the processes know

    def _facts(self) -> Facts:
        table = self.table
        adapters = table.adapters
        return Facts(
            table.info, table.ready, table.progress(), dict(adapters.entries), adapters.settled, self._complete
        )

    def _tell(self, always: bool = False) -> None:
        facts = self._facts()
        if always or encode(facts) != self._told:
            self._told = encode(facts)
            for place in self.places:
                if place.up:
                    place.tell(facts)

    async def _everybody_knows(self) -> None:
        """Return once each process knows how it is now: who is answered by one may ask another one next."""
        self._tell(always=True)
        await asyncio.gather(*(place.knows() for place in self.places))

    # -- what they say

    def _hear(self, place: Place, message: ToHead) -> None:
        match message:
            case Submit(jobs):
                for add in jobs:
                    self._submit(place, list(add.requests()))
            case Abort(ids):
                place.live.difference_update(ids)
                self.table.abort(ids)
            case Heard(number):
                place.hears(number)
            case Ask():
                self._task(self._answer(place, message))
            case Observations():
                self.reports.take(place.index, message)
                if place.observed is not None and not place.observed.done():
                    place.observed.set_result(None)
            case Up():
                place.begins()
                self._ever_up = True
                place.tell(self._facts())
                if self.draining:
                    place.say(Goodbye())
                self.dealer.deal()
            case Able():
                place.able = True
                self._complete = self._complete or all(other.able for other in self.places)
                self._tell()
            case GaveUp(sentence):
                place.fatal = sentence
                if self._complete:  # what was in order then: it goes, the others serve on, and another one tries again
                    place.kill()
                elif not self.ending.is_set():
                    self.give_up(sentence)

    def _submit(self, place: Place, specs: list[RequestSpec]) -> None:
        """The requests of one HTTP request. What has become impossible since its process looked is refused."""
        ids = [spec.id for spec in specs]
        adapter, owner = specs[0].adapter, specs[0].tenant
        self.board.see(place.index, owner, len(ids))
        try:
            if adapter and not self.table.adapters.is_available(adapter):
                raise RequestError(
                    f"model: {adapter!r} is not served here any more", param="model", status=404, code="model_not_found"
                )
            self.table.submit_to(specs, Post(place, ids))
        except RequestError as error:
            self._refuse(place, ids, owner, len(ids), error)
        except Exception as error:  # no fault of the others' whose process this comes from
            log.exception("a request could not be entered")
            entered = [each for each in ids if each in self.table.requests]
            self.table.abort(entered)  # which tells the board of these
            sentence = f"the request could not be entered: {type(error).__name__}; the server's log says more"
            self._refuse(place, ids, owner, len(ids) - len(entered), RequestError(sentence, status=500))
        else:
            place.live.update(ids)

    def _refuse(self, place: Place, ids: list[str], owner: str, count: int, error: RequestError) -> None:
        """`count`: of what the board still takes for live."""
        self.board.end(owner, count)
        place.say(Failed(ids, Refusal.of(error)))

    async def _answer(self, place: Place, ask: Ask) -> None:
        try:
            place.say(Answer(ask.number, await self._do(ask)))
        except RequestError as error:
            place.say(Answer(ask.number, refusal=Refusal.of(error)))
        except Exception as error:  # whose client would wait for ever
            log.exception("%s failed", ask.what)
            failed = RequestError(f"{ask.what} failed: {type(error).__name__}; the server's log says more", status=500)
            place.say(Answer(ask.number, refusal=Refusal.of(failed)))

    async def _do(self, ask: Ask) -> Any:
        table = self.table
        match ask.what, ask.words:
            case "metrics", _:
                if table.metrics.due():
                    await asyncio.gather(*(place.report(REPORT_SECONDS) for place in self.places))
                return await table.metrics_text()
            case "load_adapter", [name, uri, by]:
                await table.adapters.load(name, uri, by)  # type: ignore[arg-type]
                await self._everybody_knows()
            case "unload_adapter", [name]:
                await table.adapters.unload(name)
                await self._everybody_knows()
            case "start_profile", _:
                return await table.profiler.start()
            case "stop_profile", _:
                return await table.profiler.stop()
