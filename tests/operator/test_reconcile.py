"""Tests of reconciles that an edit, a deletion, an error of one child or a kill of the operator interrupts."""

import asyncio
import contextlib
import copy

import pytest

from tests.operator.fake_api import KEY, FakeApi
from tests.operator.samples import observe, resource
from tests.operator.test_field_conflicts import World
from unmask_operator.controller.reconciler import Result
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import DLMS

SUSPEND = {"suspend": True}
RESTART = {"annotations": {"serving.unmask.dev/restartedAt": "now"}}
# An edit immediately before the write of the status; whether it is reconciled immediately, and put into the cache.
EDITS = {
    "none": ({}, {}, None, True),
    "of the spec": (SUSPEND, {"generation": 2}, 0.0, True),
    "of a field that an older watch dropped": (SUSPEND, {}, 0.0, True),
    "of an annotation": ({}, RESTART, 0.0, True),
    "of labels, which may no longer match the selector": ({}, {"labels": {"track": "canary"}}, None, False),
}


@pytest.mark.parametrize(("spec", "meta", "requeue", "cached"), EDITS.values(), ids=EDITS)
def test_an_edit_in_the_status_answer_is_reconciled_immediately(spec, meta, requeue, cached):
    api = FakeApi(observe(resource()))

    def edit(verb, obj):
        if verb == "status":
            old = api.resource
            edited = {**old, "spec": {**old["spec"], **spec}, "metadata": {**old["metadata"], **meta}}
            api.resource = api._stored(edited)

    before, api.refuse = api.resource, edit
    assert api.reconcile() == Result(refused=False, requeue_after=requeue)
    assert (api.cache.put(DLMS, api.resource) is None) == cached
    if cached:
        assert api.cache.resource(KEY)["spec"] == {**before["spec"], **spec}


@pytest.mark.parametrize("status", [404, 409])
def test_a_resource_that_is_deleted_before_its_status_is_written_leaves_the_cache(status):
    api = FakeApi(observe(resource()))
    api.refuse = lambda verb, obj: ApiError(status, "Reason", "uid") if verb == "status" else None
    assert api.reconcile() == Result()
    assert api.cache.resource(KEY) is None


def test_repeated_server_errors_on_a_child_are_reported_next_to_all_other_conditions():
    api = FakeApi(observe(resource(podDisruptionBudget={})))
    away = ApiError(500, "InternalError", 'failed calling webhook "budgets.example.com"')
    api.refuse = lambda verb, obj: away if obj.get("kind") == "PodDisruptionBudget" else None
    with pytest.raises(ApiError, match="webhook"):  # not reported, because it may be temporary
        asyncio.run(api.reconciler.reconcile(KEY, first_attempt=True))
    assert not [verb for verb, obj in api.writes if verb == "status" or obj["kind"] == "Event"]
    assert "Deployment" in {ref.kind for ref in api.cache.children(KEY)}

    assert api.reconcile().refused, "the failed reconcile is not retried"
    conditions = {c["type"]: (c["status"], c["reason"], c["message"]) for c in api.resource["status"]["conditions"]}
    status, reason, message = conditions["Accepted"]
    assert (status, reason) == ("Unknown", "ApiError")
    assert f"PodDisruptionBudget demo-engine: {away.message}" in message
    assert conditions["Scheduled"][:2] == ("False", "Pending")
    assert [(event["type"], event["note"]) for event in api.events("ApiError")] == [("Warning", message)]
    assert api.metrics.registry.get_sample_value("unmask_operator_api_errors_total", {"status": "500"}) == 2


class Killed(Exception):
    pass


class Mortal(World):
    """A world whose operator is killed after `left` writes."""

    left = 1000

    def _call(self, verb, obj):
        self.left -= not verb.startswith("dry-")
        if self.left < 0:
            raise Killed
        super()._call(verb, obj)

    async def patch_status(self, namespace, name, uid, patch):
        self._call("status", self.service)
        return await super().patch_status(namespace, name, uid, patch)

    def state(self):
        """Returns conditions and children without unique values."""
        objects = copy.deepcopy(self.objects)
        for obj in objects.values():
            obj["metadata"] = {k: v for k, v in obj["metadata"].items() if k not in ("uid", "resourceVersion")}
        return self.service["status"], objects


EDITED = {"networkPolicy": None, "engine": {"maxNumReqs": 5}, "service": {"annotations": {"a": "b"}}}


@pytest.mark.parametrize("edited", [False, True], ids=["new", "edited"])
def test_an_operator_killed_after_any_write_reaches_the_same_state(edited):
    def end(writes):
        world = Mortal(networkPolicy={}, replicas=2)
        if edited:
            world.edit(**EDITED)
        else:
            world.objects.clear()
        world.left = writes
        with contextlib.suppress(Killed):
            world.reconcile()
        left, world.left = world.left, 1000
        world.restart()
        world.reconcile()
        return left < 0, world.state()

    _, expected = end(1000)
    assert ("NetworkPolicy" in {ref.kind for ref in expected[1]}) != edited
    writes, killed = 0, True
    while killed:
        killed, state = end(writes)
        assert state == expected, f"killed after {writes} writes"
        writes += 1
    assert writes > 4
