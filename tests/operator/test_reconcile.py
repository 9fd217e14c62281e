"""Tests that an edit during a reconcile is not lost, whether the status answer or a watch reports it first."""

import asyncio
import copy
from datetime import UTC, datetime

import pytest

from tests.operator.samples import resource
from unmask_operator.controller.reconciler import Reconciler
from unmask_operator.kube.cache import Cache
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import DLMS
from unmask_operator.metrics import Metrics
from unmask_operator.objects import Key
from unmask_operator.plan.observed import Observed
from unmask_operator.settings import Settings

KEY = Key("default", "demo")


class Api:
    """Fake API that accepts every write.

    Immediately before a write of the status, another client applies `edit` to the resource. `edited` is the result.
    """

    def __init__(self, service, edit):
        self.service, self._edit, self.version = service, edit, 1

    def _numbered(self, obj):
        self.version += 1
        return {**obj, "metadata": {"uid": "a-child's", **obj["metadata"], "resourceVersion": str(self.version)}}

    async def create(self, obj, dry_run=False):
        return self._numbered(obj)

    async def patch_status(self, namespace, name, uid, patch):
        written = copy.deepcopy(self.service)
        written["metadata"] |= self._edit.get("metadata", {})
        written["spec"] |= self._edit.get("spec", {})
        self.edited = self._numbered(written)
        return self._numbered({**written, "status": patch})


async def observe(service, children, pods):
    return Observed(service, datetime.now(UTC), children, pods)


def numbered(service, version="1"):
    return {**service, "metadata": {**service["metadata"], "resourceVersion": version}}


def reconciler_of(api):
    cache = Cache()
    cache.put(DLMS, api.service)
    metrics = Metrics(cache, lambda: 0)
    return cache, metrics, Reconciler(api, cache, Settings(), observe, metrics)


EDITS = (
    {},
    {"spec": {"suspend": True}, "metadata": {"generation": 2}},
    {"spec": {"suspend": True}},  # of the generation that was reconciled: an older watch dropped a new field
    {"metadata": {"annotations": {"serving.unmask.dev/restartedAt": "now"}}},
)


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_in_the_status_answer_is_reconciled_immediately(edit):
    api = Api(numbered(resource()), edit)
    cache, _, reconciler = reconciler_of(api)
    result = asyncio.run(reconciler.reconcile(KEY))
    assert not result.refused
    assert result.requeue_after == (0.0 if edit else None)
    assert cache.put(DLMS, api.edited) is None, (
        "the watch event changed the cache, although the status answer contained the edit"
    )


def test_the_status_answer_does_not_restore_a_resource_that_no_longer_matches_the_selector():
    api = Api(numbered(resource()), {"metadata": {"labels": {"track": "canary"}}})
    cache, _, reconciler = reconciler_of(api)
    assert asyncio.run(reconciler.reconcile(KEY)).requeue_after is None
    assert cache.delete(DLMS, api.service) == KEY, (
        "the resource left the cache before the watch reported its new labels"
    )
    assert cache.resource(KEY) is None


class Broken(Api):
    """Fake API that fails on budgets, as while their webhook is unavailable. `events` are the written Events."""

    def __init__(self, service):
        super().__init__(service, {})
        self.events, self.status = [], None

    async def create(self, obj, dry_run=False):
        if obj["kind"] == "PodDisruptionBudget":
            raise ApiError(500, "InternalError", 'failed calling webhook "budgets.example.com"')
        if obj["kind"] == "Event":
            self.events.append((obj["type"], obj["reason"], obj["note"]))
        return self._numbered(obj)

    async def patch_status(self, namespace, name, uid, patch):
        self.status = patch
        return await super().patch_status(namespace, name, uid, patch)


def test_repeated_server_errors_on_a_child_are_reported_next_to_all_other_conditions():
    api = Broken(numbered(resource(podDisruptionBudget={})))
    cache, metrics, reconciler = reconciler_of(api)

    with pytest.raises(ApiError, match="webhook"):  # not reported, because it may be temporary
        asyncio.run(reconciler.reconcile(KEY, first_attempt=True))
    assert (api.status, api.events) == (None, [])
    assert "Deployment" in {ref.kind for ref in cache.children(KEY)}

    assert asyncio.run(reconciler.reconcile(KEY)).refused, "the failed reconcile is not retried"
    conditions = {c["type"]: (c["status"], c["reason"], c["message"]) for c in api.status["conditions"]}
    sentence = (
        'the API server failed on PodDisruptionBudget demo-engine: failed calling webhook "budgets.example.com"; '
        "the operator retries"
    )
    assert conditions["Accepted"] == ("Unknown", "ApiError", sentence)
    assert conditions["Scheduled"][:2] == ("False", "Pending")
    assert api.events == [("Warning", "ApiError", sentence)]
    assert metrics.registry.get_sample_value("unmask_operator_api_errors_total", {"status": "500"}) == 2


def test_an_object_of_a_list_replaces_one_that_lacks_a_new_field():
    cache = Cache()
    watched, listed = numbered(resource(), "7"), numbered(resource(suspend=True), "7")
    assert cache.put(DLMS, watched) == KEY
    assert cache.put(DLMS, listed, answered=True) == KEY
    assert cache.resource(KEY)["spec"]["suspend"]
    assert cache.put(DLMS, listed, answered=True) is None
    assert cache.put(DLMS, watched) is None
    assert cache.resource(KEY)["spec"]["suspend"]
