"""Test that a reconcile without changes writes nothing."""

from dataclasses import replace

from tests.operator.fake_api import FakeApi
from tests.operator.pod_states import RUNNING, SCHEDULED, container, make_pod
from tests.operator.samples import running


def test_a_reconcile_that_finds_nothing_to_do_writes_nothing():
    observed = running(replicas=1, networkPolicy={"from": [{"podSelector": {}}]}, autoscaling={"maxReplicas": 3})
    loading = {"phase": "Running", "conditions": [SCHEDULED], "containerStatuses": [container(state=RUNNING)]}
    api = FakeApi(replace(observed, pods=[make_pod(observed, loading)]))
    api.reconcile()
    before = len(api.writes)
    assert before
    api.restart()
    api.reconcile()
    assert len(api.writes) == before
