"""Distributes the outputs of an engine to several calls of one thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from runtime.engine.engine import Engine
from runtime.request.engine_messages import EngineOutput, RequestSpec

OutputQueue = deque[EngineOutput]


class OutputCollector:
    """Gives each call the outputs of its own requests, whichever call runs the step.

    On devices with overlap, outputs are dispatched while the next step runs.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._queues: dict[str, OutputQueue] = {}  # by request id
        self._overlaps = engine.set_overlap_callback(self._dispatch)

    def submit(self, specs: Iterable[RequestSpec]) -> OutputQueue:
        """Adds requests to the engine. Returns the queue of their outputs."""
        queue: OutputQueue = deque()
        for spec in specs:
            self.engine.add(spec)
            self._queues[spec.id] = queue
        return queue

    def get(self, queue: OutputQueue) -> EngineOutput:
        """Returns the next output of a queue; runs steps until there is one.

        Raises:
            RuntimeError: the engine was closed.
        """
        while not queue:
            has_work = self.engine.has_work()
            if has_work:
                self.engine.execute_step()
            if not self._overlaps or not self.engine.has_work():
                self._dispatch()
            if not has_work and not queue:
                raise RuntimeError("the LLM was closed while a request was running")
        return queue.popleft()

    def cancel(self, request_id: str) -> None:
        """Discards the outputs of a request and aborts it if it is not finished."""
        self._queues.pop(request_id, None)
        self.engine.abort(request_id)

    def _dispatch(self) -> None:
        for output in self.engine.take_outputs():
            if output.id in self._queues:
                self._queues[output.id].append(output)
