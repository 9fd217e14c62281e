"""An engine for several calls of one thread, each of which waits for its own requests' news."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from runtime.engine.engine import Engine
from runtime.request.engine_messages import EngineOutput, RequestSpec

Inbox = deque[EngineOutput]


class Inboxes:
    """Whichever call makes the engine step, each finds its news in its own inbox. News are sorted while the device is
    at the next step, where there is one."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._of: dict[str, Inbox] = {}  # by the request
        self._holds = engine.set_overlap_callback(self._sort)

    def open(self, specs: Iterable[RequestSpec]) -> Inbox:
        """Hand requests to the engine; their news come in this inbox."""
        inbox: Inbox = deque()
        for spec in specs:
            self.engine.add(spec)
            self._of[spec.id] = inbox
        return inbox

    def next(self, inbox: Inbox) -> EngineOutput:
        """The next news of an inbox, after as many steps as it takes. RuntimeError once the engine is closed."""
        while not inbox:
            busy = self.engine.has_work()
            if busy:
                self.engine.advance()
            if not self._holds or not self.engine.has_work():
                self._sort()
            if not busy and not inbox:
                raise RuntimeError("the LLM was closed while an answer was under way")
        return inbox.popleft()

    def drop(self, request_id: str) -> None:
        """Nobody waits for this request any more; it ends if it has not."""
        self._of.pop(request_id, None)
        self.engine.abort(request_id)

    def _sort(self) -> None:
        for output in self.engine.news():
            if output.id in self._of:
                self._of[output.id].append(output)
