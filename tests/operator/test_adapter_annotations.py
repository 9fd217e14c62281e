"""Tests of the annotation that makes kubelets update the list of adapters."""

import asyncio
from dataclasses import replace

import pytest

from tests.operator.samples import SETTINGS, apply, edit, make
from tests.operator.test_adapters import LEGAL, LIST_HASH, READY, ROMAN, lora, seen
from tests.operator.test_reconcile import KEY, Api
from unmask_operator.controller import adapters
from unmask_operator.controller.reconciler import Reconciler
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import DLMS, PODS, kind_of
from unmask_operator.metrics import Metrics
from unmask_operator.objects import Ref
from unmask_operator.plan.observed import Observed


def annotated(observed, *names):
    """Returns the observed state with the hash of the current list in the annotations of these pods."""
    mark = {adapters.LIST_HASH: adapters.list_hash(observed)}
    pods = [
        {**pod, "metadata": {**pod["metadata"], "annotations": mark}} if pod["metadata"]["name"] in names else pod
        for pod in observed.pods
    ]
    return replace(observed, pods=pods)


def behind(observed):
    return [pod["metadata"]["name"] for pod in adapters.outdated_pods(observed)]


def test_ready_pods_are_notified_once_of_every_list():
    observed = seen(ROMAN, ready=(True, False, True), p1={"roman": READY})
    assert behind(observed) == ["p1", "p3"], (
        "p2 is not Ready and must not be annotated yet, because it mounts the current list at its start"
    )
    observed = annotated(observed, "p1", "p3")
    assert behind(observed) == []
    for listed_adapters in ((ROMAN, LEGAL), (LEGAL,), ()):
        edited = edit(observed, lora=lora(*listed_adapters))
        assert behind(edited) == [], "pods are due for an annotation before the list is written"
        assert behind(apply(edited, make(edited))) == ["p1", "p3"]


def test_pods_that_terminate_or_follow_no_list_are_not_notified():
    observed = seen(ROMAN, ready=(True, True))
    first, second = observed.pods
    first["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    second["spec"]["volumes"] = []
    assert behind(observed) == []
    without = {ref: child for ref, child in observed.children.items() if ref != LIST_HASH}
    assert behind(replace(seen(ROMAN), children=without)) == []


class Pods(Api):
    """Fake API that also accepts annotations of pods, except of those in `refuses`."""

    def __init__(self, service, refuses=()):
        super().__init__(service, {})
        self.refuses, self.annotated = refuses, []

    async def upgrade_managed_fields(self, live):
        return live

    async def apply(self, obj, uid, dry_run=False):
        return self._numbered(obj)

    async def delete(self, kind, namespace, name, uid):
        gone = self.cache.children(KEY)[Ref(kind.api_version, kind.kind, name)]
        self.cache.delete(kind, self._numbered(gone))  # as the watch reports it

    async def annotate_pod(self, pod, annotations):
        name = pod["metadata"]["name"]
        if name in self.refuses:
            raise self.refuses[name]
        self.annotated.append(name)
        meta = {**pod["metadata"], "annotations": {**pod["metadata"].get("annotations", {}), **annotations}}
        return self._numbered({**pod, "metadata": meta})


def reconciler(observed, api):
    """Returns a reconciler and its cache, which contains the observed objects."""
    api.cache = cache = Cache()
    cache.put(DLMS, observed.resource)
    for obj in observed.children.values():
        cache.put(kind_of(obj["apiVersion"], obj["kind"]), numbered(obj))
    for pod in observed.pods:
        cache.put(PODS, numbered(pod))

    async def observe(service, children, pods):
        return replace(observed, resource=service, children=children, pods=pods)

    return Reconciler(api, cache, SETTINGS, observe, Metrics(cache, lambda: 0)), cache


def numbered(obj):
    return {**obj, "metadata": {"uid": "a-child's", "namespace": "default", **obj["metadata"], "resourceVersion": "1"}}


def served() -> Observed:
    observed = seen(ROMAN, p1={"roman": READY}, p2={"roman": READY})
    observed.resource["metadata"]["resourceVersion"] = "1"
    return observed


def test_a_list_is_written_before_pods_are_notified():
    observed = served()
    edited = edit(observed, lora=lora(ROMAN, LEGAL))
    api = Pods(edited.resource)
    made, cache = reconciler(edited, api)
    assert asyncio.run(made.reconcile(KEY)).requeue_after == adapters.PAUSE_SECONDS
    assert api.annotated == []
    assert "legal" in cache.children(KEY)[LIST_HASH]["data"]
    assert asyncio.run(made.reconcile(KEY)).requeue_after is None
    assert api.annotated == ["p1", "p2"]
    asyncio.run(made.reconcile(KEY))
    assert api.annotated == ["p1", "p2"], "the second reconcile annotated pods again"


@pytest.mark.parametrize(
    ("error", "is_logged"),
    [(ApiError(403, "Forbidden", "may not patch pods/status"), True), (ApiError(404, "NotFound", "gone"), False)],
)
def test_a_pod_that_cannot_be_notified_delays_nothing(error, is_logged, caplog):
    observed = served()
    api = Pods(observed.resource, {"p1": error})
    made, _ = reconciler(observed, api)
    asyncio.run(made.reconcile(KEY))
    result = asyncio.run(made.reconcile(KEY))
    assert not result.refused
    assert set(api.annotated) == {"p2"}
    assert ("cannot annotate pod p1, its adapters are updated within 90 s: may not patch" in caplog.text) == is_logged
