"""How far loading the model is, and what was loaded: asked of pods by ``/startup``."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import aiohttp

from unmask_operator.objects import Key, Obj
from unmask_operator.render.model_revision import COMMIT, key_of
from unmask_operator.render.names import PORT, pod_url
from unmask_operator.state.observed import Load
from unmask_operator.status.pods import is_live, is_ready

TIMEOUT_SECONDS = 2.0
AT_ONCE = 32  # pods asked at the same time
SILENT_SECONDS = 5.0  # until a pod that gave no answer is asked again; each pause is twice the one before
LONGEST_SECONDS = 60.0  # of those pauses: where a firewall drops what is sent, each question takes the whole timeout
STEP_PERCENT = 5  # smaller advances are no news: each one is a write of the status
LARGEST_ANSWER = 64 * 1024  # bytes
MOST_REVISIONS = 10_000  # remembered; a pod that is forgotten is asked again
LONGEST_PHASE = 64  # characters that the status has room for

log = logging.getLogger(__name__)


@dataclass
class Progress:
    """What pods last said, by their uid."""

    pods: Callable[[], Iterable[tuple[Key, Obj]]]  # all there are, each with its resource's key
    changed: Callable[[Key], None]  # told whose pods have news
    port: int = PORT
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        # Of pods that did not answer, each as Ready as it was then: when to ask again, and the pause until that.
        self._silent: dict[tuple[str, bool], tuple[float, float]] = {}
        self.loads: Mapping[str, Load] = {}  # of pods that are still loading
        self.revisions: dict[str, str] = {}  # the hub's commit that each has loaded, "" for one that names none

    def wants_revision(self, pod: Obj) -> bool:
        """Whether a pod whose model's commit is to be recorded has yet to say it."""
        return runs(pod) and pod["metadata"]["uid"] not in self.revisions and key_of(pod) is not None

    async def poll(self, session: aiohttp.ClientSession) -> None:
        """Ask once every pod that loads, or has yet to say what; one that does not answer keeps what it last said, and
        is asked seldom. No API request is made."""
        limit = asyncio.Semaphore(AT_ONCE)
        before, silent = self._silent, dict[tuple[str, bool], tuple[float, float]]()

        async def ask(pod: Obj) -> Load | str | None:
            mark = pod["metadata"]["uid"], is_ready(pod)
            due, pause = before.get(mark, (0.0, SILENT_SECONDS / 2))
            if mark in before and self.clock() < due:
                silent[mark] = before[mark]
                return None
            async with limit:
                said = await startup(session, pod["status"]["podIP"], self.port)
            if said is None:
                pause = min(2 * pause, LONGEST_SECONDS)
                silent[mark] = self.clock() + pause, pause
            return said

        asked = [(key, pod) for key, pod in self.pods() if is_loading(pod) or self.wants_revision(pod)]
        answers = await asyncio.gather(*(ask(pod) for _, pod in asked))
        self._silent = silent
        self._take(asked, answers)

    def _take(self, asked: Iterable[tuple[Key, Obj]], answers: Iterable[Load | str | None]) -> None:
        before, loads, news = self.loads, dict[str, Load](), set[Key]()
        for (key, pod), said in zip(asked, answers, strict=True):
            uid = pod["metadata"]["uid"]
            old = before.get(uid)
            if isinstance(said, str):
                if self.revisions.get(uid) != said:
                    self.revisions[uid] = said
                    news.add(key)
            elif said is not None and (old is None or is_news(old, said)):
                news.add(key)
                old = said
            if old is not None:
                loads[uid] = old
        self.loads = loads
        while len(self.revisions) > MOST_REVISIONS:
            del self.revisions[next(iter(self.revisions))]
        for key in sorted(news):
            self.changed(key)


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
    return is_live(pod) and status.get("phase") == "Running" and bool(status.get("podIP"))
