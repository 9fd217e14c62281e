"""Tests of the cost per resource: writes of a reconcile without changes, and memory."""

import json
import tracemalloc
from dataclasses import replace

from tests.operator.fake_api import KEY, FakeApi
from tests.operator.samples import make, running, template
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.kinds import kind_of
from unmask_operator.objects import Key

LARGEST_BYTES = 100_000
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


def managed(obj):
    """Adds the fields of two managers, as an API server does."""
    fields = [{"manager": "m", "operation": "Update", "fieldsV1": {f"f:{i}": {} for i in range(50)}}] * 2
    return {**obj, "metadata": {**obj["metadata"], "managedFields": fields}}


def test_the_cache_needs_little_memory_per_resource():
    """The objects are parsed separately, as each answer to a list or watch is."""
    api = written()
    objects = [api.resource, *api.cache.children(KEY).values(), *api.cache.pods(KEY)]
    texts = [json.dumps(managed(obj)) for obj in objects]
    cache, count = Cache(), 100
    tracemalloc.start()
    for number in range(count):
        for text in texts:
            obj = json.loads(text.replace("demo", f"name-{number}").replace('"uid-', f'"uid-{number}-'))
            cache.put(kind_of(obj["apiVersion"], obj["kind"]), obj)
    each = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    assert len(list(cache.resources())) == count
    assert len(cache.pods(Key("default", "name-7"))) == 2
    assert each < LARGEST_BYTES
