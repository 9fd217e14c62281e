"""Leader election by a Lease of coordination.k8s.io, which one of the operator's pods holds."""

import asyncio
import logging
import math
import os
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, NoReturn

from unmask_operator.kinds import DEPLOYMENTS, LEASES
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Obj, section

LEASE_SECONDS = 12  # duration of the Lease since its last renewal
DEADLINE_SECONDS = 8.0  # renew deadline: the leader stops before the Lease expires
RETRY_SECONDS = 4.0
RELEASE_SECONDS = 2.0  # limit for the release

log = logging.getLogger(__name__)


class LostLease(Exception):
    """The Lease was lost: another pod may lead now."""


class Lease:
    """Decides when to acquire and what to write, without requests. Times are monotonic seconds of this process.

    The age of another pod's Lease counts from the time at which this process saw its last change, so that the clocks of
    pods need not agree.
    """

    def __init__(self, identity: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.identity = identity
        self.clock = clock
        self._seen: tuple[str, str] | None = None  # last observed holder and renewTime
        self._seen_at = 0.0
        self._runs_out = 0.0
        self.renewed_at: float | None = None  # None: not the leader

    def can_acquire(self, lease: Obj) -> bool:
        """Returns whether the Lease is free: held by this pod, released, or unchanged for its full duration."""
        spec = lease.get("spec") or {}
        holder, renewed = spec.get("holderIdentity") or "", str(spec.get("renewTime"))
        if holder in ("", self.identity):
            return True
        if self._seen != (holder, renewed):
            self._seen, self._seen_at = (holder, renewed), self.clock()
        self._runs_out = self._seen_at + float(spec.get("leaseDurationSeconds") or LEASE_SECONDS)
        return self.clock() > self._runs_out

    def pause(self) -> float:
        """Returns seconds until the next read: the retry period, or less if the Lease expires earlier."""
        left = self._runs_out - self.clock()
        return min(RETRY_SECONDS, left + RETRY_SECONDS / 40) if left > 0 else RETRY_SECONDS

    def held(self, lease: Obj, now: datetime) -> Obj:
        """Returns the Lease as this pod writes it to acquire or renew it."""
        spec: dict[str, Any] = dict(lease.get("spec") or {})
        stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if spec.get("holderIdentity") != self.identity:
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
            spec["acquireTime"] = stamp
        spec |= {"holderIdentity": self.identity, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": stamp}
        return {**lease, "spec": spec}

    @staticmethod
    def released(lease: Obj) -> Obj:
        """Returns the released Lease. The next pod acquires it without waiting."""
        return {**lease, "spec": {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}

    @staticmethod
    def new(namespace: str, name: str, owner: Obj | None) -> Obj:
        """Returns a new Lease.

        An unknown holder has it for DEADLINE_SECONDS: the old Lease may have been deleted while a leader runs, which
        continues that long. The labels are those of the owning Deployment except Helm's, because policies may require
        labels on every object.
        """
        metadata: Obj = {"namespace": namespace, "name": name}
        if owner is not None:
            named = {member: owner["metadata"][member] for member in ("name", "uid")}
            metadata["ownerReferences"] = [{"apiVersion": "apps/v1", "kind": "Deployment", **named}]
            labels = section(owner, "metadata", "labels")
            metadata["labels"] = {key: value for key, value in labels.items() if key not in _OF_HELM}
        spec = {"holderIdentity": "unknown", "leaseDurationSeconds": math.ceil(DEADLINE_SECONDS)}
        return {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata, "spec": spec}

    def seconds_left(self) -> float:
        """Returns seconds until the renew deadline."""
        assert self.renewed_at is not None
        return self.renewed_at + DEADLINE_SECONDS - self.clock()


_OF_HELM = ("app.kubernetes.io/managed-by", "helm.sh/chart")


class LeaderElector:
    """Creates, acquires, renews and releases the Lease.

    The operator's Deployment owns the Lease, so that uninstalling removes it. If the Lease is created after the
    Deployment was deleted, the garbage collector removes it. Without a `deployment` the Lease has no owner.
    """

    def __init__(self, client: Client, namespace: str, name: str, lease: Lease, deployment: str = "") -> None:
        self._client = client
        self._deployment = deployment
        self._where = (namespace, name)
        self._lease = lease
        self._read: Obj | None = None
        self._requested = False  # a request that acquires the Lease was sent, with or without an answer
        self.reads = False  # the last read of the Lease succeeded: login and permissions work

    @property
    def leads(self) -> bool:
        return self._lease.renewed_at is not None

    def in_time(self) -> bool:
        """Returns whether this pod leads and the renew deadline has not passed, so that no other pod can lead."""
        return self.leads and self._lease.seconds_left() > 0

    async def acquire(self) -> None:
        """Returns once this pod leads."""
        while not await self._try():
            await asyncio.sleep(self._lease.pause())
        log.info("acquired the Lease, leading")

    async def keep(self) -> NoReturn:
        """Renews the Lease. Retries a failed renewal after 1 to 2 s.

        Raises:
            LostLease: No renewal succeeded before the deadline.
        """
        pause = RETRY_SECONDS
        while True:
            await asyncio.sleep(min(pause, max(0.0, self._lease.seconds_left())))
            pause = RETRY_SECONDS if await self._renew() else 1.0 + random.random()

    async def release(self) -> None:
        """Releases the Lease if it is held. After a failure it expires."""
        if not self._requested:
            return
        self._lease.renewed_at = None
        try:
            await asyncio.wait_for(self._release(), RELEASE_SECONDS)
        except (ApiError, TimeoutError) as error:
            log.warning("cannot release the Lease, it expires in %d s: %s", LEASE_SECONDS, str(error) or "no answer")

    async def _release(self) -> None:
        """Releases the Lease if it is still held. Reads it again first: an interrupted request may have written it."""
        lease = await self._client.get(LEASES, *self._where)
        if section(lease, "spec").get("holderIdentity") == self._lease.identity:
            await self._client.update_lease(Lease.released(lease), timeout=RELEASE_SECONDS)

    async def _try(self) -> bool:
        start, lease = self._lease.clock(), None
        try:
            lease = await self._find()
            self.reads = True
            if not self._lease.can_acquire(lease):
                return False
            self._requested = True
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
        """Returns the Lease. Creates it if it does not exist."""
        if lease := await self._client.find(LEASES, *self._where):
            return lease
        namespace, name = self._where
        owner = None
        if self._deployment:
            owner = await self._client.get(DEPLOYMENTS, namespace, self._deployment)
        made = Lease.new(namespace, name, owner)
        return await self._client.request("POST", LEASES.path(namespace), body=made, timeout=RETRY_SECONDS)

    async def _renew(self) -> bool:
        """Returns whether the Lease was renewed."""
        assert self._read is not None
        start, left = self._lease.clock(), self._lease.seconds_left()
        try:
            if left <= 0:
                raise TimeoutError
            mine = self._lease.held(self._read, datetime.now(UTC))
            self._read = await asyncio.wait_for(self._client.update_lease(mine, timeout=left), left)
        except TimeoutError:
            raise LostLease(f"the Lease was not renewed for {DEADLINE_SECONDS:g} seconds") from None
        except ApiError as error:
            if error.conflict:
                await self._read_again()
            log.warning("cannot renew the Lease: %s", error)
            return False
        self._lease.renewed_at = start
        return True

    async def _read_again(self) -> None:
        """Reads the Lease after a conflict. Other changes, such as a label, do not end the leadership.

        An older version than the one written means that etcd was restored from a backup: the cache and the versions of
        the watches are newer than the cluster. The Lease shows this first, because it is written every few seconds.

        Raises:
            LostLease: Another pod holds the Lease, or it is older than the one written.
        """
        assert self._read is not None
        try:
            lease = await self._client.get(LEASES, *self._where)
        except ApiError:
            return
        holder = section(lease, "spec").get("holderIdentity")
        if holder != self._lease.identity:
            raise LostLease(f"the Lease is held by {holder}" if holder else "the Lease has no holder")
        if int(lease["metadata"]["resourceVersion"]) < int(self._read["metadata"]["resourceVersion"]):
            raise LostLease("the Lease is older than the one written, as after etcd was restored from a backup")
        self._read = lease


async def run_leader_election(elector: LeaderElector, work: Callable[[], Awaitable[None]]) -> None:
    """Waits for the Lease, then runs `work` while this pod leads.

    A lost Lease ends the process immediately and without clean-up, because a further write could conflict with the new
    leader's.
    """
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
