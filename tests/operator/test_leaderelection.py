"""Tests of leader election in simulated time: its rules, and its loop with a Lease in memory."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from tests.simulated_time import now, simulated
from unmask_operator import leaderelection as module
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.leaderelection import DEADLINE_SECONDS, LEASE_SECONDS, RETRY_SECONDS, Lease, LostLease

NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
LATENCY = 0.01  # seconds per request
LONG = 2.5 * LEASE_SECONDS


def lease_of(holder, renewed="t0", duration=12):
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": duration}
    return {"metadata": {"name": "l", "namespace": "n", "resourceVersion": "1"}, "spec": spec}


@pytest.mark.parametrize("lease", [{"metadata": {}}, Lease.released(lease_of("other")), lease_of("me")])
def test_a_lease_that_nobody_holds_and_the_own_lease_are_free_immediately(lease):
    assert Lease("me").can_acquire(lease)


@pytest.mark.parametrize(
    ("leases", "free_after"),
    [
        (((0, lease_of("other")), (11, lease_of("other")), (12, lease_of("other", "t1"))), 24),
        (((0, Lease.new("n", "l", None)),), DEADLINE_SECONDS),  # a former leader continues that long
    ],
    ids=["another holder, since its last change", "unknown holder"],
)
def test_a_lease_is_free_once_it_expires(leases, free_after):
    clock = SimpleNamespace(now=0.0)
    lease = Lease("me", lambda: clock.now)
    assert lease.pause() == 4
    for clock.now, seen in leases:
        assert not lease.can_acquire(seen)
        assert lease.pause() == 4 or clock.now == 11
    clock.now = free_after - 1
    assert not lease.can_acquire(seen)
    assert lease.pause() == pytest.approx(1.1)  # shorter than usual, because it expires
    clock.now = free_after
    assert not lease.can_acquire(seen)
    clock.now += 0.1
    assert lease.can_acquire(seen)


def test_an_acquisition_counts_as_transition_and_a_renewal_does_not():
    lease = Lease("me")
    taken = lease.held(lease_of("other"), NOW)
    stamp = "2026-01-02T03:04:05.000006Z"
    spec = {"holderIdentity": "me", "leaseDurationSeconds": 12, "leaseTransitions": 1, "acquireTime": stamp}
    assert taken["spec"] == {**spec, "renewTime": stamp}
    later = lease.held(taken, NOW.replace(second=9))
    assert later["spec"] == {**spec, "renewTime": "2026-01-02T03:04:09.000006Z"}
    assert later["metadata"]["resourceVersion"] == "1"  # so that a write over another holder's fails


def test_the_deadline_precedes_the_expiry_of_the_lease():
    assert DEADLINE_SECONDS + RETRY_SECONDS <= LEASE_SECONDS


class OneLease:
    """Fake API server with one Lease and optimistic locking. Each request takes LATENCY.

    `fail` is the error of all requests. If `unanswered`, writes are carried out and never answered.
    """

    def __init__(self):
        self.obj = {"metadata": {"name": "l", "namespace": "n", "resourceVersion": "1"}}
        labels = {"team": "platform", "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "unmask-operator-0.1.0"}
        self.deployment = {"metadata": {"name": "d", "uid": "of-d", "labels": labels}}
        self.fail, self.unanswered = None, False

    @property
    def holder(self):
        return (self.obj.get("spec") or {}).get("holderIdentity")

    async def _answer(self, found):
        await asyncio.sleep(LATENCY)
        if self.fail:
            raise self.fail
        if found is None:
            raise ApiError(404, "NotFound", "not found")
        return found

    async def get(self, kind, namespace, name):
        return await self._answer(self.obj if kind.kind == "Lease" else self.deployment)

    find = Client.find

    async def request(self, method, path, body, timeout):
        assert (method, path) == ("POST", "/apis/coordination.k8s.io/v1/namespaces/n/leases")
        self.obj = {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}
        return await self._answer(self.obj)

    async def update_lease(self, lease, timeout):
        found = await self._answer(self.obj)
        version = found["metadata"]["resourceVersion"]
        if lease["metadata"]["resourceVersion"] != version:
            raise ApiError(409, "Conflict", "the object has been modified")
        self.obj = {**lease, "metadata": {**lease["metadata"], "resourceVersion": str(int(version) + 1)}}
        if self.unanswered:
            await asyncio.Event().wait()
        return self.obj

    async def give(self, identity):
        """Writes the Lease as another holder does."""
        await self.update_lease(Lease(identity).held(self.obj, NOW), 1)


def elector(api, identity, deployment="d"):
    return module.LeaderElector(api, "n", "l", Lease(identity, now), deployment)


@pytest.fixture
def api():
    return OneLease()


@pytest.fixture
def a(api):
    return elector(api, "a")


@pytest.fixture
def b(api):
    return elector(api, "b")


OWNER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "of-d"}


@pytest.mark.parametrize(
    ("deployment", "exists", "created"),
    [("d", True, {"ownerReferences": [OWNER], "labels": {"team": "platform"}}), ("", False, {}), ("d", False, None)],
    ids=["owned by the Deployment, without the labels of Helm", "outside a Deployment", "not after an uninstall"],
)
@simulated
async def test_a_missing_lease_is_created(api, deployment, exists, created):
    api.obj = None
    if not exists:
        api.deployment = None
    one = elector(api, "a", deployment)
    assert not await one._try()
    assert one.reads == (created is not None)
    assert (api.obj is None) == (created is None)
    if created is not None:
        assert api.obj["metadata"] == {"namespace": "n", "name": "l", "resourceVersion": "1", **created}


@simulated
async def test_after_a_deletion_of_the_lease_the_leader_ends_before_another_leads(api, a, b):
    await a.acquire()
    keeper, waiter = asyncio.create_task(a.keep()), asyncio.create_task(b.acquire())
    await asyncio.sleep(LONG)
    assert a.in_time()
    api.obj = None
    while not waiter.done():
        await asyncio.sleep(LATENCY / 4)
        assert not (a.in_time() and b.leads)
    assert isinstance(keeper.exception(), LostLease)
    assert api.holder == "b"


@simulated
async def test_a_lease_is_released_although_shutdown_cancelled_a_request_that_succeeded(api, a):
    api.unanswered = True
    request = asyncio.create_task(a.acquire())
    while api.holder != "a":
        await asyncio.sleep(LATENCY)
    request.cancel()
    await asyncio.wait((request,))
    api.unanswered = False
    await a.release()
    assert api.holder == ""


@simulated
async def test_a_lease_of_another_holder_is_not_released(api, a):
    await a.acquire()
    await api.give("b")
    await a.release()
    assert api.holder == "b"


@simulated
async def test_a_leader_is_in_time_until_its_deadline_and_then_ends(api, a):
    assert not a.in_time()
    await a.acquire()
    api.fail = ApiError(0, "Unreachable", "no answer")
    keeper = asyncio.create_task(a.keep())
    await asyncio.sleep(DEADLINE_SECONDS - 3 * LATENCY)
    assert a.in_time()
    with pytest.raises(LostLease, match="not renewed"):
        await keeper
    assert not a.in_time()
    assert now() == pytest.approx(DEADLINE_SECONDS)  # `acquire` began at 0


@simulated
async def test_of_two_operators_one_leads_and_the_other_follows_a_release_immediately(api, a, b):
    await a.acquire()
    keeper, waiter = asyncio.create_task(a.keep()), asyncio.create_task(b.acquire())
    await asyncio.sleep(LONG)
    assert a.in_time()
    assert not b.leads
    keeper.cancel()
    await a.release()
    assert not a.leads
    start = now()
    await waiter
    assert now() - start <= RETRY_SECONDS + 3 * LATENCY
    assert b.leads
    assert api.holder == "b"


@simulated
async def test_a_renewal_that_fails_is_tried_again_before_the_deadline(api, a):
    await a.acquire()
    keeper = asyncio.create_task(a.keep())
    for _ in range(20):
        api.fail = ApiError(500, "InternalError", "etcd")
        await asyncio.sleep(RETRY_SECONDS + LATENCY)
        api.fail = None
        await asyncio.sleep(RETRY_SECONDS / 2 + LATENCY)
        assert a.in_time()
    assert not keeper.done()


@simulated
async def test_a_label_of_another_client_on_the_lease_does_not_end_the_leadership(api, a):
    await a.acquire()
    await api.update_lease({**api.obj, "metadata": {**api.obj["metadata"], "labels": {"x": "y"}}}, 1)
    keeper = asyncio.create_task(a.keep())
    await asyncio.sleep(LONG)
    assert not keeper.done()
    assert a.in_time()
    assert (api.holder, api.obj["metadata"]["labels"]) == ("a", {"x": "y"})


@pytest.mark.parametrize(("restored", "cause"), [(False, "held by b"), (True, "restored from a backup")])
@simulated
async def test_another_holder_and_an_older_lease_end_the_leadership_immediately(api, a, restored, cause):
    await a.acquire()
    backup = api.obj
    await a._renew()
    if restored:
        api.obj = backup
    else:
        await api.give("b")
    with pytest.raises(LostLease, match=cause):
        await a.keep()
    assert now() < DEADLINE_SECONDS


@pytest.mark.parametrize("status", [401, 403, 404])
@simulated
async def test_a_standby_knows_whether_it_can_read_the_lease_and_tries_again(api, a, caplog, status):
    waiter = asyncio.create_task(a.acquire())
    api.fail = ApiError(status, "Reason", "no")
    await asyncio.sleep(LONG)
    assert not a.reads
    assert not waiter.done()
    assert "cannot read or write the Lease n/l" in caplog.text
    api.fail = None
    await api.give("b")
    await asyncio.sleep(RETRY_SECONDS)
    assert a.reads
    assert not a.leads
    await waiter
    assert a.leads


@simulated
async def test_a_failure_of_the_work_ends_the_leadership(a):
    async def work():
        raise RuntimeError("kopf has ended")

    with pytest.raises(RuntimeError, match="kopf has ended"):
        await module.run_leader_election(a, work)


@simulated
async def test_losing_the_lease_ends_the_process_before_it_can_write_again(api, a, monkeypatch):
    class Exited(Exception):
        pass

    def leave():
        raise Exited

    monkeypatch.setattr(module, "exit_at_once", leave)
    stopped = asyncio.Event()

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    running = asyncio.create_task(module.run_leader_election(a, work))
    await asyncio.sleep(LONG)
    assert a.in_time()
    await api.give("b")
    with pytest.raises(Exited):
        await running
    await stopped.wait()
