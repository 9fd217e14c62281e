"""Async scheduling: the next forward is launched before the results of the current step are processed on the host.

This is possible if all blocks of a batch continue and no request joins or leaves. The next step then has the same
layout, and only its token ids are new. Output processing and scheduling overlap with its forward.
"""

from __future__ import annotations

from collections.abc import Callable

from runtime.engine.request import ScheduledRequest, Status
from runtime.engine.request_queue import GrammarQueue
from runtime.engine.scheduler import Scheduler


class AsyncScheduler:
    """Decides whether the next step may be launched early.

    Attributes:
        has_pending_commands: whether requests wait to be added or aborted. An early launch would delay them by a step.
    """

    def __init__(self, grammar_queue: GrammarQueue, scheduler: Scheduler) -> None:
        self.has_pending_commands: Callable[[], bool] = bool
        self._grammar_queue = grammar_queue
        self._scheduler = scheduler
        self._launched: list[ScheduledRequest] | None = None

    def make_launch_hook(self, batch: list[ScheduledRequest]) -> Callable[[], bool]:
        """Returns the `StepPlan.try_launch_next` of a step."""
        same_layout = all(
            scheduled.stable_layout and scheduled.last - scheduled.first == scheduled.blocks[0].size
            for scheduled in batch
        )

        def try_launch_next() -> bool:
            scheduler = self._scheduler
            if (
                not same_layout
                or len(batch) != len(scheduler.running)
                or scheduler.waiting
                or self._grammar_queue.waiting
            ):
                return False
            if any(scheduled.request.status is Status.FINISHED for scheduled in batch) or self.has_pending_commands():
                return False
            self._launched = batch
            return True

        return try_launch_next

    def take_launched(self) -> list[ScheduledRequest] | None:
        """Returns the requests of a step that was launched early; None if there is none or all of them have left."""
        batch, self._launched = self._launched, None
        if batch is None or all(scheduled.request.status is Status.FINISHED for scheduled in batch):
            return None
        return batch
