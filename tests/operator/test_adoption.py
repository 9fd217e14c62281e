"""Tests of adoption: with the annotation a resource adopts children without a controller, and no pod restarts."""

import copy
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.operator.pod_states import check, judge
from tests.operator.samples import SETTINGS, apply, child, make, observe, resource, running, settled, template
from unmask_operator.objects import ADOPT, RESTARTED_AT, SERVICE_LABEL, Obj, Ref, controller_uid
from unmask_operator.plan.adoption import adopted_revision, orphans, owner_reference
from unmask_operator.plan.observed import Observed
from unmask_operator.settings import Settings

RECORDED = list(yaml.safe_load_all((Path(__file__).parent / "recorded/revisions.yaml").read_text(encoding="utf-8")))
EVERYTHING: dict[str, Any] = {
    "model": {"uri": "hf://org/name"}, "lora": {"adapters": [{"name": "a", "uri": "demo://roman"}]},
    "autoscaling": {"provider": "HPA", "maxReplicas": 3}, "networkPolicy": {}, "monitoring": {"podMonitor": {}},
}  # fmt: skip


def deployment(children: Iterable[Obj]) -> Obj:
    (found,) = (obj for obj in children if obj["kind"] == "Deployment")
    return found


def recorded(name: str) -> tuple[Observed, Obj]:
    """Returns the recorded state of a resource, and its Deployment."""
    children = [obj for obj in RECORDED if obj["metadata"]["labels"][SERVICE_LABEL] == name]
    (pin,) = (obj for obj in children if obj["kind"] == "ControllerRevision")
    spec = {**pin["data"]["spec"], "replicas": deployment(children)["spec"]["replicas"]}
    return observe(resource(name, **spec), *children), deployment(children)


# -- adoption of children


def orphaned(observed: Observed, annotation: str | None = "true", lost: tuple[str, ...] = ()) -> Observed:
    """Returns a resource that was created again, with the children of its predecessor, which have lost their owner."""
    children = {ref: copy.deepcopy(obj) for ref, obj in observed.children.items() if ref.kind not in lost}
    for obj in children.values():
        obj["metadata"].pop("ownerReferences", None)
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


def test_every_child_is_adopted_and_the_pods_stay_unchanged() -> None:
    before = running(**EVERYTHING)
    observed = orphaned(before)
    assert {Ref.of(obj) for obj in orphans(observed)} == before.children.keys()
    after = adopt(observed)
    made = make(after)
    assert settled(made, after)
    assert template(made) == template(make(before))
    assert made.problems == ()
    assert {controller_uid(obj) for obj in after.children.values()} == {"uid-2"}


@pytest.mark.parametrize("annotation", [None, "", "false", "True"])
def test_nothing_is_adopted_without_the_annotation_and_the_message_names_it(annotation: str | None) -> None:
    observed = orphaned(running(), annotation)
    assert orphans(observed) == []
    made = make(observed)
    assert made.children == ()
    check(judge(observed), f'Accepted False NameConflict annotate this resource with {ADOPT}: "true"')


OTHER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "x", "controller": True}
FOREIGN: dict[str, dict[str, Any]] = {
    "another controller": {"ownerReferences": [OTHER]},
    "an earlier resource that still controls it": {"ownerReferences": [owner_reference("demo", "uid-1")]},
    "no labels": {"labels": {}},
    "managed by somebody else": {"labels": {"app.kubernetes.io/managed-by": "Helm"}},
    "the label of another resource": {"labels": {SERVICE_LABEL: "b"}},
    "on its way out": {"deletionTimestamp": "2026-01-01T00:00:00Z"},
    "a name that no child has": {"name": "demo-other"},
}


@pytest.mark.parametrize("kind", ["Deployment", "ServiceAccount", "ControllerRevision"])
@pytest.mark.parametrize("why", FOREIGN)
def test_objects_that_may_belong_to_others_are_not_adopted(kind: str, why: str) -> None:
    observed = orphaned(running())
    ref = next(ref for ref in observed.children if ref.kind == kind)
    foreign = observed.children[ref]
    metadata = dict(FOREIGN[why])
    if metadata.get("labels"):
        metadata["labels"] = foreign["metadata"]["labels"] | metadata["labels"]
    foreign = {**foreign, "metadata": foreign["metadata"] | metadata}
    others = {r: obj for r, obj in observed.children.items() if r != ref}
    found = orphans(replace(observed, children={**others, Ref.of(foreign): foreign}))
    assert {Ref.of(obj) for obj in found} == others.keys()


@pytest.mark.parametrize("lost", [(), ("ControllerRevision",)])
@pytest.mark.parametrize(
    ("annotations", "operator"),
    [({}, Settings(runtime_image="registry.example/unmask-runtime:9.9.9")), ({RESTARTED_AT: "2026-01-01"}, SETTINGS)],
    ids=["by a newer operator", "with a restored restart annotation"],
)
def test_adoption_restarts_no_pod(lost: tuple[str, ...], annotations: dict[str, str], operator: Settings) -> None:
    observed = observe(resource(annotations=annotations))
    before = apply(observed, make(observed))
    made = make(adopt(orphaned(before, lost=lost)), operator)
    assert template(made) == template(make(before))
    assert made.up_to_date == (operator is SETTINGS)


def defaulted(observed: Observed) -> Observed:
    """Adds defaults to the Deployment, as the API server does."""
    live = deployment(observed.children.values())
    live["spec"]["template"]["metadata"]["creationTimestamp"] = None
    live["spec"]["template"]["spec"] |= {"dnsPolicy": "ClusterFirst", "schedulerName": "default-scheduler"}
    return observed


def test_a_deployment_without_revisions_gets_one_of_the_template_that_runs() -> None:
    before = running()
    after = adopt(defaulted(orphaned(before, lost=("ControllerRevision",))))
    made = make(after)
    assert template(made) == template(make(before))
    assert made.up_to_date
    assert child(made, "ControllerRevision")["metadata"]["name"] == "demo-r1"
    written = apply(after, made)
    assert settled(make(written), written)
    after.resource["metadata"]["annotations"] = {}
    assert adopted_revision(after, SETTINGS) is None, "the revision does not come from the spec, as without adoption"


def test_a_deployment_of_an_earlier_operator_without_revisions_keeps_its_template() -> None:
    live = copy.deepcopy(recorded("demo")[1])
    live["metadata"].pop("ownerReferences")
    after = adopt(defaulted(observe(resource(annotations={ADOPT: "true"}), live)))
    made = make(after)
    assert "creationTimestamp" not in template(made)["metadata"]
    assert template(made)["spec"] == deployment(after.children.values())["spec"]["template"]["spec"]
    assert not made.up_to_date
    after.resource["metadata"]["annotations"][RESTARTED_AT] = "now"
    assert make(after).up_to_date


@pytest.mark.parametrize(
    ("reason", "grant"),
    [('deployments.apps "demo" is forbidden: cannot set an ownerRef', True), ("denied by policy owners", False)],
)
def test_a_refused_adoption_is_reported_with_the_sentence_of_the_api_server(reason: str, grant: bool) -> None:
    observed = replace(orphaned(running()), not_adopted={Ref("apps/v1", "Deployment", "demo"): reason})
    says = f"rejected the adoption of Deployment demo ({reason}) ... {'' if grant else '!'}rbac.adoption"
    check(judge(observed), f"Accepted False NameConflict {says}")
