"""Tests of revisions: which pod template runs after an edit, a restart, and an upgrade of the operator."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.operator.samples import (
    SETTINGS,
    apply,
    child,
    container,
    edit,
    kinds,
    make,
    resource,
    running,
    settled,
    template,
)
from unmask_operator.api import Spec, parse
from unmask_operator.api.spec import OUTSIDE_POD_TEMPLATE
from unmask_operator.objects import Obj, Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.render.pod import render_pod
from unmask_operator.settings import Settings
from unmask_operator.status import status

NEW = Settings(version="0.2.0", runtime_image="unmask-runtime:0.2.0", engine_env={"NEW": "1"})


def test_an_operator_upgrade_changes_no_pod() -> None:
    observed = running()
    made = make(observed, NEW)
    assert template(made) == template(make(observed))
    assert not made.up_to_date
    assert settled(made, observed)


def test_scaling_under_a_new_operator_changes_no_pod() -> None:
    observed = edit(running(replicas=1), replicas=5)
    made = make(observed, NEW)
    assert child(made, "Deployment")["spec"]["replicas"] == 5
    assert template(made) == template(make(running()))
    assert child(made, "ControllerRevision")["revision"] == 1
    assert not made.up_to_date


def test_the_next_edit_of_the_pods_adopts_the_new_template() -> None:
    observed = edit(running(), engine={"maxNumReqs": 7})
    made = make(observed, NEW)
    assert container(made)["image"] == "unmask-runtime:0.2.0"
    assert child(made, "ControllerRevision")["metadata"]["name"] == "demo-r2"
    assert made.up_to_date
    after = apply(observed, made)
    assert settled(make(after, NEW), after)


def restarted(observed: Any, value: str | None) -> Any:
    service = copy.deepcopy(observed.resource)
    service["metadata"]["annotations"] = {"serving.unmask.dev/restartedAt": value} if value else {}
    return replace(observed, resource=service)


def test_a_restart_adopts_the_new_template_and_annotates_the_pods() -> None:
    observed = restarted(running(), "today")
    made = make(observed, NEW)
    assert made.up_to_date
    assert template(made)["metadata"]["annotations"]["serving.unmask.dev/restartedAt"] == "today"
    after = apply(observed, made)
    assert settled(make(after, NEW), after), "the same value of the annotation restarted the pods again"
    assert template(make(restarted(after, None), NEW)) == template(made), (
        "the removal of the annotation restarted the pods"
    )
    assert template(make(restarted(after, "later"), NEW)) != template(made)


def test_restoring_an_earlier_spec_counts_as_an_edit() -> None:
    first = running(engine={"maxNumReqs": 7})
    second = edit(first, engine={"maxNumReqs": 8})
    second = apply(second, make(second))
    back = make(edit(second, engine={"maxNumReqs": 7}), NEW)
    assert child(back, "ControllerRevision")["revision"] == 3
    assert container(back)["image"] == "unmask-runtime:0.2.0"


def test_the_newest_three_revisions_are_retained() -> None:
    observed = running()
    for number in range(2, 8):
        observed = edit(observed, engine={"maxNumReqs": number})
        observed = apply(observed, make(observed))
    names = sorted(ref.name for ref in observed.children if ref.kind == "ControllerRevision")
    assert names == ["demo-r5", "demo-r6", "demo-r7"]
    pinned = observed.children[Ref("apps/v1", "ControllerRevision", "demo-r6")]["data"]
    assert pinned["spec"]["engine"] == {"maxNumReqs": 6}
    assert settled(make(observed), observed)


def test_a_revision_that_was_written_before_a_crash_is_used() -> None:
    observed = edit(running(), engine={"maxNumReqs": 9})
    made = make(observed)
    killed = apply(observed, replace(made, children=(child(made, "ControllerRevision"),), delete=()))
    again = make(killed)
    assert again.children == made.children


BAD = {"podTemplate": {"spec": {"containers": [{"name": "main", "args": []}]}}}

# Edits that do not change pods, each with a kind of child that they change.
SCALING: dict[str, Any] = {"maxReplicas": 4, "targets": {"queuedRequestsPerReplica": 4}}
EDITS_OUTSIDE_POD_TEMPLATE: dict[str, tuple[str, dict[str, Any]]] = {
    "maxReplicas": ("HorizontalPodAutoscaler", {"autoscaling": {"provider": "HPA", **SCALING}}),
    "podDisruptionBudget": ("PodDisruptionBudget", {"podDisruptionBudget": {"minAvailable": 1}}),
    "networkPolicy": ("NetworkPolicy", {"networkPolicy": {}}),
    "port": ("Service", {"service": {"port": 81}}),
    "podMonitor": ("PodMonitor", {"monitoring": {"podMonitor": {}}}),
    "rolloutStrategy": ("Deployment", {"rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 1}}),
    "annotations": ("ServiceAccount", {"serviceAccount": {"annotations": {"a": "b"}}}),
}
SAME_PODS = {
    **{name: spec for name, (_, spec) in EDITS_OUTSIDE_POD_TEMPLATE.items()},
    "a probe as it is without": {"startupProbe": {}, "livenessProbe": {"periodSeconds": 10}},
    "a default written out": {"drainTimeoutSeconds": 60, "engine": {}, "imagePullPolicy": "IfNotPresent"},
}


@pytest.mark.parametrize("spec", SAME_PODS.values(), ids=SAME_PODS)
@pytest.mark.parametrize("operator", [SETTINGS, NEW], ids=["same", "newer"])
def test_an_edit_that_changes_no_template_keeps_the_old_one(spec: dict[str, Any], operator: Settings) -> None:
    before = running()
    observed = edit(before, **spec)
    made = make(observed, operator)
    assert template(made) == template(make(before))
    assert made.problems == ()
    assert made.up_to_date == (operator is SETTINGS)
    after = apply(observed, made)
    assert settled(make(after, operator), after)
    back = make(edit(after, **dict.fromkeys(spec)), operator)
    assert template(back) == template(made), "reverting the edit restarted the pods"
    bad = make(edit(after, **BAD), operator)
    assert bad.children == made.children, "the children are not those of the last accepted spec"


@pytest.mark.parametrize(("kind", "spec"), EDITS_OUTSIDE_POD_TEMPLATE.values(), ids=EDITS_OUTSIDE_POD_TEMPLATE)
def test_an_edit_that_does_not_affect_the_template_changes_its_child(kind: str, spec: dict[str, Any]) -> None:
    before = running()
    made = make(edit(before, **spec), NEW)
    first = make(before)
    assert kind not in kinds(first) or child(made, kind) != child(first, kind)


def test_removing_the_surge_while_no_gpu_is_free_starts_no_other_rollout() -> None:
    """Follows the advice of RolloutComplete=False/InsufficientGPU, with an operator that is newer than the pods."""
    observed = running(gpu={}, replicas=1)
    observed = edit(observed, engine={"maxNumReqs": 7})
    observed = apply(observed, make(observed))
    made = make(edit(observed, rolloutStrategy={"maxSurge": 0, "maxUnavailable": 1}), NEW)
    assert template(made) == template(make(observed))
    assert child(made, "Deployment")["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


def test_sections_outside_the_pod_template_do_not_change_it() -> None:
    """Checks that no field in OUTSIDE_POD_TEMPLATE changes the template, and that each has a case here."""
    assert {field.alias for field in Spec.model_fields.values()} >= OUTSIDE_POD_TEMPLATE
    unedited = render_pod(parse(resource()), SETTINGS)
    specs = [spec for _, spec in EDITS_OUTSIDE_POD_TEMPLATE.values()] + [{"replicas": 3}, {"suspend": True}]
    assert {field for spec in specs for field in spec} == OUTSIDE_POD_TEMPLATE
    assert all(render_pod(parse(resource(**spec)), SETTINGS) == unedited for spec in specs)


def pin_names(observed: Observed) -> list[str]:
    return sorted(ref.name for ref in observed.children if ref.kind == "ControllerRevision")


def test_suspending_and_scaling_create_no_revision() -> None:
    observed = running()
    for number in (7, 8):
        observed = edit(observed, engine={"maxNumReqs": number})
        observed = apply(observed, make(observed))
    history = pin_names(observed)
    assert history == ["demo-r1", "demo-r2", "demo-r3"]
    for cycle in range(3):
        for change in ({"suspend": True}, {"replicas": cycle}, {"suspend": None}):
            observed = edit(observed, **change)
            observed = apply(observed, make(observed))
    assert pin_names(observed) == history


def test_the_newest_three_templates_are_retained_whatever_the_number_of_edits() -> None:
    observed = running()
    for change in (
        {"engine": {"maxNumReqs": 7}},
        {"service": {"port": 81}},
        {"networkPolicy": {}},
        {"engine": {"maxNumReqs": 8}},
        {"service": {"port": 82}},
        {"podDisruptionBudget": {"minAvailable": 1}},
    ):
        observed = edit(observed, **change)
        observed = apply(observed, make(observed))
    assert pin_names(observed) == ["demo-r1", "demo-r4", "demo-r7"]


FLAG = {"engine": {"extraArgs": ["--no-such-flag"]}}
RESERVED = {"engine": {"extraArgs": ["--lora-path=x"]}}
VALUE = {"engine": {"decodingStrategy": "OfTomorrow"}}


def pinned_by_another(spec: dict[str, Any], before: Observed | None = None) -> Observed:
    """Returns a resource whose spec this operator rejects. Another operator accepted it and wrote the revision."""
    observed = before or running()
    ref = Ref("apps/v1", "ControllerRevision", "demo-r1")
    revision = copy.deepcopy(observed.children[ref])
    revision["data"]["spec"] |= spec
    return replace(edit(observed, **spec), children={**observed.children, ref: revision})


@pytest.mark.parametrize("spec", [FLAG, RESERVED, VALUE], ids=["a flag", "a rule", "a value"])
def test_a_spec_that_its_revision_covers_is_never_rejected(spec: dict[str, Any]) -> None:
    observed = pinned_by_another(spec)
    for change in ({}, {"replicas": 3}, {"suspend": True}, {"service": {"port": 81}}):
        edited = edit(observed, **change)
        made = make(edited)
        assert made.problems == ()
        assert template(made) == template(make(running()))
        assert not made.up_to_date
        after = apply(edited, made)
        assert settled(make(after), after)
    made = make(edit(observed, drainTimeoutSeconds=90))
    assert [(p.condition, p.reason) for p in made.problems] == [("Accepted", "InvalidSpec")], (
        "an edit of the pods was accepted, although new pods would use the invalid spec"
    )
    assert template(made) == template(make(running()))


def with_pin(observed: Observed, **data: Any) -> Observed:
    """Returns the state with other data in the newest revision. None removes a member."""
    ref = max((r for r in observed.children if r.kind == "ControllerRevision"), key=lambda r: r.name)
    revision = copy.deepcopy(observed.children[ref])
    revision["data"] = {k: v for k, v in {**revision["data"], **data}.items() if v is not None}
    return replace(observed, children={**observed.children, ref: revision})


def condition(observed: Observed, made: Any, kind: str) -> Obj:
    (found,) = (c for c in status(observed, made)["conditions"] if c["type"] == kind)
    return found


@pytest.mark.parametrize("data", [{"format": 2}, {"template": None}, {"format": "x", "spec": None}])
def test_a_revision_of_another_format_is_retained_and_reported_and_the_pods_stay(data: dict[str, Any]) -> None:
    observed = with_pin(running(), **data)
    live = template(make(running()))
    for change in ({}, {"replicas": 4}, {"service": {"port": 81}}, {"engine": {"maxNumReqs": 9}}):
        edited = edit(observed, **change)
        made = make(edited, NEW)
        assert template(made) == live
        assert child(made, "Deployment")["spec"]["replicas"] == change.get("replicas", 1)
        assert child(made, "Service")["spec"]["ports"][0]["port"] == change.get("service", {}).get("port", 80)
        assert "ControllerRevision" not in kinds(made)
        assert made.delete == ()
        up_to_date = condition(edited, made, "UpToDate")
        assert (up_to_date["status"], up_to_date["reason"]) == ("False", "UnknownPin")
        assert "demo-r1" in up_to_date["message"]
        assert condition(edited, made, "Accepted")["status"] == "True"
    made = make(restarted(observed, "today"), NEW)
    assert container(made)["image"] == "unmask-runtime:0.2.0"
    assert child(made, "ControllerRevision")["revision"] == 2
    assert made.delete == (), "the revision was deleted, although the operator that wrote it may return"
    assert made.problems == ()


def test_a_revision_of_another_format_without_a_deployment_is_followed_by_a_new_one() -> None:
    observed = with_pin(running(), format=2)
    lost = replace(observed, children={r: c for r, c in observed.children.items() if r.kind != "Deployment"})
    assert child(make(lost), "ControllerRevision")["revision"] == 2


def test_revisions_without_a_format_number_are_read() -> None:
    observed = running()
    old = with_pin(observed, format=None, spec={"model": {"uri": "demo://"}, "suspend": False})
    made = make(old, NEW)
    assert template(made) == template(make(observed))
    assert settled(made, old), "the operator changed the data of a revision, which are immutable"
