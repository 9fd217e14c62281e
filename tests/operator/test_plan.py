"""Tests of plans: created, pruned, unchanged and repaired children, from one state of the cluster to the next."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.operator.samples import (
    SETTINGS,
    apply,
    child,
    edit,
    kinds,
    make,
    observe,
    resource,
    running,
    settled,
    template,
)
from unmask_operator.objects import Ref, controller_uid
from unmask_operator.plan.plan import NODES_SECONDS, Plan, Problem, last_accepted, plan

EVERYTHING: dict[str, Any] = {
    "replicas": 2,
    "autoscaling": {
        "provider": "HPA",
        "minReplicas": 2,
        "maxReplicas": 4,
        "targets": {"queuedRequestsPerReplica": 4},
    },
    "networkPolicy": {},
    "monitoring": {"podMonitor": {}},
}


def test_children_are_created_in_order_and_belong_to_the_resource() -> None:
    made = make(observe(resource(**EVERYTHING)))
    assert kinds(made) == [
        "ServiceAccount",
        "ControllerRevision",
        "NetworkPolicy",
        "Service",
        "Deployment",
        "PodDisruptionBudget",
        "HorizontalPodAutoscaler",
        "PodMonitor",
    ]
    assert made.problems == ()
    for made_child in made.children:
        assert controller_uid(made_child) == "uid-1"
        assert made_child["metadata"]["ownerReferences"][0]["blockOwnerDeletion"]
        assert made_child["metadata"]["labels"]["serving.unmask.dev/service"] == "demo"


def test_a_written_plan_leaves_nothing_to_do() -> None:
    observed = running(**EVERYTHING)
    again = make(observed)
    assert settled(again, observed)
    assert again == make(observed), "the same observed state led to another plan"


def test_children_of_a_removed_section_are_deleted() -> None:
    observed = edit(running(**EVERYTHING), autoscaling=None, networkPolicy=None, monitoring=None, replicas=1)
    made = make(observed)
    assert [ref.kind for ref in made.delete if ref.kind != "ControllerRevision"] == [
        "HorizontalPodAutoscaler",
        "PodMonitor",
        "NetworkPolicy",
    ]
    after = apply(observed, made)
    assert settled(make(after), after)


def test_only_children_with_the_owners_uid_and_label_are_deleted() -> None:
    observed = edit(running(**EVERYTHING), networkPolicy=None)
    observed = apply(observed, replace(make(observed), delete=()))
    (pin,) = make(observed).delete[:1]  # a revision of the same template
    ref = next(ref for ref in observed.children if ref.kind == "NetworkPolicy")
    live = observed.children[ref]
    for change in (
        {"labels": {}},
        {"ownerReferences": [{**live["metadata"]["ownerReferences"][0], "uid": "another"}]},
        {"ownerReferences": []},
        {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    ):
        other = {**live, "metadata": {**live["metadata"], **change}}
        assert make(replace(observed, children={**observed.children, ref: other})).delete == (pin,)
    assert make(observed).delete == (pin, ref)


@pytest.mark.parametrize("kind", ["Service", "ServiceAccount", "Deployment"])
def test_a_foreign_object_is_named_and_nothing_is_created(kind: str) -> None:
    first = make(observe(resource()))
    foreign = copy.deepcopy(child(first, kind))
    foreign["metadata"]["ownerReferences"] = []
    made = make(observe(resource(), foreign))
    assert (made.children, made.delete) == ((), ())
    (problem,) = made.problems
    assert (problem.condition, problem.reason) == ("Accepted", "NameConflict")
    assert f"{kind} {foreign['metadata']['name']} exists" in problem.message
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


@pytest.mark.parametrize("spec", [{}, {"replicas": "many"}], ids=["accepted", "not"])
def test_a_service_with_listed_nodes_is_reconciled_again(spec: dict[str, Any]) -> None:
    """Checks this because nodes are not watched.

    Without an unschedulable pod no nodes are listed, and no requeue is needed.
    """
    observed = edit(running(), **spec)

    def made(nodes: Any) -> Plan:
        known = replace(observed, nodes=nodes)
        return last_accepted(known, SETTINGS, Problem("Accepted", "InvalidSpec", "")) if spec else make(known)

    assert made(None).requeue_seconds is None
    for nodes in ([], [{"metadata": {"name": "gpu-1"}}]):
        assert made(nodes).requeue_seconds == NODES_SECONDS


def test_suspending_stops_the_pods_and_deletes_only_the_disruption_budget() -> None:
    observed = edit(running(replicas=2), suspend=True)
    made = make(observed)
    assert made.replicas == child(made, "Deployment")["spec"]["replicas"] == 0
    assert [ref.kind for ref in made.delete] == ["PodDisruptionBudget"]
    after = edit(apply(observed, made), suspend=None)
    resumed = make(after)
    assert child(resumed, "Deployment")["spec"]["replicas"] == 2
    assert template(resumed) == template(make(running(replicas=2)))


@pytest.mark.parametrize(("asked", "got"), [(0, 2), (1, 2), (3, 3), (9, 4)])
@pytest.mark.parametrize("provider", ["HPA", "Builtin"])
def test_replicas_stay_within_the_autoscalers_bounds(provider: str, asked: int, got: int) -> None:
    scaling = {**EVERYTHING["autoscaling"], "provider": provider}
    made = make(observe(resource(replicas=asked, autoscaling=scaling)))
    assert made.replicas == child(made, "Deployment")["spec"]["replicas"] == got


def test_a_missing_kind_is_reported_and_the_rest_is_rendered() -> None:
    made = make(observe(resource(**EVERYTHING), apis=frozenset()))
    assert "PodMonitor" not in kinds(made)
    assert "Deployment" in kinds(made)
    (problem,) = made.problems
    assert (problem.condition, problem.reason) == ("UpToDate", "MissingCRD")
    assert "podmonitors.monitoring.coreos.com" in problem.message


BAD = {"podTemplate": {"spec": {"containers": [{"name": "main", "args": []}]}}}


def test_an_invalid_spec_keeps_the_children_of_the_last_accepted_one() -> None:
    observed = running(replicas=2, service={"port": 81})
    good = make(observed)
    bad = make(edit(observed, service={"port": 82}, **BAD))
    (problem,) = bad.problems
    assert (problem.condition, problem.reason) == ("Accepted", "InvalidSpec")
    assert "spec.podTemplate.spec.containers[main].args" in problem.message
    assert bad.children == good.children
    assert bad.delete == ()


def test_a_resource_with_an_invalid_spec_is_still_scaled_and_suspended() -> None:
    observed = edit(running(replicas=2), replicas=4, **BAD)
    assert child(make(observed), "Deployment")["spec"]["replicas"] == 4
    assert child(make(edit(observed, suspend=True)), "Deployment")["spec"]["replicas"] == 0


def test_an_invalid_first_spec_creates_nothing() -> None:
    made = make(observe(resource(**BAD)))
    assert (made.children, made.delete, made.replicas) == ((), (), 0)
    assert [p.reason for p in made.problems] == ["InvalidSpec"]


def test_an_unreadable_spec_does_not_change_the_children() -> None:
    observed = running()
    good = make(observed)
    unreadable = edit(observed, engine={"pageSize": "many"})
    made = make(unreadable)
    assert made.children == good.children
    (problem,) = made.problems
    assert (problem.condition, problem.reason) == ("Accepted", "InvalidSpec")
    assert "spec.engine.pageSize" in problem.message
    assert last_accepted(edit(observed, replicas="many"), SETTINGS, problem).children == good.children


def test_the_plan_is_about_its_resource() -> None:
    observed = observe(resource(name="other"))
    assert {c["metadata"]["name"] for c in plan(observed, SETTINGS).children} == {
        "other",
        "other-engine",
        "other-r1",
    }
