"""Tests of reconciles that an edit, a deletion, an error of one child or a kill of the operator interrupts."""

import contextlib
import copy
from dataclasses import replace

import pytest

from tests.operator.fake_api import DEPLOYMENT, KEY, FakeApi
from tests.operator.pod_states import RUNNING, SCHEDULED, container, make_pod
from tests.operator.samples import observe, resource, running
from unmask_operator.controller.reconciler import Result
from unmask_operator.kinds import DLMS, PODS
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Ref

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
            api.resource = api.stored(edited)

    before, api.wrong = api.resource, edit
    assert api.reconcile() == Result(refused=False, requeue_after=requeue)
    assert (api.cache.put(DLMS, api.resource) is None) == cached
    if cached:
        assert api.cache.resource(KEY)["spec"] == {**before["spec"], **spec}


@pytest.mark.parametrize("status", [404, 409])
def test_a_resource_that_is_deleted_before_its_status_is_written_leaves_the_cache(status):
    api = FakeApi(observe(resource()))
    api.wrong = lambda verb, obj: ApiError(status, "Reason", "uid") if verb == "status" else None
    assert api.reconcile() == Result()
    assert api.cache.resource(KEY) is None


def test_repeated_server_errors_on_a_child_are_reported_next_to_all_other_conditions():
    api = FakeApi(observe(resource(podDisruptionBudget={})))
    away = ApiError(500, "InternalError", 'failed calling webhook "budgets.example.com"')
    api.wrong = lambda verb, obj: away if obj.get("kind") == "PodDisruptionBudget" else None
    with pytest.raises(ApiError, match="webhook"):  # not reported, because it may be temporary
        api.reconcile(first_attempt=True)
    assert not [verb for verb, obj in api.writes if verb == "status" or obj["kind"] == "Event"]
    assert "Deployment" in {ref.kind for ref in api.cache.children(KEY)}

    assert api.reconcile().refused, "the failed reconcile is not retried"
    accepted, scheduled = (api.conditions[kind] for kind in ("Accepted", "Scheduled"))
    assert (accepted["status"], accepted["reason"]) == ("Unknown", "ApiError")
    assert f"PodDisruptionBudget demo-engine: {away.message}" in accepted["message"]
    assert (scheduled["status"], scheduled["reason"]) == ("False", "Pending")
    assert [(event["type"], event["note"]) for event in api.events("ApiError")] == [("Warning", accepted["message"])]
    assert api.metrics.registry.get_sample_value("unmask_operator_api_errors_total", {"status": "500"}) == 2


def test_a_reconcile_that_finds_nothing_to_do_writes_nothing():
    observed = running(replicas=1, networkPolicy={"from": [{"podSelector": {}}]}, autoscaling={"maxReplicas": 3})
    loading = {"phase": "Running", "conditions": [SCHEDULED], "containerStatuses": [container(state=RUNNING)]}
    api = FakeApi(replace(observed, pods=[make_pod(observed, loading)]))
    api.change(DEPLOYMENT, lambda obj: obj["metadata"].update(annotations={}))  # so that it is written
    api.reconcile()
    before = len(api.writes)
    assert before
    api.restart()
    api.reconcile()
    assert len(api.writes) == before


def test_a_pod_that_is_preempted_or_fails_is_reported_once():
    def reported(name, pod_status, meta=None):
        pod = make_pod(api.observed, pod_status)
        api.put({**pod, "metadata": {**pod["metadata"], **(meta or {}), "name": name, "uid": name}})
        api.reconcile()
        api.reconcile()
        return [(event["type"], event["reason"]) for event in api.written("create") if event["kind"] == "Event"]

    disruption = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for a"}
    shutdown = {"phase": "Failed", "reason": "NodeShutdown", "message": "the node shuts down"}
    api = FakeApi(running(replicas=2))
    api.put({**make_pod(api.observed, shutdown), "metadata": {**make_pod(api.observed, {})["metadata"], "name": "old"}})
    before = reported("p2", {"phase": "Running"})
    reported("p2", {"phase": "Running", "conditions": [disruption]}, {"deletionTimestamp": "2026-01-02T03:00:05Z"})
    after = reported("p3", {**shutdown, "reason": "UnexpectedAdmissionError"})
    assert [one for one in after if one not in before] == [
        ("Warning", "PreemptionByScheduler"),
        ("Warning", "UnexpectedAdmissionError"),
    ]


def test_the_condition_names_the_preempted_pod_until_its_place_is_filled():
    def reconciled(name, pod_status, node, **meta):
        pod = make_pod(api.observed, pod_status, node)
        api.put({**pod, "metadata": {**pod["metadata"], **meta, "name": name, "uid": name}})
        api.reconcile()
        return api.conditions["Scheduled"]

    disruption = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "for a"}
    no_node = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient cpu."}
    api = FakeApi(running())
    reconciled("gone", {"phase": "Running", "conditions": [disruption]}, "n1", deletionTimestamp="2026-01-02T03:00:05Z")
    waiting = reconciled("waits", {"phase": "Pending", "conditions": [no_node]}, None)
    assert waiting["message"].startswith("pod gone was preempted by a pod of higher priority; ")
    api.cache.delete(PODS, api.objects.pop(Ref("v1", "Pod", "gone")))
    api.reconcile()
    assert "pod gone was preempted" in api.conditions["Scheduled"]["message"]
    reconciled("waits", {"phase": "Running", "conditions": [SCHEDULED]}, "n1")
    later = reconciled("another", {"phase": "Pending", "conditions": [no_node]}, None)
    assert "preempted" not in later["message"]


def test_a_pod_that_no_scheduler_handles_is_looked_at_again():
    api = FakeApi(replace(running(), pods=[make_pod(running(), {"phase": "Pending"}, None)]))
    assert api.reconcile().requeue_after == 30.0


class Killed(Exception):
    pass


EDITED = {"networkPolicy": None, "engine": {"maxNumReqs": 5}, "service": {"annotations": {"a": "b"}}}


@pytest.mark.parametrize("edited", [False, True], ids=["new", "edited"])
def test_an_operator_killed_after_any_write_reaches_the_same_state(edited):
    def end(writes):
        api, left = FakeApi(running(networkPolicy={}, replicas=2)), writes
        if edited:
            api.edit(**EDITED)
        else:
            api.objects.clear()

        def kill(verb, obj):
            nonlocal left
            left -= not verb.startswith("dry-")
            if left < 0:
                raise Killed

        api.wrong = kill
        with contextlib.suppress(Killed):
            api.reconcile()
        killed, left = left < 0, 1000
        api.restart()
        api.reconcile()
        objects = copy.deepcopy(api.objects)
        for obj in objects.values():
            del obj["metadata"]["uid"], obj["metadata"]["resourceVersion"]
        return killed, (api.resource["status"], objects)

    _, expected = end(1000)
    assert ("NetworkPolicy" in {ref.kind for ref in expected[1]}) != edited
    writes, killed = 0, True
    while killed:
        killed, state = end(writes)
        assert state == expected, f"killed after {writes} writes"
        writes += 1
    assert writes > 4
