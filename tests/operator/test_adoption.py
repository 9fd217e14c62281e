"""Tests of adoption: with the annotation a resource adopts matching children without a controller.

No pod restarts.
"""

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
    make,
    observe,
    resource,
    running,
    settled,
    template,
)
from tests.operator.test_adopted_templates import RECORDED
from unmask_operator.objects import ADOPT, RESTARTED_AT, SERVICE_LABEL, Obj, Ref, controller_uid
from unmask_operator.plan.adoption import adopted_revision, orphans, owner_reference
from unmask_operator.plan.observed import Observed
from unmask_operator.settings import Settings
from unmask_operator.status import status

EVERYTHING: dict[str, Any] = {
    "model": {"uri": "hf://org/name"},
    "lora": {"adapters": [{"name": "a", "uri": "demo://roman"}]},
    "autoscaling": {"provider": "HPA", "maxReplicas": 3},
    "networkPolicy": {},
    "monitoring": {"podMonitor": {}},
}


def orphaned(observed: Observed, annotation: str | None = "true", lost: tuple[str, ...] = ()) -> Observed:
    """Returns a resource that was created again, with the children of its predecessor, which have lost their owner."""
    children = {}
    for ref, obj in observed.children.items():
        if ref.kind not in lost:
            obj = copy.deepcopy(obj)
            del obj["metadata"]["ownerReferences"]
            children[ref] = obj
    service = copy.deepcopy(observed.resource)
    service["metadata"] |= {"uid": "uid-2", "annotations": {ADOPT: annotation} if annotation else {}}
    return replace(observed, resource=service, children=children)


def adopt(observed: Observed) -> Observed:
    """Returns the observed state after the owner references were written."""
    meta = observed.resource["metadata"]
    children = dict(observed.children)
    for obj in orphans(observed):
        found = copy.deepcopy(obj)
        found["metadata"].setdefault("ownerReferences", []).append(owner_reference(meta["name"], meta["uid"]))
        children[Ref.of(obj)] = found
    return replace(observed, children=children)


def accepted(observed: Observed, made: Any) -> Obj:
    found: Obj = next(c for c in status(observed, made)["conditions"] if c["type"] == "Accepted")
    return found


def test_every_child_is_adopted_and_the_pods_stay_unchanged():
    before = running(**EVERYTHING)
    observed = orphaned(before)
    assert {Ref.of(obj) for obj in orphans(observed)} == before.children.keys()
    after = adopt(observed)
    made = make(after)
    assert settled(made, after)
    assert template(made) == template(make(before))
    assert made.problems == ()
    assert {controller_uid(obj) for obj in after.children.values()} == {"uid-2"}


@pytest.mark.parametrize("annotation", [None, "", "false", "True", "yes"])
def test_nothing_is_adopted_without_the_annotation_and_the_message_names_it(annotation):
    observed = orphaned(running(), annotation)
    assert orphans(observed) == []
    made = make(observed)
    assert made.children == ()
    found = accepted(observed, made)
    assert (found["status"], found["reason"]) == ("False", "NameConflict")
    assert f'annotate this resource with {ADOPT}: "true"' in found["message"]


def changed(obj: Obj, **metadata: Any) -> Obj:
    return {**obj, "metadata": {**obj["metadata"], **metadata}}


OTHER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "x", "controller": True}
FOREIGN: dict[str, Any] = {
    "another controller": lambda obj: changed(obj, ownerReferences=[OTHER]),
    "an earlier resource that still controls it": lambda obj: changed(
        obj, ownerReferences=[owner_reference("demo", "uid-1")]
    ),
    "no labels": lambda obj: changed(obj, labels={}),
    "managed by somebody else": lambda obj: changed(
        obj, labels={**obj["metadata"]["labels"], "app.kubernetes.io/managed-by": "Helm"}
    ),
    "the label of another resource": lambda obj: changed(obj, labels={**obj["metadata"]["labels"], SERVICE_LABEL: "b"}),
    "on its way out": lambda obj: changed(obj, deletionTimestamp="2026-01-01T00:00:00Z"),
    "a name that no child has": lambda obj: changed(obj, name="demo-other"),
}


@pytest.mark.parametrize(
    "kind", ["Deployment", "Service", "ServiceAccount", "ControllerRevision", "PodDisruptionBudget"]
)
@pytest.mark.parametrize("why", FOREIGN)
def test_objects_that_may_belong_to_others_are_not_adopted(kind, why):
    observed = orphaned(running())
    ref = next(ref for ref in observed.children if ref.kind == kind)
    foreign = FOREIGN[why](observed.children[ref])
    others = {r: obj for r, obj in observed.children.items() if r != ref}
    observed = replace(observed, children={**others, Ref.of(foreign): foreign})
    assert Ref.of(foreign) not in {Ref.of(obj) for obj in orphans(observed)}
    assert len(orphans(observed)) == len(others)


