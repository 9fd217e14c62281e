"""The measurement of the operator at scale, with few services: what it counts must hold on any machine."""

from __future__ import annotations

import pytest

from e2e.cluster.config import environment
from tests.operator.scale.run import Options, measure

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        environment().kubeconfig is not None, reason="it counts by the audit log of a cluster of its own"
    ),
]


def test_each_child_is_created_once_nothing_is_written_at_rest_and_a_new_leader_writes_only_the_lease() -> None:
    result = measure(Options(services=5, rest=2.0, watched=2.0, kill=False))
    assert result["ready_at_the_end"] == 5
    apply, rest, failover = result["apply"], result["rest"], result["failover"]
    created = {what: count for what, count in apply["requests"].items() if what.startswith("create ")}
    created.pop("create events", None)  # one per transition: as many as the pods' states that the operator sees
    assert "create deployments" in created
    assert {count for what, count in created.items() if "dry run" not in what} == {5}, created
    assert not {what for what in apply["refused"] if what != "get discovery"}  # of a CRD that is not there
    assert set(rest["written"]) <= {"update leases"}
    assert set(failover["written"]) == {"update leases"}
    assert failover["errors"] == 0
