"""The next step's forward, launched before the host looks at what this step brought: where every block of a batch goes
on and nobody comes, it is the last one again but for its tokens, and the device need not wait for all that is written,
scheduled and planned meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from runtime.engine.entrance import Entrance
from runtime.engine.scheduler import Scheduler
from runtime.state.request import Status
from runtime.state.turn import Turn


@dataclass
class Begun:
    """A step that has."""

    turns: list[Turn]
    at: float  # time.perf_counter


class Ahead:
    """Attributes:
    heard: whether somebody waits to be let in or to leave, who would do so a step later otherwise.
    """

    def __init__(self, entrance: Entrance, scheduler: Scheduler) -> None:
        self.heard: Callable[[], bool] = bool  # nobody
        self._entrance = entrance
        self._scheduler = scheduler
        self._begun: Begun | None = None

    def after(self, turns: list[Turn]) -> Callable[[], bool]:
        """Says whether the step after the turns' is theirs again, if all their blocks go on. Then `take` gives it."""

        def goes_on() -> bool:
            scheduler = self._scheduler
            alone = len(turns) == len(scheduler.running) and not scheduler.waiting and not self._entrance.waiting
            if not alone or not all(turn.steady for turn in turns) or self.heard():
                return False
            self._begun = Begun(turns, time.perf_counter())
            return True

        return goes_on

    def take(self) -> Begun | None:
        """What the next step is, if it has begun and not all of its requests have left since."""
        begun, self._begun = self._begun, None
        if begun is None or all(turn.request.status is Status.FINISHED for turn in begun.turns):
            return None
        return begun
