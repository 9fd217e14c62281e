"""Tests of leader election in simulated time: its rules, and its loop with a Lease in memory."""

import asyncio
from datetime import UTC, datetime

import pytest

from tests.simulated_time import now, run_simulated
from unmask_operator import leaderelection as module
from unmask_operator.kube.errors import ApiError
from unmask_operator.leaderelection import (
    DEADLINE_SECONDS,
    LEASE_SECONDS,
    RETRY_SECONDS,
    LeaderElector,
    Lease,
    LostLease,
)

NOW = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
LATENCY = 0.01  # seconds per request


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def lease_of(holder: str, renewed: str = "t0", duration: int = 12) -> dict:
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": duration}
    return {"metadata": {"name": "l", "namespace": "n", "resourceVersion": "1"}, "spec": spec}


def test_a_lease_that_was_never_held_is_free():
    assert Lease("me").can_acquire({"metadata": {}})


def test_the_lease_of_another_holder_is_free_after_its_duration_without_change():
    clock = Clock()
    lease = Lease("me", clock)
    for clock.now, renewed, free in (
        (0, "t0", False), (11, "t0", False), (12, "t1", False), (23.9, "t1", False), (24.1, "t1", True),
    ):  # fmt: skip
        assert lease.can_acquire(lease_of("other", renewed)) is free, clock.now


def test_the_pause_ends_when_the_lease_of_another_holder_expires():
    clock = Clock()
    lease = Lease("me", clock)
    assert lease.pause() == 4
    lease.can_acquire(lease_of("other"))
    assert lease.pause() == 4
    clock.now = 11
    lease.can_acquire(lease_of("other"))
    assert lease.pause() == pytest.approx(1.1)


def test_a_released_lease_and_the_own_lease_are_free_immediately():
    held = Lease("other").held(lease_of("other"), NOW)
    assert Lease("me").can_acquire(Lease.released(held))
    assert Lease("me").can_acquire(lease_of("me"))


def test_an_acquisition_counts_as_transition_and_a_renewal_does_not():
    lease = Lease("me")
    taken = lease.held(lease_of("other"), NOW)
    assert taken["spec"]["leaseTransitions"] == 1
    assert taken["spec"]["acquireTime"] == taken["spec"]["renewTime"] == "2026-01-02T03:04:05.000006Z"
    later = lease.held(taken, NOW.replace(second=9))
    assert later["spec"]["leaseTransitions"] == 1
    assert later["spec"]["acquireTime"] == taken["spec"]["acquireTime"]
    assert later["spec"]["renewTime"] == "2026-01-02T03:04:09.000006Z"
    assert later["metadata"]["resourceVersion"] == "1"  # so that a write over another holder's fails


def test_the_deadline_precedes_the_expiry_of_the_lease():
    assert DEADLINE_SECONDS + RETRY_SECONDS <= LEASE_SECONDS


class OneLease:
    """Fake API server with one Lease and optimistic locking. Each request takes LATENCY."""

    def __init__(self) -> None:
        self.obj = {"metadata": {"name": "l", "namespace": "n", "resourceVersion": "1"}}
        self.deployment = {"metadata": {"name": "d", "uid": "of-d"}}
        self.fail: ApiError | None = None
        self.writes = 0

    async def get(self, kind, namespace, name):
        await asyncio.sleep(LATENCY)
        if self.fail:
            raise self.fail
        found = self.obj if kind.kind == "Lease" else self.deployment
        if found is None:
            raise ApiError(404, "NotFound", f"{kind.plural} {name!r} not found")
        return found

    async def request(self, method, path, body, timeout):
        await asyncio.sleep(LATENCY)
        assert (method, path) == ("POST", "/apis/coordination.k8s.io/v1/namespaces/n/leases")
        assert body["metadata"]["name"] == "l"
        if self.obj is not None:
            raise ApiError(409, "AlreadyExists", "leases 'l' already exists")
        self.obj = {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}
        return self.obj

    async def update_lease(self, lease, timeout):
        await asyncio.sleep(LATENCY)
        if self.fail:
            raise self.fail
        if self.obj is None:
            raise ApiError(404, "NotFound", "leases 'l' not found")
        if lease["metadata"]["resourceVersion"] != self.obj["metadata"]["resourceVersion"]:
            raise ApiError(409, "Conflict", "the object has been modified")
        self.writes += 1
        version = str(int(self.obj["metadata"]["resourceVersion"]) + 1)
        self.obj = {**lease, "metadata": {**lease["metadata"], "resourceVersion": version}}
        return self.obj


def elector(api, identity):
    return LeaderElector(api, "n", "l", Lease(identity, now), "d")


def test_a_missing_lease_is_created_with_the_deployment_as_owner():
    async def scene():
        api = OneLease()
        api.obj = None
        one = elector(api, "a")
        assert not await one._try()
        assert one.reads
        (owner,) = api.obj["metadata"]["ownerReferences"]
        assert owner == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "of-d"}

    run_simulated(scene())