def test_an_owner_that_is_no_controller_stays_an_owner():
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "x"}
    observed = orphaned(running())
    ref = Ref("v1", "Service", "demo")
    observed.children[ref]["metadata"]["ownerReferences"] = [config_map]
    after = adopt(observed)
    assert [owner["uid"] for owner in after.children[ref]["metadata"]["ownerReferences"]] == ["x", "uid-2"]


def test_an_adopted_service_is_suspended_scaled_and_edited_as_any_other():
    after = adopt(orphaned(running()))
    assert child(make(edit(after, suspend=True)), "Deployment")["spec"]["replicas"] == 0
    assert child(make(edit(after, replicas=4)), "Deployment")["spec"]["replicas"] == 4
    edited = make(edit(after, engine={"maxNumReqs": 7}))
    assert template(edited) != template(make(after))
    assert [c["metadata"]["name"] for c in edited.children if c["kind"] == "ControllerRevision"] == ["demo-r2"]


def test_adoption_by_a_newer_operator_restarts_no_pod():
    newer = Settings(runtime_image="registry.example/unmask-runtime:9.9.9")
    before = running()
    for lost in ((), ("ControllerRevision",)):
        after = adopt(orphaned(before, lost=lost))
        made = make(after, newer)
        assert template(made) == template(make(before)), lost
        assert not made.up_to_date


def test_a_restored_restart_annotation_restarts_nothing():
    observed = observe(resource(annotations={RESTARTED_AT: "2026-01-01"}))
    before = apply(observed, make(observed))
    for lost in ((), ("ControllerRevision",)):
        made = make(adopt(orphaned(before, lost=lost)))
        assert template(made) == template(make(before)), lost


def defaulted(observed: Observed) -> Observed:
    """Adds defaults to the Deployment, as the API server does."""
    live = child_of(observed)
    live["spec"]["template"]["metadata"]["creationTimestamp"] = None
    live["spec"]["template"]["spec"] |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
    return observed


def child_of(observed: Observed) -> Obj:
    found: Obj = observed.children[Ref("apps/v1", "Deployment", observed.resource["metadata"]["name"])]
    return found


def test_a_deployment_without_revisions_gets_one_of_the_template_that_runs():
    before = running()
    after = adopt(defaulted(orphaned(before, lost=("ControllerRevision",))))
    made = make(after)
    assert template(made) == template(make(before))
    assert made.up_to_date
    assert [c["metadata"]["name"] for c in made.children if c["kind"] == "ControllerRevision"] == ["demo-r1"]
    settled_after = apply(after, made)
    assert settled(make(settled_after), settled_after)


def test_a_deployment_of_an_earlier_operator_without_revisions_keeps_its_template():
    (live,) = [o for o in RECORDED if o["kind"] == "Deployment" and o["metadata"]["name"] == "demo"]
    live = copy.deepcopy(live)
    live["metadata"].pop("ownerReferences")
    observed = observe(resource(annotations={ADOPT: "true"}), live)
    after = adopt(defaulted(observed))
    made = make(after)
    assert "creationTimestamp" not in template(made)["metadata"]
    expected = {**child_of(after)["spec"]["template"], "metadata": template(made)["metadata"]}
    assert template(made) == expected
    assert not made.up_to_date
    restarted = copy.deepcopy(after)
    restarted.resource["metadata"]["annotations"][RESTARTED_AT] = "now"
    assert make(restarted).up_to_date


def test_without_the_annotation_a_lost_revision_is_made_from_the_spec_as_before():
    observed = running()
    children = {ref: obj for ref, obj in observed.children.items() if ref.kind != "ControllerRevision"}
    assert adopted_revision(replace(observed, children=children), SETTINGS) is None


def test_a_resource_with_an_invalid_spec_is_adopted_and_can_be_suspended():
    after = adopt(orphaned(running(replicas=3)))
    broken = edit(after, engine={"blockSize": 0}, suspend=True)
    made = make(broken)
    assert accepted(broken, made)["reason"] == "InvalidSpec"
    assert made.replicas == 0
    assert child(made, "Deployment")["spec"]["replicas"] == 0


@pytest.mark.parametrize(
    ("reason", "grant"),
    [('deployments.apps "demo" is forbidden: cannot set an ownerRef', True), ("denied by policy owners", False)],
)
def test_a_refused_adoption_is_reported_with_the_sentence_of_the_api_server(reason, grant):
    observed = replace(orphaned(running()), not_adopted={Ref("apps/v1", "Deployment", "demo"): reason})
    found = accepted(observed, make(observed))
    assert found["reason"] == "NameConflict"
    assert f"rejected the adoption of Deployment demo ({reason})" in found["message"]
    assert ("rbac.adoption" in found["message"]) is grant
