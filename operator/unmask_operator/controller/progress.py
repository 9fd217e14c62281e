"""How far loading the model is: asked of pods that run but are not Ready yet, by ``/startup``."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import aiohttp

from unmask_operator.objects import Key, Obj
from unmask_operator.render.names import PORT, pod_url
from unmask_operator.state.observed import Load
from unmask_operator.status.pods import is_ready

TIMEOUT_SECONDS = 2.0
AT_ONCE = 32  # pods asked at the same time
STEP_PERCENT = 5  # smaller advances are no news: each one is a write of the status
LARGEST_ANSWER = 64 * 1024  # bytes
LONGEST_PHASE = 64  # characters that the status has room for

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """A pod to ask: its uid, its IP address and the resource it belongs to."""

    uid: str
    address: str
    key: Key


class Progress:
    """What pods last said. `loads` is by pod uid and holds only pods that are still loading."""

    def __init__(
        self, targets: Callable[[], Iterable[Target]], changed: Callable[[Key], None], port: int = PORT
    ) -> None:
        self._targets = targets
        self._changed = changed
        self._port = port
        self.loads: Mapping[str, Load] = {}

    async def poll(self, session: aiohttp.ClientSession) -> None:
        """Ask every loading pod once; a pod that does not answer keeps what it last said. No API request is made."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def ask(target: Target) -> tuple[Target, Load | None]:
            async with limit:
                return target, await startup(session, target.address, self._port)

        before, loads, news = self.loads, {}, set()
        for target, load in await asyncio.gather(*(ask(t) for t in self._targets())):
            old = before.get(target.uid)
            if load is not None and (old is None or is_news(old, load)):
                news.add(target.key)
                old = load
            if old is not None:
                loads[target.uid] = old
        self.loads = loads
        for key in sorted(news):
            self._changed(key)


def is_news(old: Load, new: Load) -> bool:
    return old.phase != new.phase or abs(new.percent - old.percent) >= STEP_PERCENT


async def startup(session: aiohttp.ClientSession, address: str, port: int) -> Load | None:
    """One pod's phase and percent; None where it does not (yet) tell."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    try:
        async with session.get(pod_url(address, "/startup", port), timeout=timeout, allow_redirects=False) as answer:
            said = json.loads(await answer.content.read(LARGEST_ANSWER))
            return Load(str(said["phase"])[:LONGEST_PHASE], min(100.0, max(0.0, float(said["percent"]))))
    except Exception:  # whatever a pod says, and anybody may label one, it must not end the operator
        return None


def is_loading(pod: Obj) -> bool:
    """A pod whose main container runs, and that has an address, but is not Ready nor on its way out."""
    status = pod.get("status") or {}
    if status.get("phase") != "Running" or not status.get("podIP") or pod["metadata"].get("deletionTimestamp"):
        return False
    return not is_ready(pod)