def test_a_new_lease_is_free_only_after_the_deadline_of_a_former_leader():
    clock = Clock()
    lease, made = Lease("me", clock), Lease.new("n", "l", None)
    for clock.now, free in ((0, False), (DEADLINE_SECONDS, False), (DEADLINE_SECONDS + 0.1, True)):
        assert lease.can_acquire(made) is free, clock.now


def test_after_a_deletion_of_the_lease_the_leader_ends_before_another_leads():
    async def scene():
        api = OneLease()
        a, b = elector(api, "a"), elector(api, "b")
        await a.acquire()
        keeper = asyncio.create_task(a.keep())
        waiter = asyncio.create_task(b.acquire())
        await asyncio.sleep(2.5 * LEASE_SECONDS)
        assert a.in_time()
        api.obj = None
        while not waiter.done():
            await asyncio.sleep(LATENCY / 4)
            assert not (a.in_time() and b.leads)
        assert isinstance(keeper.exception(), LostLease)
        assert api.obj["spec"]["holderIdentity"] == "b"

    run_simulated(scene())


def test_without_its_deployment_the_operator_makes_no_lease():
    """Simulates an uninstall of the operator."""

    async def scene():
        api = OneLease()
        api.obj = api.deployment = None
        one = elector(api, "a")
        assert not await one._try()
        assert not one.reads
        assert api.obj is None

    run_simulated(scene())


def test_an_operator_outside_a_deployment_creates_a_lease_without_owner():
    async def scene():
        api = OneLease()
        api.obj = api.deployment = None
        assert not await LeaderElector(api, "n", "l", Lease("a", now))._try()
        assert "ownerReferences" not in api.obj["metadata"]

    run_simulated(scene())


def test_of_two_operators_only_one_creates_the_lease():
    async def scene():
        api = OneLease()
        api.obj = None
        a, b = elector(api, "a"), elector(api, "b")
        await asyncio.gather(a._try(), b._try())
        assert api.obj["spec"]["holderIdentity"] == "unknown"

    run_simulated(scene())


@pytest.mark.parametrize("first", [True, False])
def test_a_lease_is_released_although_shutdown_cancelled_a_request_that_succeeded(first):
    """Checks the request that acquires the Lease (`first`) and the one that renews it."""

    async def scene():
        api = OneLease()
        one = elector(api, "a")
        if not first:
            await one.acquire()
        carried_out = api.update_lease

        async def without_an_answer(lease, timeout):
            await carried_out(lease, timeout)
            await asyncio.Event().wait()

        api.update_lease = without_an_answer
        request = asyncio.create_task(one.acquire() if first else one._renew())
        while api.writes < (1 if first else 2):
            await asyncio.sleep(LATENCY)
        request.cancel()
        await asyncio.wait((request,))
        api.update_lease = carried_out
        assert api.obj["spec"]["holderIdentity"] == "a"
        await one.release()
        assert api.obj["spec"]["holderIdentity"] == ""

    run_simulated(scene())


def test_a_lease_of_another_holder_is_not_released():
    async def scene():
        api = OneLease()
        one = elector(api, "a")
        await one.acquire()
        await api.update_lease(Lease("b").held(api.obj, NOW), timeout=1)
        await one.release()
        assert api.obj["spec"]["holderIdentity"] == "b"

    run_simulated(scene())


def test_a_standby_knows_whether_it_can_read_the_lease():
    async def scene():
        api = OneLease()
        await api.update_lease(Lease("b").held(api.obj, NOW), timeout=1)
        one = elector(api, "a")
        assert not one.reads
        for api.fail in (None, ApiError(401, "Unauthorized", "no"), None, ApiError(403, "Forbidden", "no")):
            assert not await one._try()
            assert one.reads == (api.fail is None)

    run_simulated(scene())


def test_a_leader_is_in_time_until_its_deadline():
    async def scene():
        one = elector(OneLease(), "a")
        assert not one.in_time()
        await one.acquire()
        await asyncio.sleep(DEADLINE_SECONDS - 3 * LATENCY)
        assert one.in_time()
        await asyncio.sleep(2 * LATENCY)
        assert not one.in_time()

    run_simulated(scene())


def test_of_two_operators_one_leads_and_the_other_follows_a_release_immediately():
    async def scene():
        api = OneLease()
        a, b = elector(api, "a"), elector(api, "b")
        await a.acquire()
        keeper = asyncio.create_task(a.keep())
        waiter = asyncio.create_task(b.acquire())
        await asyncio.sleep(2.5 * LEASE_SECONDS)
        assert a.in_time()
        assert not b.leads
        keeper.cancel()
        await a.release()
        assert not a.leads
        start = now()
        await waiter
        assert now() - start <= RETRY_SECONDS + 3 * LATENCY
        assert b.leads
        assert api.obj["spec"]["holderIdentity"] == "b"

    run_simulated(scene())


