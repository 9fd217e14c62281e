"""An edit that comes while a resource is reconciled is not lost, whichever way the operator hears of it first."""

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
    """Takes every write. `edit` is what somebody did to the resource right before its status was written: `edited`."""

    def __init__(self, service, edit):
        self._service, self._edit, self.version = service, edit, 1

    def _numbered(self, obj):
        self.version += 1
        return {**obj, "metadata": {"uid": "a-child's", **obj["metadata"], "resourceVersion": str(self.version)}}

    async def create(self, obj, dry_run=False):
        return self._numbered(obj)

    async def patch_status(self, namespace, name, uid, patch):
        written = copy.deepcopy(self._service)
        written["metadata"] |= self._edit.get("metadata", {})
        written["spec"] |= self._edit.get("spec", {})
        self.edited = self._numbered(written)
        return self._numbered({**written, "status": patch})


async def observe(service, children, pods):
    return Observed(service, datetime.now(UTC), children, pods)


EDITS = (
    {},
    {"spec": {"suspend": True}, "metadata": {"generation": 2}},
    {"spec": {"suspend": True}},  # of the generation that was reconciled: an older watch knew no such field
    {"metadata": {"annotations": {"serving.unmask.dev/restartedAt": "now"}}},
)


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_that_the_status_answer_brings_is_reconciled_at_once(edit):
    service = resource()
    service["metadata"]["resourceVersion"] = "1"
    cache = Cache()
    cache.put(DLMS, service)
    api = Api(service, edit)
    reconciler = Reconciler(api, cache, Settings(), observe, Metrics(cache, lambda: 0))
    result = asyncio.run(reconciler.reconcile(KEY))
    assert not result.refused
    assert result.requeue_after == (0.0 if edit else None)
    assert cache.put(DLMS, api.edited) is None, "the watch's word of the edit is no news any more"


def test_a_resource_that_has_changed_hands_is_not_taken_back_with_the_status_answer():
    service = resource()
    service["metadata"]["resourceVersion"] = "1"
    cache = Cache()
    cache.put(DLMS, service)
    api = Api(service, {"metadata": {"labels": {"track": "canary"}}})
    reconciler = Reconciler(api, cache, Settings(), observe, Metrics(cache, lambda: 0))
    assert asyncio.run(reconciler.reconcile(KEY)).requeue_after is None
    assert cache.delete(DLMS, service) == KEY, "the watch's word that it is ours no more, which may come later"
    assert cache.resource(KEY) is None


class Broken(Api):
    """Fails on budgets, as while an admission webhook for them is away. `events` are those that were written."""

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
    service = resource(podDisruptionBudget={})
    service["metadata"]["resourceVersion"] = "1"
    cache = Cache()
    cache.put(DLMS, service)
    api = Broken(service)
    metrics = Metrics(cache, lambda: 0)
    reconciler = Reconciler(api, cache, Settings(), observe, metrics)

    with pytest.raises(ApiError, match="webhook"):  # the first time it may be over in a second
        asyncio.run(reconciler.reconcile(KEY, first_attempt=True))
    assert (api.status, api.events) == (None, [])
    assert "Deployment" in {ref.kind for ref in cache.children(KEY)}

    assert asyncio.run(reconciler.reconcile(KEY)).refused, "it is tried again"
    conditions = {c["type"]: (c["status"], c["reason"], c["message"]) for c in api.status["conditions"]}
    sentence = (
        'the API server failed on PodDisruptionBudget demo-engine: failed calling webhook "budgets.example.com"; '
        "the operator retries"
    )
    assert conditions["Accepted"] == ("Unknown", "ApiError", sentence)
    assert conditions["Scheduled"][:2] == ("False", "Pending")
    assert api.events == [("Warning", "ApiError", sentence)]
    assert metrics.registry.get_sample_value("unmask_operator_api_errors_total", {"status": "500"}) == 2


def test_a_list_is_believed_more_than_a_watch_that_knew_no_such_field():
    cache = Cache()
    watched, listed = resource(), resource(suspend=True)
    for obj in (watched, listed):
        obj["metadata"]["resourceVersion"] = "7"
    assert cache.put(DLMS, watched) == KEY
    assert cache.put(DLMS, listed, answered=True) == KEY
    assert cache.resource(KEY)["spec"]["suspend"]
    assert cache.put(DLMS, listed, answered=True) is None
    assert cache.put(DLMS, watched) is None
    assert cache.resource(KEY)["spec"]["suspend"]
