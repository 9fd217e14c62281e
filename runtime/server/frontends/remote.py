"""The engines as a frontend process has them: behind the head, which it tells and asks over a channel."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from runtime.config import ServerConfig
from runtime.errors import RequestError
from runtime.request.engine_messages import RequestSpec
from runtime.server.engine_client.adapter_registry import AdapterRegistry, Source
from runtime.server.engine_client.client import EngineClient, OutputQueue, fail_queues
from runtime.server.engine_client.ipc_protocol import Abort, Add, Outputs
from runtime.server.frontends.board import Board
from runtime.server.frontends.channel import Channel
from runtime.server.frontends.words import Answer, Ask, Failed, FromHead, Heard, Known, Submit
from runtime.server.metrics import RequestMetrics


class Head:
    """Whom this process asks. `channel` is set once it exists."""

    def __init__(self) -> None:
        self.channel: Channel[FromHead] | None = None
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}

    def say(self, message: Any) -> None:
        assert self.channel is not None
        self.channel.say(message)

    async def ask(self, what: Any, *words: str) -> Any:
        """What the head answers. Raises RequestError."""
        number = next(self._numbers)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        self.say(Ask(number, what, list(words)))
        try:
            return await asked
        finally:
            del self._asked[number]

    def answered(self, answer: Answer) -> None:
        asked = self._asked.get(answer.number)
        if asked is None or asked.done():
            return  # its client has gone
        if answer.refusal is not None:
            asked.set_exception(answer.refusal.error())
        else:
            asked.set_result(answer.value)


class RemoteAdapters(AdapterRegistry):
    def __init__(self, config: ServerConfig, head: Head) -> None:
        super().__init__(config.lora_config is None)
        self.head = head

    async def load(self, name: str, uri: str, by: Source) -> None:
        await self.head.ask("load_adapter", name, uri, by)

    async def unload(self, name: str) -> None:
        await self.head.ask("unload_adapter", name)


class RemoteProfiler:
    def __init__(self, head: Head) -> None:
        self.head = head

    async def start(self) -> list[int]:
        found: list[int] = await self.head.ask("start_profile")
        return found

    async def stop(self) -> list[str]:
        found: list[str] = await self.head.ask("stop_profile")
        return found


class Remote(EngineClient):
    """`index`: of this process."""

    def __init__(self, config: ServerConfig, observed: RequestMetrics, head: Head, board: Board, index: int) -> None:
        super().__init__(config, observed, RemoteAdapters(config, head), RemoteProfiler(head))
        self.head, self.board, self.index = head, board, index
        self.places: dict[
            str, tuple[OutputQueue, int]
        ] = {}  # of each live request: where its news goes, as which choice's
        self.due: list[Add] = []  # submitted in this turn of the loop
        self._ready: list[int] = []
        self._complete = False
        self._progress = ("start", 0, 0)

    @property
    def ready(self) -> list[int]:
        return self._ready

    @property
    def complete(self) -> bool:
        return self._complete

    @property
    def live(self) -> int:
        return self.board.live

    def live_of_key(self, owner: str) -> int:
        return self.board.held(owner)

    def progress(self) -> tuple[str, int, int]:
        return self._progress

    async def metrics_text(self) -> bytes:
        text: bytes = await self.head.ask("metrics")
        return text

    # -- requests

    def submit(self, specs: list[RequestSpec]) -> OutputQueue:
        inbox = OutputQueue()
        if not specs:
            return inbox
        self.check_capacity(len(specs), specs[0].tenant)
        for index, spec in enumerate(specs):
            self.places[spec.id] = inbox, index
        self.board.ask(self.index, specs[0].tenant, len(specs))
        if not self.due:
            asyncio.get_running_loop().call_soon(self._send_due)
        self.due.append(Add.of(specs))
        return inbox

    def _send_due(self) -> None:
        due, self.due = self.due, []
        if due:
            self.head.say(Submit(due))

    def abort(self, ids: list[str]) -> None:
        self._send_due()  # no request comes after the word that it is not wanted
        known = [id for id in ids if self.places.pop(id, None) is not None]
        if known:
            self.head.say(Abort(known))

    def fail_all(self, error: RequestError) -> int:
        inboxes = [inbox for inbox, _ in self.places.values()]
        self.abort(list(self.places))
        return fail_queues(inboxes, error)

    # -- what the head tells

    def hear(self, message: Known | Outputs | Failed | Answer) -> None:
        match message:
            case Outputs(outputs):
                places = self.places
                for output in outputs:
                    place = places.get(output.id)
                    if place is None:  # aborted a moment ago
                        continue
                    if output.finish_reason is not None:
                        del places[output.id]
                    place[0].put((place[1], output))
            case Failed(ids, refusal):
                found = [place for one in ids if (place := self.places.pop(one, None)) is not None]
                fail_queues((inbox for inbox, _ in found), refusal.error())
            case Known(number, facts):
                self.info, self._ready, self._progress = facts.info, facts.ready, facts.progress
                self.adapters.entries, self.adapters.settled = facts.adapters, facts.settled
                self._complete = facts.complete
                self.head.say(Heard(number))
            case Answer():
                self.head.answered(message)
