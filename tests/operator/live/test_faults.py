"""Tests of the operator with a failing API server, and after its own failures."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from e2e.cluster import ApiServer, Kube
from tests.operator.live.objects import children, demo, wait_condition, wait_settled
from tests.operator.live.process import OperatorProcess, install, reset_lease
from tests.operator.proxy import WRITES, FaultProxy
from unmask_operator.controller.manager import WORKERS

pytestmark = pytest.mark.cluster

FULL = {"networkPolicy": {}, "replicas": 2}  # creates one child of most kinds
HOURS = 4 * 3600.0  # seconds: longer than a Lease of `operator_main` lasts
LEASE = ("coordination.k8s.io/v1", "Lease", "unmask-operator")
RECONCILES = 'unmask_operator_reconciles_total{result="ok"}'
EDITED = {"networkPolicy": None, "engine": {"maxNumReqs": 5}, "service": {"annotations": {"a": "b"}}}


@pytest.fixture
def proxied(api_server: ApiServer, admin: Kube, namespace: str, fault_proxy: FaultProxy) -> Iterator[OperatorProcess]:
    """Yields an operator that reaches the API server through the proxy."""
    install(api_server, admin, namespace, [namespace])
    with OperatorProcess(api_server, namespace, [namespace], server=fault_proxy.url) as process:
        yield process


def drop_watches(admin: Kube, proxy: FaultProxy) -> int:
    """Breaks all watches, after they are open, and returns their number."""
    admin.wait("the watches", lambda: proxy.watching() >= 8)
    dropped = proxy.drop_watches()
    assert dropped >= 8
    return dropped


FAULTS = [(status, method) for status in (409, 429, 500, 0) for method in ("POST", "PATCH")]


@pytest.mark.parametrize(("status", "method"), FAULTS)
def test_a_failing_write_is_retried_until_the_edit_is_applied(admin, namespace, proxied, fault_proxy, status, method):
    fault = fault_proxy.fail(status, f"/namespaces/{namespace}/", methods=(method,), times=2, after=1, retry_after=1)
    resource = admin.create(demo(namespace, **FULL))
    wait_condition(admin, resource, "Accepted", "True")
    admin.patch(resource, {"spec": EDITED})
    wait_condition(admin, resource, "Accepted", "True")

    def arrived() -> bool:
        made = children(admin, resource)
        edited = made["Service", "demo"]["metadata"].get("annotations", {}).get("a") == "b"
        return edited and not any(kind == "NetworkPolicy" for kind, _ in made)

    admin.wait("the edit arrives", arrived)
    assert fault.hits > 2, "the proxy did not inject both faults"


def test_a_failing_delete_is_retried(admin, namespace, proxied, fault_proxy):
    resource = admin.create(demo(namespace, networkPolicy={}))
    wait_condition(admin, resource, "Accepted", "True")
    fault_proxy.fail(500, "/networkpolicies/", methods=("DELETE",))
    admin.patch(resource, {"spec": {"networkPolicy": None}})
    admin.wait("gone", lambda: not any(kind == "NetworkPolicy" for kind, _ in children(admin, resource)))


def test_a_kind_that_cannot_be_listed_is_named_and_does_not_delay_others(api_server, admin, namespace, fault_proxy):
    install(api_server, admin, namespace, [namespace])
    resource = admin.create(demo(namespace))
    fault_proxy.fail(500, r"/services\?", methods=("GET",), times=100_000)
    with OperatorProcess(api_server, namespace, [namespace], server=fault_proxy.url) as operator:
        wait_condition(admin, resource, "Accepted", "True")
        assert operator.terminate() == 0
        operator.start()  # the operator does not know that the Service exists
        admin.patch(resource, {"spec": {"service": {"port": 81}}})
        wait_condition(admin, resource, "Accepted", "True")
        assert admin.get("v1", "Service", "demo", namespace)["spec"]["ports"][0]["port"] == 81
        assert "cannot list services: " in operator.log()


def test_no_change_is_missed_after_watches_are_dropped(admin, namespace, proxied, fault_proxy):
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    for number in range(3):
        drop_watches(admin, fault_proxy)
        admin.patch(resource, {"spec": {"service": {"annotations": {"number": str(number)}}}})

        def arrived(number: int = number) -> bool:
            service = admin.get("v1", "Service", "demo", namespace)
            return service["metadata"].get("annotations", {}).get("number") == str(number)

        admin.wait(f"edit {number}", arrived)


def test_the_operator_survives_an_outage_of_the_api_server(admin, namespace, proxied, fault_proxy):
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    not_leases = r"^(?!.*leases)"
    away = fault_proxy.fail(0, not_leases, times=1_000_000)
    watches = drop_watches(admin, fault_proxy)
    admin.patch(resource, {"spec": {"service": {"annotations": {"a": "b"}}}})
    tries = 3 * watches  # one attempt per watch immediately, further ones after pauses
    admin.wait("each watch is tried again and again", lambda: away.hits >= tries)
    fault_proxy.faults.remove(away)
    admin.wait(
        "the edit arrives", lambda: "a" in admin.get("v1", "Service", "demo", namespace)["metadata"]["annotations"]
    )
    assert proxied.process is not None
    assert proxied.process.poll() is None


def test_a_rejected_watch_is_logged_and_changes_in_the_meantime_are_noticed(admin, namespace, proxied, fault_proxy):
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    refused = fault_proxy.fail(403, r"/services\?.*watch=", times=1_000_000)
    drop_watches(admin, fault_proxy)
    admin.wait("it is named", lambda: "the test's proxy answers 403" in proxied.log())
    assert f"GET {fault_proxy.url}/api/v1/namespaces/{namespace}/services?watch=true" in proxied.log()
    admin.delete(admin.get("v1", "Service", "demo", namespace))
    fault_proxy.faults.remove(refused)
    admin.wait("the Service is back", lambda: admin.find("v1", "Service", "demo", namespace))
    assert proxied.alive()
    assert proxied.metric('unmask_operator_api_errors_total{status="403"}') > 0


def test_deletions_while_no_watch_is_open_are_noticed(admin, namespace, proxied, fault_proxy):
    """Checks the case that the resource versions of the watches have expired.

    kopf then lists again, and the resync finds the deletion.
    """
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    away = fault_proxy.fail(0, r"[?&]watch=", times=1_000_000)
    watches = drop_watches(admin, fault_proxy)
    admin.delete(admin.get("v1", "Service", "demo", namespace))
    tries = 2 * watches
    admin.wait("each watch is tried again", lambda: away.hits >= tries)
    expired = fault_proxy.fail(410, r"/services\?.*watch=", times=1, in_stream=True)
    fault_proxy.faults.remove(away)
    admin.wait("the Service is back", lambda: admin.find("v1", "Service", "demo", namespace))
    assert expired.hits >= 1
    assert proxied.alive()


@pytest.mark.parametrize("status", [400, 500])
def test_an_error_inside_a_watch_ends_the_process_and_the_next_leader_notices_changes(
    admin, namespace, proxied, fault_proxy, status
):
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    fault_proxy.fail(status, r"/services\?.*watch=", in_stream=True)
    drop_watches(admin, fault_proxy)
    assert proxied.wait() != 0
    assert "operator exiting: Error in the watch-stream" in proxied.log()
    assert admin.get(*LEASE, namespace)["spec"]["holderIdentity"] == "", (
        "the operator did not release the Lease, so the next leader must wait"
    )
    admin.delete(admin.get("v1", "Service", "demo", namespace))
    proxied.start()
    admin.wait("the Service is back", lambda: admin.find("v1", "Service", "demo", namespace))


def test_the_operator_survives_a_rejected_token(admin, namespace, proxied, fault_proxy):
    """Checks that the credentials are read again.

    They do not change here, as during a short problem of the API server or the kubelet.
    """
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    refused = fault_proxy.fail(401, r"[?&]watch=", times=20)
    drop_watches(admin, fault_proxy)
    admin.wait("the watches are refused", lambda: refused.hits > 20)
    admin.patch(resource, {"spec": {"service": {"annotations": {"a": "b"}}}})
    admin.wait(
        "the edit arrives", lambda: "a" in admin.get("v1", "Service", "demo", namespace)["metadata"]["annotations"]
    )
    assert proxied.alive()


def test_a_throttled_watch_continues_when_the_server_allows_it(admin, namespace, proxied, fault_proxy):
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    throttled = fault_proxy.fail(429, r"/services\?.*watch=", times=3, retry_after=1)
    drop_watches(admin, fault_proxy)
    admin.wait("it is throttled", lambda: throttled.hits >= 1)
    admin.delete(admin.get("v1", "Service", "demo", namespace))
    admin.wait("the Service is back", lambda: admin.find("v1", "Service", "demo", namespace))
    admin.wait("the watch goes on", lambda: throttled.hits > 3)
    assert proxied.alive()


def test_a_standby_without_permissions_is_not_ready(api_server, admin, namespace):
    install(api_server, admin, namespace, [namespace])
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role"}
    own = {"name": f"{namespace}-own", "namespace": namespace}
    admin.delete({**role, "kind": "RoleBinding", "metadata": own})
    process = OperatorProcess(api_server, namespace, [namespace])
    process.start(wait=False)
    try:
        admin.wait("it tells that it may not", lambda: "cannot read or write the Lease" in process.log())
        assert process.status("/healthz") == 200
        assert process.status("/readyz") == 503
    finally:
        process.kill()


def test_a_leader_that_cannot_renew_its_lease_ends_at_its_deadline(admin, namespace, proxied, fault_proxy):
    admin.wait("it leads", lambda: proxied.metric("unmask_operator_leader"))
    fault = fault_proxy.fail(500, "/leases/", times=1_000_000)
    admin.wait("it tries to renew the Lease", lambda: fault.hits >= 2)
    assert proxied.alive(), "the operator ended before its deadline"
    proxied.advance_clock(HOURS)
    assert proxied.wait() != 0
    assert "no longer leading" in proxied.log()


def test_an_outage_longer_than_the_lease_ends_the_leader_and_the_next_one_catches_up(
    admin, namespace, proxied, fault_proxy
):
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    admin.wait("it leads", lambda: proxied.metric("unmask_operator_leader"))
    away = fault_proxy.fail(0, times=1_000_000)
    drop_watches(admin, fault_proxy)
    admin.delete(admin.get("v1", "Service", "demo", namespace))
    admin.patch(resource, {"spec": {"engine": {"maxNumReqs": 5}}})
    admin.wait("its requests get no answer", lambda: away.hits >= 10)
    proxied.advance_clock(HOURS)
    assert proxied.wait() != 0
    assert "no longer leading" in proxied.log()
    fault_proxy.faults.remove(away)
    proxied.start(wait=False)
    admin.wait("it looks at the Lease", lambda: proxied.status("/healthz") == 200)
    reset_lease(admin, namespace)
    admin.wait("the Service is back", lambda: admin.find("v1", "Service", "demo", namespace))

    def arrived() -> bool:
        (main,) = children(admin, resource)["Deployment", "demo"]["spec"]["template"]["spec"]["containers"]
        return "--max-num-reqs=5" in main["args"]

    admin.wait("the edit arrives", arrived)


def test_of_two_operators_only_the_leader_writes(api_server, admin, namespace):
    install(api_server, admin, namespace, [namespace])
    account = f"system:serviceaccount:{namespace}:unmask-operator"

    def created() -> list[str]:
        """Returns the resource types of the created children, one entry per request."""
        events = [e for e in api_server.requests(account) if e["verb"] == "create" and e["stage"] == "ResponseComplete"]
        kinds = [e["objectRef"]["resource"] for e in events if "dryRun" not in e["requestURI"]]
        return [kind for kind in kinds if kind != "events"]

    with (
        OperatorProcess(api_server, namespace, [namespace], name="a") as first,
        OperatorProcess(api_server, namespace, [namespace], name="b") as second,
    ):
        admin.wait("a leader", lambda: first.metric("unmask_operator_leader") + second.metric("unmask_operator_leader"))
        resource = admin.create(demo(namespace, **FULL))
        wait_condition(admin, resource, "Accepted", "True")
        before = {key: obj["metadata"]["resourceVersion"] for key, obj in children(admin, resource).items()}
        assert first.metric("unmask_operator_leader") + second.metric("unmask_operator_leader") == 1

        leader, standby = (first, second) if first.metric("unmask_operator_leader") else (second, first)
        assert leader.terminate() == 0
        admin.wait("the other one leads", lambda: standby.metric("unmask_operator_leader"))  # it released the Lease
        admin.wait("it has looked at the resource", lambda: standby.metric(RECONCILES))
        after = {key: obj["metadata"]["resourceVersion"] for key, obj in children(admin, resource).items()}
        assert after == before
        assert len(created()) == len(set(created())) == len(after)
        admin.patch(resource, {"spec": {"service": {"annotations": {"a": "b"}}}})
        admin.wait("b works", lambda: "a" in admin.get("v1", "Service", "demo", namespace)["metadata"]["annotations"])


def test_a_leader_that_was_frozen_writes_nothing_when_it_resumes(api_server, admin, namespace, fault_proxy):
    """Checks that the leader does not use answers that arrived while it was frozen, because another operator leads."""
    install(api_server, admin, namespace, [namespace])
    resources, started = WORKERS + 4, 10
    stopped: list[str] = []

    def hold(method: str, path: str, body: bytes) -> bool:
        """Holds every write after the first few, so that the operator is in the middle of its work on any machine."""
        if method not in WRITES or "/leases/" in path or len(fault_proxy.writes()) < started:
            return False
        stopped.append(path)
        return True

    fault_proxy.hold = hold
    with OperatorProcess(api_server, namespace, [namespace], server=fault_proxy.url, name="a") as first:
        admin.wait("a leads", lambda: first.metric("unmask_operator_leader"))
        assert first.process is not None
        for number in range(resources):
            admin.create(demo(namespace, f"s{number}", **FULL))
        # Every worker waits for an answer. Otherwise one may be frozen between its check of the Lease and its request.
        admin.wait("every worker waits for an answer", lambda: len(stopped) >= WORKERS)
        first.process.send_signal(signal.SIGSTOP)
        try:
            answered = len(fault_proxy.writes()) + len(stopped)
            fault_proxy.release()
            admin.wait("the answers are at hand", lambda: len(fault_proxy.writes()) >= answered)
            assert len(admin.list("apps/v1", "Deployment", namespace)) < resources, (
                "the operator reconciled all services before it was stopped"
            )
            with OperatorProcess(api_server, namespace, [namespace], name="b") as second:
                second.advance_clock(HOURS)
                admin.wait("b leads", lambda: second.metric("unmask_operator_leader"))
                before = len(fault_proxy.writes())
                first.process.send_signal(signal.SIGCONT)
                assert first.wait() != 0
                assert "no longer leading" in first.log()
                assert [w for w in fault_proxy.writes()[before:] if "/leases/" not in w.path] == []
        finally:
            first.process.send_signal(signal.SIGCONT)


def test_a_standby_follows_a_killed_leader_after_the_lease_expires_and_writes_only_the_lease(
    api_server, admin, namespace, fault_proxy
):
    install(api_server, admin, namespace, [namespace])
    with OperatorProcess(api_server, namespace, [namespace], name="a") as first:
        resource = admin.create(demo(namespace, **FULL))
        wait_condition(admin, resource, "Accepted", "True")
        wait_settled(admin, namespace)
        with OperatorProcess(api_server, namespace, [namespace], server=fault_proxy.url, name="b") as second:

            def looks() -> int:
                return sum(seen.method == "GET" and "/leases/" in seen.path for seen in fault_proxy.seen)

            assert [seen.path for seen in fault_proxy.seen if "/leases/" not in seen.path] == [], (
                "the standby sent requests other than those for the Lease"
            )
            first.kill()
            enough = looks() + 3  # one read that began earlier, one of the last renewal, one after that was processed
            admin.wait("the standby has seen the last renewal", lambda: looks() >= enough)
            assert second.metric("unmask_operator_leader") == 0
            second.advance_clock(HOURS)
            admin.wait("it has looked at the resource", lambda: second.metric(RECONCILES))
            wrote = [write.path for write in fault_proxy.writes()]
            assert wrote
            assert [path for path in wrote if "/leases/" not in path] == []
