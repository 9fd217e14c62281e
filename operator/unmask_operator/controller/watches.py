"""Each kind is listed in pages and then watched, for as long as this process leads: so the store stays true."""

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import NoReturn

from unmask_operator.client.client import Client
from unmask_operator.client.errors import ApiError
from unmask_operator.client.kinds import CHILDREN, OPTIONAL, PODS, SERVICES, ApiKind, kind_of
from unmask_operator.client.store import Store
from unmask_operator.objects import SERVICE_LABEL, Key, Obj
from unmask_operator.process.metrics import Metrics
from unmask_operator.settings import Settings
from unmask_operator.state.plan import MISSING_CRD
from unmask_operator.status.pods import is_ready

KINDS = (SERVICES, PODS, *CHILDREN)
# What must have been listed before anything is written: of other children that a plan has, a create tells that they are
# there, but pods would be made anew without their pin.
NEEDED = {SERVICES, PODS, kind_of("apps/v1", "ControllerRevision"), kind_of("apps/v1", "Deployment")}
LISTS_AT_ONCE = 2  # each holds a page in memory
LONGEST_PAUSE_SECONDS = 30.0  # between tries that fail
LONG_SECONDS = 15.0  # a try that lasted for so long was none that failed
DISCOVERY_SECONDS = 15.0  # between looks for a kind that a resource waits for
UNASKED_LOOKS = 20  # so many times that, while none waits for it
# Children and pods change in bursts: one reconcile, and one write of the status, for each. A burst that ends in a pod
# that is Ready is what people wait for.
SETTLE_SECONDS = 1.0
SETTLE_READY_SECONDS = 0.25

News = Callable[[Key, float], None]  # the resource concerned, and in how many seconds it is to be looked at

log = logging.getLogger(__name__)


class Watches:
    """All of them."""

    def __init__(self, client: Client, store: Store, news: News, settings: Settings, metrics: Metrics) -> None:
        self.client = client
        self.store = store
        self.news = news
        self.metrics = metrics
        self.known = asyncio.Event()  # set once everything was asked for and all that is NEEDED has come
        self.apis: frozenset[str] = frozenset()  # the kinds of OPTIONAL that are there (ApiKind.api)
        self.turns = asyncio.Semaphore(LISTS_AT_ONCE)
        selectors = {SERVICES: ",".join(settings.watch_selector)}
        self._watches = [
            Watch(self, kind, namespace, selectors.get(kind, SERVICE_LABEL))
            for kind in KINDS
            for namespace in settings.watch_namespaces or (None,)
        ]

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for watch in self._watches:
                group.create_task(watch.run())

    def look(self) -> None:
        """Whether all is known by now."""
        if all(watch.asked and (watch.listed or watch.kind not in NEEDED) for watch in self._watches):
            self.known.set()

    def is_there(self, kind: ApiKind, there: bool) -> None:
        """A kind of OPTIONAL has come or gone: resources may wait for it, or have to tell that it is missing."""
        apis = self.apis | {kind.api} if there else self.apis - {kind.api}
        if apis != self.apis:
            self.apis = apis
            for key, _ in self.store.services():
                self.news(key, 0.0)


class Watch:
    """One kind in one namespace (None: the cluster)."""

    def __init__(self, all_of_them: Watches, kind: ApiKind, namespace: str | None, selector: str) -> None:
        self.kind = kind
        self.asked = False  # a list was tried, with whatever end
        self.listed = False  # a list has come
        self._all = all_of_them
        self._namespace = namespace
        self._selector = selector
        self._version = 0  # to go on from; 0: a list comes first

    async def run(self) -> NoReturn:
        """For ever. Tries begin 1, 2, 4 .. 30 seconds after each other, and after a long one anew, at once."""
        loop, failures = asyncio.get_running_loop(), 0
        while True:
            begun = loop.time()
            await self._once()
            lasted = loop.time() - begun
            pause = min(2.0**failures, LONGEST_PAUSE_SECONDS)
            failures = 0 if lasted >= LONG_SECONDS else min(failures + 1, 10)
            await asyncio.sleep(max(0.0, pause - lasted))

    async def _once(self) -> None:
        """List, unless there is a version to go on from, and watch until that ends, in whatever way."""
        # A stream of resources that was open while their CustomResourceDefinition got a new field leaves that field
        # out of what it tells. The API server ends it soon, and then only a list brings the whole resource.
        doing = "watch" if self._version and self.kind is not SERVICES else "list"
        try:
            if doing == "list":
                await self._list()
                doing = "watch"
            await self._all.client.watch(self.kind, self._namespace, self._selector, self._version, self._take)
        except ApiError as error:
            self._was_asked()
            if not error.general:
                self._version = 0  # it cannot go on from there
            if error.status == 404 and self.kind in OPTIONAL:
                await self._wait_for_kind()
            elif error.status == 410:
                log.info("%s are listed anew: %s", self.kind.plural, error)
            else:
                self._all.metrics.api_errors.labels(str(error.status)).inc()
                hint = ": is its CustomResourceDefinition there?" if error.status == 404 else ""
                log.warning("cannot %s %s: %s%s", doing, self.kind.plural, error, hint)

    async def _list(self) -> None:
        def keep(item: Obj) -> Obj:
            self._heard(item, self._all.store.put(self.kind, item, answered=True))
            return {member: item["metadata"][member] for member in ("namespace", "name", "uid")}

        async with self._all.turns:
            kept, version = await self._all.client.list(self.kind, self._namespace, self._selector, keep=keep)
        self._forget_all_but({(Key(one["namespace"], one["name"]), one["uid"]) for one in kept}, version)
        self._version, self.listed = version, True
        if self.kind in OPTIONAL:
            self._all.is_there(self.kind, True)
        self._was_asked()

    def _was_asked(self) -> None:
        self.asked = True
        self._all.look()

    def _take(self, change: str, obj: Obj) -> None:
        store = self._all.store
        store.heard(self.kind)
        if change == "DELETED":
            self._heard(obj, store.delete(self.kind, obj))
        elif change != "BOOKMARK":
            self._heard(obj, store.put(self.kind, obj))
        self._version = int(obj["metadata"]["resourceVersion"])

    def _heard(self, obj: Obj, key: Key | None) -> None:
        if key is not None:
            self._all.news(key, settle_seconds(self.kind, obj))

    def _forget_all_but(self, found: set[tuple[Key, str]], version: int) -> None:
        for key in self._all.store.retain(self.kind, self._namespace, found, version):
            self._all.news(key, 0.0)

    async def _wait_for_kind(self) -> None:
        """Its CustomResourceDefinition is not there: look for it soon while a resource waits for it, else seldom."""
        self._forget_all_but(set(), sys.maxsize)
        self._all.is_there(self.kind, False)
        for _ in range(UNASKED_LOOKS):
            await asyncio.sleep(DISCOVERY_SECONDS)
            services = self._all.store.services()
            if any(lacks_crd(one) for key, one in services if self._namespace in (None, key.namespace)):
                return


def settle_seconds(kind: ApiKind, obj: Obj) -> float:
    """How long after news of an object its resource is reconciled: a resource itself at once."""
    if kind is SERVICES:
        return 0.0
    return SETTLE_READY_SECONDS if kind is PODS and is_ready(obj) else SETTLE_SECONDS


def lacks_crd(service: Obj) -> bool:
    """Its status says that a CustomResourceDefinition is missing."""
    conditions = (service.get("status") or {}).get("conditions") or ()
    return any(c["reason"] == MISSING_CRD for c in conditions)
