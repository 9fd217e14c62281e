"""Tests of plans: created, deleted, unchanged and repaired children, from one state of the cluster to the next."""

import copy
from dataclasses import replace

import pytest

from tests.operator import samples
from tests.operator.samples import apply, child, edit, kinds, make, observe, resource, running, settled, template
from unmask_operator.objects import Obj, Ref, controller_uid
from unmask_operator.plan.plan import NODES_SECONDS, Problem, last_accepted

SCALING = {"provider": "HPA", "minReplicas": 2, "maxReplicas": 4}
OPTIONAL: Obj = {"autoscaling": SCALING, "networkPolicy": {}, "monitoring": {"podMonitor": {}}}
BAD = {"podTemplate": {"spec": {"containers": [{"name": "main", "args": []}]}}}
NETWORK_POLICY = Ref("networking.k8s.io/v1", "NetworkPolicy", "demo-engine")


def test_children_are_created_in_order_and_belong_to_the_resource() -> None:
    observed = observe(resource(**OPTIONAL))
    made = make(observed)
    assert kinds(made) == [
        *("ServiceAccount", "ControllerRevision", "NetworkPolicy", "Service", "Deployment", "PodDisruptionBudget"),
        *("HorizontalPodAutoscaler", "PodMonitor"),
    ]
    assert made.problems == ()
    for one in made.children:
        assert controller_uid(one) == "uid-1"
        assert one["metadata"]["ownerReferences"][0]["blockOwnerDeletion"]
        assert one["metadata"]["labels"]["serving.unmask.dev/service"] == "demo"
    after = apply(observed, made)
    assert settled(make(after), after)


def test_children_of_a_removed_section_are_deleted() -> None:
    observed = edit(running(**OPTIONAL), **dict.fromkeys(OPTIONAL))
    made = make(observed)
    deleted = [ref.kind for ref in made.delete if ref.kind != "ControllerRevision"]
    assert deleted == ["HorizontalPodAutoscaler", "PodMonitor", "NetworkPolicy"]
    after = apply(observed, made)
    assert settled(make(after), after)


def test_only_children_with_the_owners_uid_and_label_are_deleted() -> None:
    observed = edit(running(**OPTIONAL), networkPolicy=None)
    observed = apply(observed, replace(make(observed), delete=()))
    revision, live = make(observed).delete[0], observed.children[NETWORK_POLICY]
    assert make(observed).delete == (revision, NETWORK_POLICY)
    for change in (
        {"labels": {}},
        {"ownerReferences": [{**live["metadata"]["ownerReferences"][0], "uid": "another"}]},
        {"ownerReferences": []},
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    ):
        other = {**live, "metadata": {**live["metadata"], **change}}
        assert make(replace(observed, children={**observed.children, NETWORK_POLICY: other})).delete == (revision,)


@pytest.mark.parametrize("kind", ["Service", "Deployment"])
def test_a_foreign_object_is_named_and_nothing_is_created(kind: str) -> None:
    foreign = copy.deepcopy(child(make(observe(resource())), kind))
    foreign["metadata"]["ownerReferences"] = []
    made = make(observe(resource(), foreign))
    assert (made.children, made.delete) == ((), ())
    (problem,) = made.problems
    assert (problem.condition, problem.reason) == ("Accepted", "NameConflict")
    assert f"{kind} demo exists" in problem.message
    assert made.requeue_seconds


def test_a_foreign_object_that_replaces_a_child_is_not_changed_and_the_rest_is_reconciled() -> None:
    observed = running(replicas=2)
    ref = Ref("v1", "Service", "demo")
    foreign = {**observed.children[ref], "metadata": {"name": "demo", "namespace": "default"}}
    made = make(edit(replace(observed, children={**observed.children, ref: foreign}), replicas=3))
    assert [p.reason for p in made.problems] == ["NameConflict"]
    assert "Service" not in kinds(made)
    assert child(made, "Deployment")["spec"]["replicas"] == 3
    assert made.delete == ()


def test_a_service_with_listed_nodes_is_reconciled_again() -> None:
    """Nodes are not watched, and are listed only for an unschedulable pod."""
    observed = running()
    invalid = Problem("Accepted", "InvalidSpec", "")
    for nodes, seconds in ((None, None), ([], NODES_SECONDS), ([{"metadata": {"name": "gpu-1"}}], NODES_SECONDS)):
        known = replace(observed, nodes=nodes)
        assert make(known).requeue_seconds == last_accepted(known, samples.SETTINGS, invalid).requeue_seconds == seconds


def test_suspending_stops_the_pods_and_deletes_only_the_disruption_budget() -> None:
    observed = edit(running(replicas=2), suspend=True)
    made = make(observed)
    assert made.replicas == child(made, "Deployment")["spec"]["replicas"] == 0
    assert [ref.kind for ref in made.delete] == ["PodDisruptionBudget"]
    resumed = make(edit(apply(observed, made), suspend=None))
    assert child(resumed, "Deployment")["spec"]["replicas"] == 2
    assert template(resumed) == template(make(running(replicas=2)))


@pytest.mark.parametrize(("asked", "got"), [(0, 2), (1, 2), (3, 3), (9, 4)])
def test_replicas_stay_within_the_autoscalers_bounds(asked: int, got: int) -> None:
    made = make(observe(resource(replicas=asked, autoscaling=SCALING)))
    assert made.replicas == child(made, "Deployment")["spec"]["replicas"] == got


def test_a_missing_kind_is_reported_and_the_rest_is_rendered() -> None:
    made = make(observe(resource(**OPTIONAL), apis=frozenset()))
    assert kinds(made)[-1] == "HorizontalPodAutoscaler"
    (problem,) = made.problems
    assert (problem.condition, problem.reason) == ("UpToDate", "MissingCRD")
    assert "podmonitors.monitoring.coreos.com" in problem.message


@pytest.mark.parametrize(
    ("spec", "field"),
    [(BAD, "spec.podTemplate.spec.containers[main].args"), ({"engine": {"pageSize": "many"}}, "spec.engine.pageSize")],
)
def test_an_invalid_spec_keeps_the_children_of_the_last_accepted_one(spec: Obj, field: str) -> None:
    observed = running(service={"port": 81})
    invalid = edit(observed, service={"port": 82}, **spec)
    made = make(invalid)
    (problem,) = made.problems
    assert (problem.condition, problem.reason) == ("Accepted", "InvalidSpec")
    assert field in problem.message
    assert (made.children, made.delete) == (make(observed).children, ())
    assert last_accepted(edit(observed, replicas="many"), samples.SETTINGS, problem).children == made.children
    assert child(make(edit(invalid, replicas=4)), "Deployment")["spec"]["replicas"] == 4
    assert child(make(edit(invalid, suspend=True)), "Deployment")["spec"]["replicas"] == 0


def test_an_invalid_first_spec_creates_nothing() -> None:
    made = make(observe(resource(**BAD)))
    assert (made.children, made.delete, made.replicas) == ((), (), 0)
    assert [p.reason for p in made.problems] == ["InvalidSpec"]
