"""Tests of the operator with a failing API server, and after its own failures."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from e2e.cluster import ApiServer, Kube
from e2e.cluster.operator_process import OperatorProcess, install
from tests.operator.live.objects import accepted, demo
from tests.operator.proxy import WRITES, FaultProxy
from unmask_operator.controller.manager import WORKERS

pytestmark = pytest.mark.cluster

FULL = {"networkPolicy": {}, "replicas": 2}  # creates one child of most kinds
HOURS = 4 * 3600.0  # seconds: longer than a Lease of `operator_main` lasts
LEASE = ("coordination.k8s.io/v1", "Lease", "unmask-operator")


@pytest.fixture
def proxied(api_server: ApiServer, admin: Kube, namespace: str, fault_proxy: FaultProxy) -> Iterator[OperatorProcess]:
    """Yields an operator that reaches the API server through the proxy."""
    install(api_server, admin, namespace, [namespace])
    with OperatorProcess(api_server, namespace, [namespace], server=fault_proxy.url) as process:
        yield process


def drop_watches(admin: Kube, proxy: FaultProxy) -> int:
    """Breaks all watches, after they are open, and returns their number."""
    admin.wait("the watches", lambda: proxy.watching() >= 8)
    return proxy.drop_watches()


def test_deletions_while_no_watch_is_open_are_noticed(admin, namespace, proxied, fault_proxy):
    """The resource version of a watch has expired: kopf lists again, and the resync finds the deletion."""
    accepted(admin, demo(namespace))
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


def test_an_error_inside_a_watch_ends_the_process_and_the_next_leader_notices_changes(
    admin, namespace, proxied, fault_proxy
):
    accepted(admin, demo(namespace))
    fault_proxy.fail(500, r"/services\?.*watch=", in_stream=True)
    drop_watches(admin, fault_proxy)
    assert proxied.wait() != 0
    assert "operator exiting: Error in the watch-stream" in proxied.log()
    assert admin.get(*LEASE, namespace)["spec"]["holderIdentity"] == "", (
        "the operator did not release the Lease, so the next leader must wait"
    )
    admin.delete(admin.get("v1", "Service", "demo", namespace))
    proxied.start()
    admin.wait("the Service is back", lambda: admin.find("v1", "Service", "demo", namespace))


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


def test_an_operator_that_is_stopped_before_its_watches_exits_without_an_error(admin, namespace, proxied, fault_proxy):
    """Checks the time when kopf lists the API groups in tasks that it does not cancel."""
    assert proxied.terminate() == 0
    listing = fault_proxy.fail(200, "^/apis$", headers_only=True, after=1)
    proxied.start()
    admin.wait("kopf lists the API groups", lambda: listing.hits > 1)
    assert proxied.terminate() == 0
    lines = [json.loads(line) for line in proxied.log().splitlines()]
    assert [line for line in lines if line["level"] in ("warning", "error")] == []
