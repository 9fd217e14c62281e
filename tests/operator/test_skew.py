"""Tests of an operator that is older than the spec: unknown fields are ignored and named, and no pod changes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.operator.samples import (
    apply,
    child,
    container,
    edit,
    kinds,
    make,
    observe,
    resource,
    running,
    settled,
    template,
)
from tests.operator.test_revisions import EDITS_OUTSIDE_POD_TEMPLATE, NEW, condition, pinned_by_another
from unmask_operator.autoscaler.rules import Rules
from unmask_operator.status import status


def test_fields_that_this_operator_does_not_know_are_ignored_and_named() -> None:
    observed = observe(resource(ofTomorrow={"a": 1}, engine={"maxNumReqs": 7, "warp": True}))
    made = make(observed)
    assert made.problems == ()
    assert "--max-num-reqs=7" in container(made)["args"]
    found = condition(observed, made, "Accepted")
    assert found["status"] == "True"
    assert "spec.engine.warp" in found["message"]
    assert "spec.ofTomorrow" in found["message"]


def test_an_older_operator_with_a_newer_spec_changes_no_pod() -> None:
    """Simulates `helm rollback` of the operator.

    The newer operator wrote the revision. Its template may depend on a field that this operator ignores.
    """
    observed = pinned_by_another({"ofTomorrow": 1})
    pods = template(make(observed))
    for change in ({}, {"ofTomorrow": 2}, {"service": {"port": 81}}, {"ofTomorrow": None}):
        made = make(edit(observed, **change))
        assert made.problems == ()
        assert template(made) == pods


STRANGE: dict[str, Any] = {
    "autoscaling": {"provider": "OfTomorrow", "maxReplicas": 4},
    "podDisruptionBudget": {"minAvailable": "OfTomorrow"},
    "networkPolicy": {"from": "OfTomorrow"},
    "service": {"type": "OfTomorrow", "port": 81},
    "monitoring": {"podMonitor": "OfTomorrow"},
    "rolloutStrategy": {"maxSurge": "OfTomorrow"},
    "serviceAccount": {"annotations": "OfTomorrow"},
}


@pytest.mark.parametrize("section", STRANGE)
@pytest.mark.parametrize("pinned", [True, False], ids=["the newer operator's", "an edit"])
def test_an_unknown_value_outside_the_pod_template_affects_only_its_section(section: str, pinned: bool) -> None:
    """Checks that children of that section stay, and that scaling, repairs and edits of the pods continue."""
    known = next((spec for _, spec in EDITS_OUTSIDE_POD_TEMPLATE.values() if section in spec), {})
    before = running(**known)
    live = make(before)
    strange = {section: STRANGE[section]}
    observed = pinned_by_another(strange, before) if pinned else edit(before, **strange)

    for change in ({}, {"replicas": 3}, {"suspend": True}, {"imagePullPolicy": "IfNotPresent"}):
        edited = edit(observed, **change)
        made = make(edited, NEW)
        assert made.problems == ()
        assert template(made) == template(live)
        assert child(made, "Deployment")["spec"]["replicas"] == (
            0 if "suspend" in change else change.get("replicas", 1)
        )
        assert {ref.kind for ref in made.delete} <= {"PodDisruptionBudget", "ControllerRevision"}
        after = apply(edited, made)
        for kind in {kind for kind, spec in EDITS_OUTSIDE_POD_TEMPLATE.values() if section in spec} & {*kinds(live)} - {
            "Deployment"
        }:
            assert kind not in kinds(made)
            assert [obj for ref, obj in after.children.items() if ref.kind == kind] == [child(live, kind)]
        strategy = child(live, "Deployment")["spec"]["strategy"]
        assert child(made, "Deployment")["spec"]["strategy"] == strategy
        assert settled(make(after, NEW), after)
        found = condition(edited, made, "Accepted")
        assert found["status"] == "True"
        assert f"spec.{section}" in found["message"]
        assert "OfTomorrow" in found["message"]

    edited = make(edit(observed, engine={"maxNumReqs": 7}))
    assert "--max-num-reqs=7" in container(edited)["args"]
    bad = make(edit(observed, engine={"pageSize": "x"}, replicas=3))
    assert child(bad, "Deployment")["spec"]["replicas"] == 3
    assert [problem.reason for problem in bad.problems] == ["InvalidSpec"]


def test_the_url_is_that_of_the_unchanged_service() -> None:
    before = running()
    observed = edit(before, service=STRANGE["service"])
    observed.resource["status"] = status(before, make(before))
    assert observed.resource["status"]["url"] == status(observed, make(observed))["url"] == "http://demo.default.svc/v1"


def test_a_new_resource_with_an_unknown_value_is_rejected() -> None:
    made = make(observe(resource(service=STRANGE["service"])))
    assert made.children == ()
    assert "spec.service.type" in made.problems[0].message


@pytest.mark.parametrize(
    "change",
    [
        {"provider": "OfTomorrow"},
        {"minReplicas": 0},
        {"behavior": {"scaleDown": {"selectPolicy": "OfTomorrow"}}},
        {"behavior": {"scaleUp": {"policies": [{"type": "OfTomorrow", "value": 1, "periodSeconds": 15}]}}},
    ],
)
def test_rules_that_only_a_newer_operator_knows_stop_autoscaling(change: dict[str, Any]) -> None:
    assert Rules.read({"autoscaling": {"maxReplicas": 4}}) is not None
    assert Rules.read({"autoscaling": {"maxReplicas": 4, "ofTomorrow": 1}}) is not None
    observed = edit(running(autoscaling={"maxReplicas": 4}), autoscaling={"maxReplicas": 4, **change})
    assert Rules.read(observed.resource["spec"]) is None
    found = condition(observed, make(observed), "ScalingReady")
    assert (found["status"], found["reason"]) == ("Unknown", "UnknownValue")
    assert "spec.autoscaling" in found["message"]
