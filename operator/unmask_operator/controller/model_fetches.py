"""Reads the pods of Jobs that download models, their progress, and claims that the operator does not watch."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import aiohttp

from unmask_operator.controller.pod_progress import is_significant_change, runs, startup
from unmask_operator.kinds import CLAIMS, JOBS, PODS
from unmask_operator.kube.cache import Cache, owner_key, slim
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import FETCH_LABEL, Key, Obj, condition, controller_uid, section
from unmask_operator.plan.model_fetch import finished
from unmask_operator.plan.observed import FetchReport, Load
from unmask_operator.render.labels import PORT

CLAIM_SECONDS = 600.0  # between two reads of a bound claim

log = logging.getLogger(__name__)


class ModelFetches:
    """The last report of each Job, by uid.

    Args:
        client: Requests to the API server.
        cache: The Jobs.
        changed: Called with the resource whose Job has news.
        slots: Shared with other polls of pods.
        port: Of the pods.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        client: Client,
        cache: Cache,
        changed: Callable[[Key], None],
        slots: asyncio.Semaphore,
        port: int = PORT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._cache, self._changed = client, cache, changed
        self._slots, self._port, self._clock = slots, port, clock
        self._parsing = asyncio.Lock()
        self._claims: dict[Key, tuple[float, Obj]] = {}
        self._final: set[str] = set()  # uids of Jobs whose pods were read after their end
        self.reports: Mapping[str, FetchReport] = {}

    async def claim(self, resource: Obj) -> Obj | None:
        """Returns the claim of spec.modelCache.pvc.claimName; None if it does not exist. Raises ApiError."""
        name = section(resource, "spec", "modelCache", "pvc").get("claimName")
        if not isinstance(name, str):
            return None
        key = Key(resource["metadata"]["namespace"], name)
        read, known = self._claims.get(key, (float("-inf"), {}))
        if self._clock() - read < CLAIM_SECONDS:
            return known
        if (claim := await self._client.find(CLAIMS, *key)) is None:
            return None
        found = slim(CLAIMS, claim)
        if section(found, "status").get("phase") == "Bound":
            self._claims[key] = self._clock(), found
        return found

    async def poll(self, session: aiohttp.ClientSession) -> None:
        """Reads the pods of Jobs that are not finished, or whose end is not in the status. One list per namespace."""
        jobs = {job["metadata"]["uid"]: (key, job) for job in self._cache.of_kind(JOBS) if (key := owner_key(job))}
        due = defaultdict[str, dict[str, tuple[Key, Obj]]](dict)
        for uid, (key, job) in jobs.items():
            if not finished(job) or (uid not in self._final and not self._is_told(key)):
                due[key.namespace][uid] = key, job
        reports = {uid: report for uid, report in self.reports.items() if uid in jobs}
        for namespace, waiting in due.items():
            try:
                listed, _ = await self._client.list(PODS, namespace, FETCH_LABEL)
            except ApiError as error:
                log.warning("cannot list the pods of downloads in namespace %s: %s", namespace, error)
                continue
            own = defaultdict[str | None, list[Obj]](list)
            for pod in listed:
                own[controller_uid(pod)].append(slim(PODS, pod))
            found = (
                self._report(session, own[uid], self.reports.get(uid), bool(finished(job)))
                for uid, (_, job) in waiting.items()
            )
            for (uid, (key, job)), report in zip(waiting.items(), await asyncio.gather(*found), strict=True):
                reports[uid] = report
                if finished(job):
                    self._final.add(uid)
                if report != self.reports.get(uid):
                    self._changed(key)
        self.reports, self._final = reports, self._final & jobs.keys()

    def _is_told(self, key: Key) -> bool:
        return condition(self._cache.resource(key) or {}, "ModelCached").get("status") == "True"

    async def _report(
        self, session: aiohttp.ClientSession, pods: Sequence[Obj], before: FetchReport | None, final: bool
    ) -> FetchReport:
        newest = tuple(sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True))
        load: Load | None = None
        if newest and runs(newest[0]):
            async with self._slots:
                report = await startup(session, newest[0]["status"]["podIP"], self._port, (), self._parsing)
            load, old = report.load if report else None, before.load if before else None
            if old and (load is None or not is_significant_change(old, load)):
                load = old
        return FetchReport(newest, load, final)
