"""The next step's forward, launched before the host looks at what this step brought: where every block of a batch goes
on and nobody comes, it is the last one again but for its tokens, and the device need not wait for all that is written,
scheduled and planned meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from runtime.engine.grammar_queue import Entrance
from runtime.engine.request import Status
from runtime.engine.scheduled_request import ScheduledRequest
from runtime.engine.scheduler import Scheduler


class Ahead:
    """Attributes:
    heard: whether somebody waits to be let in or to leave, who would do so a step later otherwise.
    """

    def __init__(self, entrance: Entrance, scheduler: Scheduler) -> None:
        self.heard: Callable[[], bool] = bool  # nobody
        self._entrance = entrance
        self._scheduler = scheduler
        self._begun: list[ScheduledRequest] | None = None

    def after(self, batch: list[ScheduledRequest]) -> Callable[[], bool]:
        """`StepPlan.begin_next` of the turns' step."""
        again = all(
            scheduled.stable_layout and scheduled.last - scheduled.first == scheduled.blocks[0].size
            for scheduled in batch
        )

        def begin_next() -> bool:
            scheduler = self._scheduler
            if not again or len(batch) != len(scheduler.running) or scheduler.waiting or self._entrance.waiting:
                return False
            if any(scheduled.request.status is Status.FINISHED for scheduled in batch) or self.heard():
                return False
            self._begun = batch
            return True

        return begin_next

    def take(self) -> list[ScheduledRequest] | None:
        """The next step's turns, if it has begun and not all of its requests have left since."""
        batch, self._begun = self._begun, None
        if batch is None or all(scheduled.request.status is Status.FINISHED for scheduled in batch):
            return None
        return batch
