"""Tests of the cost per resource: writes of a reconcile without changes, and memory."""

import asyncio
import json
import tracemalloc
from datetime import UTC, datetime

from tests.operator.samples import resource
from unmask_operator.controller.reconciler import Reconciler
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.kinds import DLMS, PODS, kind_of
from unmask_operator.metrics import Metrics
from unmask_operator.objects import SERVICE_LABEL, Key
from unmask_operator.plan.observed import Observed
from unmask_operator.settings import Settings

LARGEST_BYTES = 100_000
SPEC = {
    "replicas": 2,
    "networkPolicy": {"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]},
    "autoscaling": {"provider": "HPA", "minReplicas": 2, "maxReplicas": 3, "targets": {"queuedRequestsPerReplica": 2}},
    "engine": {"maxNumReqs": 8},
    "podTemplate": {"spec": {"containers": [{"name": "main", "env": [{"name": f"N{i}"} for i in range(20)]}]}},
}


class Api:
    """Fake API server that accepts every write and adds managedFields. `objects` are the created children."""

    def __init__(self):
        self.objects, self.writes = [], 0

    def _taken(self, obj):
        self.writes += 1
        fields = [{"manager": "m", "operation": "Update", "fieldsV1": {f"f:{i}": {} for i in range(50)}}] * 2
        meta = {"uid": f"uid-{self.writes}", **obj["metadata"], "resourceVersion": str(self.writes + 10)}
        return json.loads(json.dumps({**obj, "metadata": {**meta, "managedFields": fields}}))

    async def create(self, obj, dry_run=False):
        taken = self._taken(obj)
        if not dry_run and obj["kind"] != "Event":
            self.objects.append(taken)
        return taken

    async def patch_status(self, namespace, name, uid, patch):
        self.service = self._taken({**self.service, "status": {**self.service.get("status", {}), **patch}})
        return self.service


def reconciler(cache, api):
    async def observe(service, children, pods):
        return Observed(service, datetime.now(UTC), children, pods)

    return Reconciler(api, cache, Settings(), observe, Metrics(cache, lambda: 0))


def made(name="demo"):
    """Returns a cache with a resource, its children and two pods, and the API server that has these objects."""
    cache, api = Cache(), Api()
    api.service = resource(name, **SPEC)
    api.service["metadata"]["resourceVersion"] = "1"
    cache.put(DLMS, api.service)
    asyncio.run(reconciler(cache, api).reconcile(Key("default", name)))
    template = next(obj for obj in api.objects if obj["kind"] == "Deployment")["spec"]["template"]
    status = {"phase": "Running", "podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    for number in range(2):
        meta = {**template["metadata"], "name": f"{name}-{number}", "namespace": "default", "uid": f"{name}-{number}"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"], "status": status}
        assert meta["labels"][SERVICE_LABEL] == name
        api.objects.append(api._taken(pod))
    return cache, api


def test_a_reconcile_that_finds_nothing_to_do_writes_nothing():
    cache, api = made()
    for obj in api.objects:
        if obj["kind"] == "Pod":
            cache.put(PODS, obj)
    asyncio.run(reconciler(cache, api).reconcile(Key("default", "demo")))
    one, before = reconciler(cache, api), api.writes
    asyncio.run(one.reconcile(Key("default", "demo")))
    assert api.writes == before


def test_the_cache_needs_little_memory_per_resource():
    """Checks the memory with separately parsed objects, because lists and watches parse each answer separately."""
    _, api = made("name-zz")
    texts = [json.dumps(obj) for obj in [api.service, *api.objects]]
    cache, count = Cache(), 100
    tracemalloc.start()
    for number in range(count):
        for text in texts:
            obj = json.loads(text.replace("name-zz", f"name-{number}").replace('"uid-', f'"uid-{number}-'))
            cache.put(kind_of(obj["apiVersion"], obj["kind"]), obj)
    each = tracemalloc.get_traced_memory()[0] / count
    tracemalloc.stop()
    assert len(list(cache.resources())) == count
    assert len(cache.pods(Key("default", "name-7"))) == 2
    assert each < LARGEST_BYTES
