"""Who leads: a Lease of coordination.k8s.io that one of the operator's pods holds."""

import asyncio
import logging
import math
import os
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NoReturn

from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import LEASES, kind_of
from unmask_operator.objects import Obj

LEASE_SECONDS = 12  # a holder that has not renewed for so long is gone
DEADLINE_SECONDS = 8.0  # a holder that could not renew for so long must stop, before others think it gone
RETRY_SECONDS = 4.0
RELEASE_SECONDS = 2.0  # that giving it back may take

log = logging.getLogger(__name__)


class LostLease(Exception):
    """Another pod may lead now."""


class Lease:
    """The pure part: what to write when, by what was read. Times are monotonic seconds of this process.

    How old another's lease is counts from when its last change was seen here, so that clocks need not agree.
    """

    def __init__(self, identity: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.identity = identity
        self.clock = clock
        self._seen: tuple[str, str] | None = None  # holder and renewTime last seen
        self._seen_at = 0.0
        self._runs_out = 0.0
        self.renewed_at: float | None = None  # None: not the leader

    def can_acquire(self, lease: Obj) -> bool:
        """Whether nobody holds the Lease as read: it is ours, released, or unchanged for its whole duration."""
        spec = lease.get("spec") or {}
        holder, renewed = spec.get("holderIdentity") or "", str(spec.get("renewTime"))
        if holder in ("", self.identity):
            return True
        if self._seen != (holder, renewed):
            self._seen, self._seen_at = (holder, renewed), self.clock()
        self._runs_out = self._seen_at + float(spec.get("leaseDurationSeconds") or LEASE_SECONDS)
        return self.clock() > self._runs_out

    def pause(self) -> float:
        """Seconds until another's Lease is worth a look: the usual pause, or less when it runs out before."""
        left = self._runs_out - self.clock()
        return min(RETRY_SECONDS, left + RETRY_SECONDS / 40) if left > 0 else RETRY_SECONDS

    def held(self, lease: Obj, now: datetime) -> Obj:
        """The Lease as this pod writes it, to take it or to renew it."""
        spec: dict[str, Any] = dict(lease.get("spec") or {})
        stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if spec.get("holderIdentity") != self.identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
            spec["acquireTime"] = stamp
        spec |= {"holderIdentity": self.identity, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": stamp}
        return {**lease, "spec": spec}

    @staticmethod
    def released(lease: Obj) -> Obj:
        """The Lease as given back: the next pod need not wait."""
        return {**lease, "spec": {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}

    @staticmethod
    def new(namespace: str, name: str, owner: Obj | None) -> Obj:
        """A Lease where there is none. It may have been deleted under a leader, who goes on for DEADLINE_SECONDS: for
        so long somebody unknown holds it. It has the labels of the Deployment that owns it, without those of Helm:
        policies may require labels on every object."""
        metadata: Obj = {"namespace": namespace, "name": name}
        if owner is not None:
            named = {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
            metadata["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "Deployment", **named}]
            labels = owner["metadata"].get("labels") or {}
            metadata["labels"] = {key: value for key, value in labels.items() if key not in _OF_HELM}
        spec = {"holderIdentity": "unknown", "leaseDurationSeconds": math.ceil(DEADLINE_SECONDS)}
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}

    def seconds_left(self) -> float:
        """Until the renew deadline."""
        assert self.renewed_at is not None
        return self.renewed_at + DEADLINE_SECONDS - self.clock()


_OF_HELM = ("app.kubernetes.io/managed-by", "helm.sh/chart")


class LeaderElector:
    """Makes the Lease where there is none, waits for it, keeps it, gives it back.

    The operator's own Deployment owns the Lease, so that uninstalling removes it for good: one that is made when the
    Deployment is gone has nobody to name, or names what is not there and is collected. "": no owner.
    """

    def __init__(self, client: Client, namespace: str, name: str, lease: Lease, deployment: str = "") -> None:
        self._client = client
        self._deployment = deployment
        self._where = (namespace, name)
        self._lease = lease
        self._read: Obj | None = None
        self._asked_for = False  # a request that takes the Lease has been begun; whether it was answered or not
        self.reads = False  # the last look at the Lease succeeded: login, rights and API server are in order

    @property
    def leads(self) -> bool:
        return self._lease.renewed_at is not None

    def in_time(self) -> bool:
        """Whether this pod leads and its Lease is not overdue: nobody else can lead yet."""
        return self.leads and self._lease.seconds_left() > 0

    async def acquire(self) -> None:
        """Return once this pod leads."""
        while not await self._try():
            await asyncio.sleep(self._lease.pause())
        log.info("leading")

    async def keep(self) -> NoReturn:
        """Renews the Lease, and retries a failed renewal after 1 to 2 s.

        Raises LostLease when no renewal succeeds before the deadline.
        """
        pause = RETRY_SECONDS
        while True:
            await asyncio.sleep(min(pause, max(0.0, self._lease.seconds_left())))
            pause = RETRY_SECONDS if await self._renew() else 1.0 + random.random()

    async def release(self) -> None:
        """Give the Lease back, if it is held. A failure is no harm: it runs out."""
        if not self._asked_for:
            return
        self._lease.renewed_at = None
        try:
            await asyncio.wait_for(self._give_back(), RELEASE_SECONDS)
        except (ApiError, TimeoutError) as error:
            log.warning("the Lease was not given back: %s", str(error) or "no answer")

    async def _give_back(self) -> None:
        """A request that the end broke off may have been carried out: the Lease need not be as it was read."""
        lease = await self._client.get(LEASES, *self._where)
        if (lease.get("spec") or {}).get("holderIdentity") == self._lease.identity:
            await self._client.update_lease(Lease.released(lease), timeout=RELEASE_SECONDS)

    async def _try(self) -> bool:
        start, lease = self._lease.clock(), None
        try:
            lease = await self._find()
            self.reads = True
            if not self._lease.can_acquire(lease):
                return False
            self._asked_for = True
            mine = self._lease.held(lease, datetime.now(UTC))
            self._read = await self._client.update_lease(mine, timeout=RETRY_SECONDS)
        except ApiError as error:
            self.reads = lease is not None
            if error.status != 409:
                log.warning("cannot read or write the Lease %s/%s: %s", *self._where, error)
            return False
        self._lease.renewed_at = start
        return True

    async def _find(self) -> Obj:
        """The Lease as it is; it is made where there is none."""
        try:
            return await self._client.get(LEASES, *self._where)
        except ApiError as error:
            if not error.not_found:
                raise
        namespace, name = self._where
        owner = None
        if self._deployment:
            owner = await self._client.get(kind_of("apps/v1", "Deployment"), namespace, self._deployment)
        made = Lease.new(namespace, name, owner)
        return await self._client.request("POST", LEASES.path(namespace), body=made, timeout=RETRY_SECONDS)

    async def _renew(self) -> bool:
        """Returns whether the Lease was renewed."""
        assert self._read is not None
        start = self._lease.clock()
        left = self._lease.seconds_left()
        if left <= 0:
            raise LostLease(f"the Lease was not renewed for {DEADLINE_SECONDS:g} seconds")
        try:
            mine = self._lease.held(self._read, datetime.now(UTC))
            self._read = await asyncio.wait_for(self._client.update_lease(mine, timeout=left), left)
        except TimeoutError:
            raise LostLease(f"the Lease was not renewed for {DEADLINE_SECONDS:g} seconds") from None
        except ApiError as error:
            if error.conflict:
                await self._read_again()
            log.warning("renewing the Lease: %s", error)
            return False
        self._lease.renewed_at = start
        return True

    async def _read_again(self) -> None:
        """Somebody wrote the Lease: another holder ends our lead, and so does an older Lease: etcd was restored from a
        backup: all that is known, and what the watches wait for, is of a future that will not come. It is the
        first object that shows it, since it is written every few seconds. Anything else (a label) does not."""
        assert self._read is not None
        try:
            lease = await self._client.get(LEASES, *self._where)
        except ApiError:
            return
        holder = (lease.get("spec") or {}).get("holderIdentity")
        if holder != self._lease.identity:
            raise LostLease(f"the Lease is held by {holder or 'nobody'}")
        if int(lease["metadata"]["resourceVersion"]) < int(self._read["metadata"]["resourceVersion"]):
            raise LostLease("the Lease is an older one than was written, as after a restored backup of etcd")
        self._read = lease


async def run_leader_election(elector: LeaderElector, work: Callable[[], Awaitable[None]]) -> None:
    """Wait for the Lease, then run `work` while it lasts. A lost Lease ends the process at once, without clean-up:
    every further write could cross those of the new leader."""
    await elector.acquire()
    keeper = asyncio.create_task(elector.keep(), name="lease")
    worker = asyncio.ensure_future(work())
    try:
        await asyncio.wait((keeper, worker), return_when=asyncio.FIRST_COMPLETED)
        if keeper.done() and isinstance(keeper.exception(), LostLease):
            log.error("no longer leading: %s", keeper.exception())
            exit_at_once()
        for task in (keeper, worker):
            if task.done():
                task.result()
    finally:
        keeper.cancel()
        worker.cancel()
        await asyncio.wait((worker,))


def exit_at_once() -> None:
    os._exit(1)
