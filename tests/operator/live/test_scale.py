"""Tests the benchmark of the operator at scale with few services. Its counts must hold on any machine."""

import pytest

from e2e.cluster.config import environment
from tools.bench.operator.run import Options, measure

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        environment().kubeconfig is not None, reason="it counts by the audit log of a cluster of its own"
    ),
]


def test_children_are_created_once_and_later_only_the_lease_is_written() -> None:
    result = measure(Options(services=5, rest=2.0, watched=2.0, kill=False))
    assert result["ready_at_the_end"] == 5
    apply, rest, failover = result["apply"], result["rest"], result["failover"]
    created = {what: count for what, count in apply["requests"].items() if what.startswith("create ")}
    created.pop("create events", None)  # one per transition, so their number depends on timing
    assert "create deployments" in created
    assert {count for what, count in created.items() if "dry run" not in what} == {5}, created
    assert not {what for what in apply["refused"] if what != "get discovery"}  # its CRD is not installed
    assert set(rest["written"]) <= {"update leases"}
    assert set(failover["written"]) == {"update leases"}
    assert failover["errors"] == 0
