"""How far loading the model is, and what was loaded: asked of pods by ``/startup``."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import aiohttp

from unmask_operator.objects import Key, Obj
from unmask_operator.render.model_revision import COMMIT, key_of
from unmask_operator.render.names import PORT, pod_url
from unmask_operator.state.observed import Load
from unmask_operator.status.pods import is_ready

TIMEOUT_SECONDS = 2.0
AT_ONCE = 32  # pods asked at the same time
STEP_PERCENT = 5  # smaller advances are no news: each one is a write of the status
LARGEST_ANSWER = 64 * 1024  # bytes
MOST_REVISIONS = 10_000  # remembered; a pod that is forgotten is asked again
LONGEST_PHASE = 64  # characters that the status has room for

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    """A pod to ask: its uid, its IP address and the resource it belongs to."""

    uid: str
    address: str
    key: Key


class Progress:
    """What pods last said, by their uid.

    Attributes:
        loads: of pods that are still loading.
        revisions: the hub's commit that each has loaded, "" for one that names none.
    """

    def __init__(
        self, targets: Callable[[], Iterable[Target]], changed: Callable[[Key], None], port: int = PORT
    ) -> None:
        self._targets = targets
        self._changed = changed
        self._port = port
        self.loads: Mapping[str, Load] = {}
        self.revisions: dict[str, str] = {}

    def wants_revision(self, pod: Obj) -> bool:
        """Whether a pod whose model's commit is to be recorded has yet to say it."""
        return runs(pod) and pod["metadata"]["uid"] not in self.revisions and key_of(pod) is not None

    async def poll(self, session: aiohttp.ClientSession) -> None:
        """Ask every loading pod once; a pod that does not answer keeps what it last said. No API request is made."""
        limit = asyncio.Semaphore(AT_ONCE)

        async def ask(target: Target) -> tuple[Target, Load | str | None]:
            async with limit:
                return target, await startup(session, target.address, self._port)

        before, loads, news = self.loads, {}, set()
        for target, said in await asyncio.gather(*(ask(t) for t in self._targets())):
            old = before.get(target.uid)
            if isinstance(said, str):
                if self.revisions.get(target.uid) != said:
                    self.revisions[target.uid] = said
                    news.add(target.key)
            elif said is not None and (old is None or is_news(old, said)):
                news.add(target.key)
                old = said
            if old is not None:
                loads[target.uid] = old
        self.loads = loads
        while len(self.revisions) > MOST_REVISIONS:
            del self.revisions[next(iter(self.revisions))]
        for key in sorted(news):
            self._changed(key)


def is_news(old: Load, new: Load) -> bool:
    return old.phase != new.phase or abs(new.percent - old.percent) >= STEP_PERCENT


async def startup(session: aiohttp.ClientSession, address: str, port: int) -> Load | str | None:
    """One pod's phase and percent, or the commit it has loaded ("" for none); None where it does not (yet) tell."""
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_SECONDS)
    try:
        async with session.get(pod_url(address, "/startup", port), timeout=timeout, allow_redirects=False) as answer:
            said = json.loads(await answer.content.read(LARGEST_ANSWER))
            if said.get("status") == "started":
                revision = str(said.get("model_revision"))
                return revision if COMMIT.fullmatch(revision) else ""
            return Load(str(said["phase"])[:LONGEST_PHASE], min(100.0, max(0.0, float(said["percent"]))))
    except Exception:  # whatever a pod says, and anybody may label one, it must not end the operator
        return None


def is_loading(pod: Obj) -> bool:
    """A pod whose main container runs, and that has an address, but is not Ready nor on its way out."""
    return runs(pod) and not is_ready(pod)


def runs(pod: Obj) -> bool:
    status = pod.get("status") or {}
    return (
        status.get("phase") == "Running" and bool(status.get("podIP")) and not pod["metadata"].get("deletionTimestamp")
    )
