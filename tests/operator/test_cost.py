"""Test that a reconcile without changes writes nothing."""

from dataclasses import replace

from tests.operator.fake_api import FakeApi
from tests.operator.samples import make, running, template

SPEC = {
    "replicas": 2,
    "networkPolicy": {"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]},
    "autoscaling": {"provider": "HPA", "minReplicas": 2, "maxReplicas": 3, "targets": {"queuedRequestsPerReplica": 2}},
    "engine": {"maxNumReqs": 8},
    "podTemplate": {"spec": {"containers": [{"name": "main", "env": [{"name": f"N{i}"} for i in range(20)]}]}},
}


def written():
    """Returns an API server after a reconcile, with two pods."""
    observed = running(**SPEC)
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    made = template(make(observed))
    metas = [{**made["metadata"], "name": f"demo-{n}", "namespace": "default", "uid": f"demo-{n}"} for n in range(2)]
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": made["spec"], "status": status} for meta in metas
    ]
    api = FakeApi(replace(observed, pods=pods))
    api.reconcile()
    return api


def test_a_reconcile_that_finds_nothing_to_do_writes_nothing():
    api = written()
    before = len(api.writes)
    api.restart()
    api.reconcile()
    assert len(api.writes) == before
