"""One frontend process's place at the head: the process in it, what it was handed, and what is heard from it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import EngineOutput
from runtime.server.engine_client import supervisor
from runtime.server.engine_client.ipc_protocol import Outputs
from runtime.server.frontends.board import Board
from runtime.server.frontends.channel import Channel
from runtime.server.frontends.words import (
    Begin,
    Facts,
    Failed,
    Finish,
    Known,
    Observe,
    Refusal,
    Stop,
    ToHead,
    to_head,
)

COMMAND = (sys.executable, "-m", "runtime.server.frontends.process")
LATE_SECONDS = 1.0  # one that has not said for so long that it heard gets no connections that others take
SILENCE_SECONDS = 60.0  # one that has not for so long hangs
START_SECONDS = 300.0  # and one that takes no connections so long after its start, with a slow disk and all cores busy


class Place:
    """The process in it changes when one ends. `heard` is told what it says."""

    def __init__(self, index: int, board: Board, heard: Callable[[Place, ToHead], None]) -> None:
        self.index = index
        self.board = board
        self.heard = heard
        self.process: asyncio.subprocess.Process | None = None
        self.up = self.able = False  # it takes connections; it can serve requests
        self.since = 0.0  # when it began to
        self.handed = 0  # connections, to this process
        self.live: set[str] = set()  # ids of its requests
        self.told = self.heard_of = 0  # numbers of the last facts that it was told, and that it says it has heard
        self.behind = 0.0  # since when a word of it is due: that it is up, that it has heard; 0: none is
        self.observed: asyncio.Future[None] | None = None  # its next report
        self.fatal: str | None = None  # why it cannot serve, in its own words
        self.ending = False  # the server is
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []  # who waits until it has heard so many
        self._news: list[EngineOutput] = []
        self._channel: Channel[ToHead] | None = None
        self._connections: socket.socket | None = None

    @property
    def name(self) -> str:
        return f"frontend-{self.index}"

    @property
    def pid(self) -> int | None:
        return None if self.process is None or self.process.returncode is not None else self.process.pid

    async def run(self, config: ServerConfig, board: str) -> str:
        """Start a process and wait for its end; how it ended."""
        self.handed, self.fatal = 0, None
        self.told = self.heard_of = 0
        loop = asyncio.get_running_loop()
        words, theirs = socket.socketpair()
        connections, their_connections = socket.socketpair()
        connections.setblocking(False)
        with words, theirs, their_connections, connections:
            descriptors = theirs.fileno(), their_connections.fileno()
            self.process = await asyncio.create_subprocess_exec(
                *COMMAND,
                *map(str, descriptors),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C is for the head, which has all of them drain
            )
            self.behind = time.monotonic()
            if self.ending:  # which it was not told: it did not exist yet
                self.kill()
            theirs.close()
            their_connections.close()
            self._connections = connections
            channel = self._channel = Channel(to_head, lambda message: self.heard(self, message), self._lost)
            await loop.create_unix_connection(lambda: channel, sock=words)
            self.say(Begin(config, self.index, board))
            code = await self.process.wait()
            channel.close()
        self._lost()
        self.behind = 0.0
        self.board.renew(self.index)
        return self.fatal or f"the process {supervisor.describe_exit(code)}"

    def begins(self) -> None:
        """It takes connections."""
        self.up, self.since, self.behind = True, time.monotonic(), 0.0

    def _lost(self) -> None:
        """It is not heard any more: its end is due."""
        self.up = self.able = False
        self.hears(self.told)
        self.behind = time.monotonic()
        if self.observed is not None and not self.observed.done():
            self.observed.set_result(None)

    def end(self, word: Finish | Stop) -> None:
        """The server ends. One that takes no connections yet has nothing to bring to an end, and may not listen for
        long; one that does not exist yet goes as soon as it does."""
        self.ending = True
        if self.up:
            self.say(word)
        else:
            self.kill()

    @property
    def late(self) -> bool:
        return self._overdue(LATE_SECONDS)

    @property
    def hangs(self) -> bool:
        return self._overdue(SILENCE_SECONDS if self.up else START_SECONDS)

    def _overdue(self, seconds: float) -> bool:
        return self.behind > 0 and time.monotonic() - self.behind > seconds

    def kill(self) -> None:
        if self.pid is not None:
            os.kill(self.pid, 9)

    # -- words

    def say(self, message: Any) -> None:
        if self._channel is not None:
            self._channel.say(message)

    def tell(self, facts: Facts) -> None:
        """How it is now."""
        self.told += 1
        self.behind = self.behind or time.monotonic()
        self.say(Known(self.told, facts))

    def hears(self, number: int) -> None:
        """It says that it has heard so many."""
        self.heard_of = number
        self.behind = 0.0 if number == self.told else time.monotonic()
        waiting, self._waiting = self._waiting, []
        for least, heard in waiting:
            if least > number:
                self._waiting.append((least, heard))
            elif not heard.done():
                heard.set_result(None)

    async def knows(self) -> None:
        """Return once it has heard all that it was told so far, or has ended."""
        if self.up and self.heard_of < self.told:
            heard: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((self.told, heard))
            await heard

    async def report(self, seconds: float) -> None:
        """Have it report what it observed; one that takes longer, or is late as it is, keeps its last report."""
        if self.up and not self.late:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    if self.observed is not None:  # if still on its way, it may not know what has just been
                        await asyncio.shield(self.observed)
                    await asyncio.shield(self.observe())

    def observe(self) -> asyncio.Future[None]:
        """Ask for a report; done once it has come, or never will."""
        if self.observed is None or self.observed.done():
            self.observed = asyncio.get_running_loop().create_future()
            self.say(Observe())
        return self.observed

    def post(self, output: EngineOutput) -> None:
        """News of one of its requests: those of one turn of the loop go as one message."""
        if not self._news:
            asyncio.get_running_loop().call_soon(self._send_news)
        self._news.append(output)

    def _send_news(self) -> None:
        news, self._news = self._news, []
        self.say(Outputs(news))

    # -- connections

    def open(self) -> int:
        return self.handed - self.board.closed(self.index)

    def take(self, connection: socket.socket) -> bool:
        if self._connections is None:
            return False
        try:
            socket.send_fds(self._connections, [b"\0"], [connection.fileno()])
        except OSError:  # it has as many before it as the kernel lets wait, or has just ended
            return False
        self.handed += 1
        return True


class Post:
    """Where news of one HTTP request of a process goes."""

    def __init__(self, place: Place, ids: list[str]) -> None:
        self.place = place
        self.ids = ids

    def put(self, item: tuple[int, EngineOutput] | RequestError) -> None:
        if isinstance(item, RequestError):
            self.place.live.difference_update(self.ids)
            self.place.say(Failed(self.ids, Refusal.of(item)))
            return
        _, output = item
        if output.finish_reason is not None:
            self.place.live.discard(output.id)
        self.place.post(output)
