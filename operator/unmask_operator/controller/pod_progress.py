"""Polls ``/startup`` of pods: the progress of loading, the loaded commit, and the served adapters."""

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import aiohttp

from unmask_operator.objects import Key, Obj, is_ready, section, serves
from unmask_operator.plan.observed import Adapter, Load
from unmask_operator.pod_http import PODS_AT_ONCE, PODS_PER_SERVICE, get_text
from unmask_operator.render.adapters import follows
from unmask_operator.render.labels import PORT
from unmask_operator.render.model import COMMIT, key_of
from unmask_operator.status.pods.pod_status import is_live

TIMEOUT_SECONDS = 2.0
POLL_SECONDS = 10.0  # limit for one poll of all pods
SILENT_SECONDS = 5.0  # first pause after a pod that gave no answer; each pause is twice the previous one
LONGEST_SECONDS = 60.0  # longest pause; a firewall that drops packets makes each request take the full timeout
FAILED_SECONDS = 30.0  # between polls of a pod whose adapters failed; it loads them again at this interval
SETTLED_SECONDS = 1200.0  # between polls of a pod that serves all adapters; a backend may restart and fail to load one
STEP_PERCENT = 5  # smaller advances are ignored, because each one writes the status
MAX_REVISIONS = 10_000  # in memory; a pod whose entry was removed is polled again
LONGEST_PHASE = 64  # characters, the limit of the status
LONGEST_WORD = 1024  # characters of each text of an adapter
_MEMBERS = ("uri", "state", "message")
_ENDS = {"ready", "failed"}  # final states


@dataclass(frozen=True)
class StartupReport:
    """A pod's report: the load progress, or, once loaded, the commit ("": none) and the adapters."""

    load: Load | None = None
    revision: str = ""
    adapters: Mapping[str, Adapter] = field(default_factory=dict)


@dataclass
class PodProgress:
    """The last answers of pods, by uid."""

    pods: Callable[[], Iterable[tuple[Key, Obj]]]  # all pods, each with its resource's key
    changed: Callable[[Key], None]  # called with the resource whose pods changed
    expected_adapters: Callable[[Key], Mapping[str, str]]  # URIs by name
    port: int = PORT
    clock: Callable[[], float] = time.monotonic
    # Limits the requests of all resources, together with the autoscaler's.
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(PODS_AT_ONCE))
    phase_reported: Callable[[Key, str, str], None] = lambda key, uid, phase: None  # called per report of a loading pod

    def __post_init__(self) -> None:
        self._parsing = asyncio.Lock()
        # Time of the next poll and the pause before it, by uid, readiness and expected adapters.
        self._due: dict[tuple[str, bool, int], tuple[float, float]] = {}
        self.loads: Mapping[str, Load] = {}  # of pods that are still loading
        self.revisions: dict[str, str] = {}  # the loaded commit of the hub; "": none
        self.adapters: Mapping[str, Mapping[str, Adapter]] = {}  # of Ready pods: the expected ones

    def needs_revision(self, pod: Obj) -> bool:
        """Returns whether the pod's loaded commit is needed and not known yet."""
        return runs(pod) and pod["metadata"]["uid"] not in self.revisions and key_of(pod) is not None

    async def poll(self, session: aiohttp.ClientSession) -> None:
        """Polls the pods that are due: those that load, whose commit is not known, or that have adapters.

        A pod that does not answer keeps its last report. No request goes to the API server.
        """
        limits: dict[Key, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(PODS_PER_SERVICE))
        end = asyncio.get_running_loop().time() + max(POLL_SECONDS, TIMEOUT_SECONDS)
        before, due = self._due, dict[tuple[str, bool, int], tuple[float, float]]()

        async def ask(key: Key, pod: Obj, expected: Mapping[str, str]) -> StartupReport | None:
            mark = pod["metadata"]["uid"], is_ready(pod), hash(frozenset(expected.items()))
            when, pause = before.get(mark, (0.0, SILENT_SECONDS / 2))
            if mark in before and self.clock() < when:
                due[mark] = before[mark]
                return None
            try:
                async with asyncio.timeout_at(end), limits[key], self.slots:
                    report = await startup(session, pod["status"]["podIP"], self.port, expected, self._parsing)
            except TimeoutError:  # other pods of the service were slow
                return None
            if report is None:
                pause = min(2 * pause, LONGEST_SECONDS)
            else:
                pause = next_poll(report, expected) if is_ready(pod) else 0.0
            if pause:
                due[mark] = self.clock() + pause, pause
            return report

        due_pods = [
            (key, pod, self.expected_adapters(key) if follows(pod) else {})
            for key, pod in self.pods()
            if is_loading(pod) or self.needs_revision(pod) or (runs(pod) and follows(pod))
        ]
        reports = await asyncio.gather(*(ask(*each) for each in due_pods))
        self._due = due
        self._update(due_pods, reports)

    def _update(
        self, due_pods: Iterable[tuple[Key, Obj, Mapping[str, str]]], reports: Iterable[StartupReport | None]
    ) -> None:
        loads, adapters, changed_keys = dict[str, Load](), dict[str, Mapping[str, Adapter]](), set[Key]()
        for (key, pod, expected), report in zip(due_pods, reports, strict=True):
            uid = pod["metadata"]["uid"]
            load, served = self.loads.get(uid), self.adapters.get(uid)
            if report is not None and report.load is not None:
                self.phase_reported(key, uid, report.load.phase)
                if load is None or is_significant_change(load, report.load):
                    changed_keys.add(key)
                    load = report.load
            elif report is not None:
                if self.revisions.get(uid) != report.revision:
                    self.revisions[uid] = report.revision
                    changed_keys.add(key)
                now = {name: report.adapters[name] for name in expected if name in report.adapters}
                if follows(pod) and is_ready(pod) and now != served:
                    changed_keys.add(key)
                    served = now
            if load is not None:
                loads[uid] = load
            if served is not None:
                adapters[uid] = served
        self.loads, self.adapters = loads, adapters
        while len(self.revisions) > MAX_REVISIONS:
            del self.revisions[next(iter(self.revisions))]
        for key in sorted(changed_keys):
            self.changed(key)


