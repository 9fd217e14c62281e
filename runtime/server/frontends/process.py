"""A frontend process: ``python -m runtime.server.frontends.process WORDS CONNECTIONS``, started by the head.

The head holds the other ends of these two sockets; when it ends, so does this, at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import uvloop

from runtime.config import ServerConfig
from runtime.errors import ConfigError
from runtime.parent_death import exit_with_parent
from runtime.server import env, logs
from runtime.server.engine_client.ipc_protocol import Outputs
from runtime.server.env import raise_open_files_limit
from runtime.server.frontends import words
from runtime.server.frontends.board import Board
from runtime.server.frontends.channel import Channel
from runtime.server.frontends.remote import Head, Remote
from runtime.server.frontends.reports import snapshot
from runtime.server.frontends.words import (
    Able,
    Answer,
    Begin,
    Failed,
    Finish,
    FromHead,
    GaveUp,
    Goodbye,
    Known,
    Observe,
    Stop,
    Up,
)
from runtime.server.http_frontend import HttpFrontend
from runtime.server.http_protocol.malloc_trim import use_one_arena
from runtime.server.metrics import RequestMetrics

log = logging.getLogger("unmask.frontends")


class FrontendProcess:
    """`source` brings connections."""

    def __init__(self, source: socket.socket) -> None:
        self.source = source
        self.head = Head()
        self.ended = asyncio.Event()
        self.remote: Remote | None = None
        self.speaking: HttpFrontend | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def run(self, ours: socket.socket) -> int:
        """The process's exit code. `ours`: this end of the socket to the head."""
        channel = self.head.channel = Channel(words.from_head, self._hear, lambda: os._exit(1))
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=ours)
        await self.ended.wait()
        if self.speaking is not None:
            await self.speaking.stop()
            self.speaking.close()
        return 0

    def _hear(self, message: FromHead) -> None:
        match message:
            case Begin():
                self._task(self._begin(message))
            case Goodbye() if self.speaking is not None:
                self.speaking.say_goodbye()
            case Finish():
                self._task(self._finish())
            case Stop():
                self.ended.set()
            case Observe() if self.remote is not None:
                self.head.say(snapshot(self.remote.request_metrics))
            case Known() | Outputs() | Failed() | Answer() if self.remote is not None:
                self.remote.hear(message)

    def _task(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _begin(self, begin: Begin) -> None:
        try:
            await self._speak(begin, self._share(begin.config))
        except ConfigError as error:
            self._give_up(str(error))
        except Exception as error:  # the head would wait for long
            log.exception("this process could not begin")
            self._give_up(f"frontend-{begin.index} could not begin: {type(error).__name__}: {error}")

    async def _speak(self, begin: Begin, config: ServerConfig) -> None:
        logs.configure_logging(config.log_level, config.log_format, f"frontend-{begin.index}")
        board = Board(Path(begin.board), config.frontend_processes)
        observed = RequestMetrics()
        self.remote = Remote(config, observed, self.head, board, begin.index)
        self.speaking = HttpFrontend(config, self.remote, self.source, self._give_up, lambda: board.close(begin.index))
        await self.speaking.start()
        self.head.say(Up())
        await self.speaking.loaded.wait()
        self.head.say(Able())

    def _share(self, config: ServerConfig) -> ServerConfig:
        """What this process does of what all do together. Raises ConfigError."""
        wanted = config.max_connections
        each = None if wanted is None else -(-wanted // config.frontend_processes)
        return config.replace(max_connections=raise_open_files_limit(each, 0))

    def _give_up(self, sentence: str) -> None:
        self.head.say(GaveUp(sentence))

    async def _finish(self) -> None:
        if self.speaking is not None:
            await self.speaking.finish()
        self.ended.set()


def main(ours: int, source: int) -> int:
    """The process's exit code. Both are descriptors of sockets."""
    exit_with_parent()
    env.configure_process()
    use_one_arena()
    connections = socket.socket(fileno=source)
    connections.setblocking(False)
    process = FrontendProcess(connections)
    with contextlib.suppress(KeyboardInterrupt):
        return uvloop.run(process.run(socket.socket(fileno=ours)))
    return 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