def test_a_standby_follows_a_crashed_holder_after_the_lease_expires():
    async def scene():
        api = OneLease()
        a, b = elector(api, "a"), elector(api, "b")
        await a.acquire()  # it never renews
        start = now()
        await b.acquire()
        assert LEASE_SECONDS < now() - start < LEASE_SECONDS + 1

    run_simulated(scene())


def test_a_holder_that_cannot_renew_ends_at_the_deadline_before_its_lease_expires():
    async def scene():
        api = OneLease()
        a = elector(api, "a")
        await a.acquire()
        api.fail = ApiError(0, "Unreachable", "no answer")
        with pytest.raises(LostLease, match="not renewed"):
            await a.keep()
        assert now() == pytest.approx(DEADLINE_SECONDS)  # `acquire` began at 0

    run_simulated(scene())


def test_a_renewal_that_fails_is_tried_again_before_the_deadline():
    async def scene():
        api = OneLease()
        a = elector(api, "a")
        await a.acquire()
        succeed, tries = api.update_lease, []

        async def every_other(lease, timeout):
            tries.append(now())
            if len(tries) % 2:
                raise ApiError(500, "InternalError", "etcd")
            return await succeed(lease, timeout)

        api.update_lease = every_other
        keeper = asyncio.create_task(a.keep())
        await asyncio.sleep(20 * LEASE_SECONDS)
        assert not keeper.done()
        assert a.in_time()
        assert len(tries) > 60
        keeper.cancel()

    run_simulated(scene())


def test_a_holder_that_finds_another_holder_ends_immediately():
    async def scene():
        api = OneLease()
        a = elector(api, "a")
        await a.acquire()
        await api.update_lease(Lease("b").held(api.obj, NOW), 1)
        with pytest.raises(LostLease, match="held by b"):
            await a.keep()

    run_simulated(scene())


def test_a_label_of_another_client_on_the_lease_does_not_end_the_leadership():
    async def scene():
        api = OneLease()
        a = elector(api, "a")
        await a.acquire()
        labelled = {**api.obj, "metadata": {**api.obj["metadata"], "labels": {"x": "y"}}}
        await api.update_lease(labelled, 1)
        keeper = asyncio.create_task(a.keep())
        await asyncio.sleep(2.5 * LEASE_SECONDS)
        assert not keeper.done()
        assert a.in_time()
        keeper.cancel()
        assert api.obj["spec"]["holderIdentity"] == "a"
        assert api.obj["metadata"]["labels"] == {"x": "y"}

    run_simulated(scene())


def test_a_restored_older_lease_ends_the_leadership_although_the_holder_is_the_same():
    """Simulates an etcd that was restored from a backup: its Lease is older than the last one that the elector read."""

    async def scene():
        api = OneLease()
        a = elector(api, "a")
        await a.acquire()
        backup = api.obj
        for _ in range(3):
            await a._renew()
        api.obj = backup
        with pytest.raises(LostLease, match="restored from a backup"):
            await a.keep()

    run_simulated(scene())


def test_acquiring_a_lease_is_retried_while_requests_fail(caplog):
    async def scene():
        api = OneLease()
        api.fail = ApiError(404, "NotFound", "leases not found")
        a = elector(api, "a")
        waiter = asyncio.create_task(a.acquire())
        await asyncio.sleep(2.5 * LEASE_SECONDS)
        assert not waiter.done()
        api.fail = None
        await waiter
        assert a.leads

    run_simulated(scene())
    assert "cannot read or write the Lease n/l" in caplog.text


def test_losing_the_lease_ends_the_process_before_it_can_write_again(monkeypatch):
    class Exited(Exception):
        pass

    def leave():
        raise Exited

    monkeypatch.setattr(module, "exit_at_once", leave)

    async def scene():
        api = OneLease()
        a = elector(api, "a")
        stopped = asyncio.Event()

        async def work():
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()

        running = asyncio.create_task(module.run_leader_election(a, work))
        await asyncio.sleep(2.5 * LEASE_SECONDS)
        assert a.in_time()
        await api.update_lease(Lease("b").held(api.obj, NOW), 1)
        with pytest.raises(Exited):
            await running
        await stopped.wait()

    run_simulated(scene())


def test_a_new_lease_has_the_labels_of_the_operators_deployment_and_none_of_helm():
    labels = {"team": "platform", "app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": "unmask-operator-0.1.0"}
    owner = {"metadata": {"name": "d", "uid": "u", "labels": labels}}
    assert Lease.new("n", "l", owner)["metadata"]["labels"] == {"team": "platform"}
    assert Lease.new("n", "l", {"metadata": {"name": "d", "uid": "u"}})["metadata"]["labels"] == {}