def is_significant_change(old: Load, new: Load) -> bool:
    return old.phase != new.phase or abs(new.percent - old.percent) >= STEP_PERCENT


def next_poll(report: StartupReport, expected: Mapping[str, str]) -> float:
    """Returns seconds until the next poll of a Ready pod; 0 while it does not serve the current list."""
    held = [report.adapters.get(name, Adapter("", "", "")) for name in expected]
    if report.load or [one.uri for one in held] != [*expected.values()] or not {one.state for one in held} <= _ENDS:
        return 0.0
    return FAILED_SECONDS if any(one.state == "failed" for one in held) else SETTLED_SECONDS


async def startup(
    session: aiohttp.ClientSession, address: str, port: int, adapters: Collection[str], parsing: asyncio.Lock
) -> StartupReport | None:
    """Reads one pod's ``/startup``.

    Args:
        session: From `pod_session`.
        address: The pod's IP address.
        port: The pod's port.
        adapters: Names of the adapters whose state is read.
        parsing: Held while an answer is parsed, so that one iteration of the event loop parses at most one.

    Returns:
        The pod's report; None without a usable answer.
    """
    try:
        text = await get_text(session, address, "/startup", port, TIMEOUT_SECONDS, (200, 503))
        async with parsing:
            await asyncio.sleep(0)
            return parse_startup(text, adapters)
    except Exception:  # pods are not trusted: no answer may end the operator
        return None


def parse_startup(text: str, adapters: Collection[str]) -> StartupReport:
    """Parses the body of ``/startup``. Any exception means that it is not an answer of the runtime."""
    report = json.loads(text)
    if report.get("status") != "started":
        return StartupReport(Load(str(report["phase"])[:LONGEST_PHASE], min(100.0, max(0.0, float(report["percent"])))))
    revision = str(report.get("model_revision"))
    reported = report.get("adapters") or {}
    found = {name: reported[name] for name in adapters if name in reported}
    states = {n: Adapter(*(str(one.get(m, ""))[:LONGEST_WORD] for m in _MEMBERS)) for n, one in found.items()}
    return StartupReport(None, revision if COMMIT.fullmatch(revision) else "", states)


def is_loading(pod: Obj) -> bool:
    """Returns whether the pod runs and has an address, but is not Ready and not terminating."""
    return runs(pod) and not is_ready(pod)


def runs(pod: Obj) -> bool:
    status = section(pod, "status")
    return is_live(pod) and serves(pod) and status.get("phase") == "Running" and bool(status.get("podIP"))
