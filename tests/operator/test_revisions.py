"""Tests of revisions: which pod template runs after an edit, a restart, and a change of the operator's version."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.operator import samples
from tests.operator.pod_states import judge
from tests.operator.samples import NEW, SETTINGS, apply, child, container, edit, kinds, make, running, template
from unmask_operator.api import Spec, parse
from unmask_operator.api.spec import OUTSIDE_POD_TEMPLATE
from unmask_operator.autoscaler.rules import Rules
from unmask_operator.kube.client import encode
from unmask_operator.objects import RESTARTED_AT, Obj, Ref
from unmask_operator.plan.observed import Observed
from unmask_operator.plan.plan import Plan
from unmask_operator.render.pod import render_pod
from unmask_operator.settings import Settings
from unmask_operator.status import status

BAD = {"podTemplate": {"spec": {"containers": [{"name": "main", "args": []}]}}}
# Edits that do not change pods, each with a kind of child that they change.
SCALING: Obj = {"maxReplicas": 4, "targets": {"queuedRequestsPerReplica": 4}}
EDITS_OUTSIDE_POD_TEMPLATE: dict[str, tuple[str, Obj]] = {
    "maxReplicas": ("HorizontalPodAutoscaler", {"autoscaling": {"provider": "HPA", **SCALING}}),
    "podDisruptionBudget": ("PodDisruptionBudget", {"podDisruptionBudget": {"minAvailable": 1}}),
    "networkPolicy": ("NetworkPolicy", {"networkPolicy": {}}),
    "port": ("Service", {"service": {"port": 81}}),
    "podMonitor": ("PodMonitor", {"monitoring": {"podMonitor": {}}}),
    "route": ("HTTPRoute", {"route": {"parentRefs": [{"name": "public"}]}}),
    "rolloutStrategy": ("Deployment", {"rolloutStrategy": {"maxSurge": 0, "maxUnavailable": 1}}),
    "annotations": ("ServiceAccount", {"serviceAccount": {"annotations": {"a": "b"}}}),
}
# Further edits after which this operator renders the same template as before.
SAME_TEMPLATE: dict[str, Obj] = {
    "a probe as it is without": {"startupProbe": {}, "livenessProbe": {"periodSeconds": 10}},
    "a default written out": {"drainTimeoutSeconds": 60, "engine": {}, "imagePullPolicy": "IfNotPresent"},
    "sizes written out": {"parallelism": {"tensor": 1, "expert": 1}, "sharedMemorySize": "1Gi"},
    "empty metadata": {"commonLabels": {}, "commonAnnotations": {}},
}


def follow(observed: Observed, *edits: Obj) -> Observed:
    """Returns the state after these edits, each written before the next."""
    for change in edits:
        observed = edit(observed, **change)
        observed = apply(observed, make(observed))
    return observed


def assert_settles(observed: Observed, made: Plan, operator: Settings = SETTINGS) -> Observed:
    """Returns the state after a plan was written. Asserts that there is nothing left to write."""
    after = apply(observed, made)
    assert samples.settled(make(after, operator), after)
    return after


def requests(count: int) -> Obj:
    """Returns an edit of the pods."""
    return {"engine": {"maxNumReqs": count}}


def revisions(observed: Observed) -> list[str]:
    return sorted(ref.name for ref in observed.children if ref.kind == "ControllerRevision")


EDITS = [spec for _, spec in EDITS_OUTSIDE_POD_TEMPLATE.values()] + [*SAME_TEMPLATE.values()]


@pytest.mark.parametrize("spec", [{}, {"replicas": 5}, {"suspend": True}, *EDITS], ids=lambda spec: "-".join(spec))
@pytest.mark.parametrize("operator", [SETTINGS, NEW], ids=["same", "newer"])
def test_an_edit_that_changes_no_template_keeps_the_old_one(spec: Obj, operator: Settings) -> None:
    before = running()
    observed = edit(before, **spec)
    made = make(observed, operator)
    assert template(made) == template(make(before))
    assert made.problems == ()
    assert made.up_to_date == (operator is SETTINGS)
    is_scale = spec.keys() <= {"replicas", "suspend"}
    assert child(made, "ControllerRevision")["revision"] == (1 if is_scale else 2)
    after = assert_settles(observed, made, operator)
    if not is_scale:
        back = make(edit(after, **dict.fromkeys(spec)), operator)
        assert template(back) == template(made), "reverting the edit restarted the pods"
        bad = make(edit(after, **BAD), operator)
        assert bad.children == made.children, "the children are not those of the last accepted spec"


@pytest.mark.parametrize(("kind", "spec"), EDITS_OUTSIDE_POD_TEMPLATE.values(), ids=EDITS_OUTSIDE_POD_TEMPLATE)
def test_an_edit_outside_the_template_changes_its_child(kind: str, spec: Obj) -> None:
    first, made = make(running()), make(edit(running(), **spec), NEW)
    assert kind not in kinds(first) or child(made, kind) != child(first, kind)


def test_sections_outside_the_pod_template_do_not_change_it_and_each_has_a_case() -> None:
    assert {field.alias for field in Spec.model_fields.values()} >= OUTSIDE_POD_TEMPLATE
    unedited = render_pod(parse(samples.resource()), SETTINGS)
    specs = [spec for _, spec in EDITS_OUTSIDE_POD_TEMPLATE.values()] + [{"replicas": 3}, {"suspend": True}]
    assert {field for spec in specs for field in spec} == OUTSIDE_POD_TEMPLATE
    assert all(render_pod(parse(samples.resource(**spec)), SETTINGS) == unedited for spec in specs)


def test_an_edit_of_the_pods_adopts_the_new_template_also_if_it_restores_an_earlier_spec() -> None:
    observed = follow(running(**requests(7)), requests(8))
    for number, spec in ((3, requests(9)), (3, requests(7))):
        edited = edit(observed, **spec)
        made = make(edited, NEW)
        assert container(made)["image"] == "unmask-runtime:0.2.0"
        assert child(made, "ControllerRevision")["metadata"]["name"] == f"demo-r{number}"
        assert made.up_to_date
        assert_settles(edited, made, NEW)


def test_a_restart_adopts_the_new_template_and_annotates_the_pods() -> None:
    observed = samples.restarted(running(), "today")
    made = make(observed, NEW)
    assert made.up_to_date
    assert template(made)["metadata"]["annotations"][RESTARTED_AT] == "today"
    after = assert_settles(observed, made, NEW)  # the same value of the annotation restarts no pods
    removed = make(samples.restarted(after, None), NEW)
    assert template(removed) == template(made), "the removal of the annotation restarted the pods"
    assert template(make(samples.restarted(after, "later"), NEW)) != template(made)


def test_the_newest_three_templates_are_retained_whatever_the_number_of_edits() -> None:
    port = [{"service": {"port": 81}}, {"networkPolicy": {}}]
    observed = follow(running(), requests(7), *port, requests(8), {"service": {"port": 82}})
    assert revisions(observed) == ["demo-r1", "demo-r4", "demo-r6"]
    observed = follow(observed, requests(9))
    assert revisions(observed) == ["demo-r4", "demo-r6", "demo-r7"]
    stored = observed.children[Ref("apps/v1", "ControllerRevision", "demo-r4")]["data"]
    assert stored["spec"]["engine"] == {"maxNumReqs": 7}


def with_revision(observed: Observed, **data: Any) -> Observed:
    """Returns the state with other data in the only revision. None removes a member."""
    ref = Ref("apps/v1", "ControllerRevision", "demo-r1")
    revision = copy.deepcopy(observed.children[ref])
    revision["data"] = {k: v for k, v in {**revision["data"], **data}.items() if v is not None}
    return replace(observed, children={**observed.children, ref: revision})


def pinned_by_another(spec: Obj, before: Observed | None = None) -> Observed:
    """Returns a resource whose spec this operator rejects. Another operator accepted it and wrote the revision."""
    edited = edit(before or running(), **spec)
    return with_revision(edited, spec=edited.resource["spec"])


@pytest.mark.parametrize("data", [{"format": 2}, {"template": None}, {"format": "x", "spec": None}])
def test_a_revision_of_another_format_is_retained_and_reported_and_the_pods_stay(data: Obj) -> None:
    observed = with_revision(running(), **data)
    live = template(make(running()))
    for change in ({}, {"replicas": 4}, {"service": {"port": 81}}, requests(9)):
        edited = edit(observed, **change)
        made = make(edited, NEW)
        assert template(made) == live
        assert child(made, "Deployment")["spec"]["replicas"] == change.get("replicas", 1)
        assert child(made, "Service")["spec"]["ports"][0]["port"] == change.get("service", {}).get("port", 80)
        assert "ControllerRevision" not in kinds(made)
        assert made.delete == ()
        up_to_date = judge(edited, made)["UpToDate"]
        assert (up_to_date["status"], up_to_date["reason"]) == ("False", "UnknownPin")
        assert "demo-r1" in up_to_date["message"]
        assert judge(edited, made)["Accepted"]["status"] == "True"
    made = make(samples.restarted(observed, "today"), NEW)
    assert container(made)["image"] == "unmask-runtime:0.2.0"
    assert child(made, "ControllerRevision")["revision"] == 2
    assert made.delete == (), "the revision was deleted, although the operator that wrote it may return"
    assert made.problems == ()
    lost = {ref: one for ref, one in observed.children.items() if ref.kind != "Deployment"}
    assert child(make(replace(observed, children=lost)), "ControllerRevision")["revision"] == 2


def test_revisions_without_a_format_number_are_read() -> None:
    observed = running()
    old = with_revision(observed, format=None, spec={"model": {"uri": "demo://"}, "suspend": False})
    made = make(old, NEW)
    assert template(made) == template(make(observed))
    assert samples.settled(made, old), "the operator changed the data of a revision, which are immutable"


# An operator that is older than the spec.


@pytest.mark.parametrize(
    "spec",
    [
        {"engine": {"extraArgs": ["--no-such-flag"]}},
        {"engine": {"extraArgs": ["--lora-path=x"]}},
        {"engine": {"decodingStrategy": "OfTomorrow"}, "commonLabels": {"team": "a"}},
    ],
    ids=["a flag", "a rule", "a value"],
)
def test_a_spec_that_its_revision_covers_is_never_rejected(spec: Obj) -> None:
    observed = pinned_by_another(spec)
    for change in ({}, {"replicas": 3}, {"suspend": True}, {"service": {"port": 81}}):
        edited = edit(observed, **change)
        made = make(edited)
        assert made.problems == ()
        assert template(made) == template(make(running()))
        assert not made.up_to_date
        assert child(made, "Service")["metadata"]["labels"].items() >= spec.get("commonLabels", {}).items()
        assert_settles(edited, made)
    made = make(edit(observed, drainTimeoutSeconds=90))
    assert [(p.condition, p.reason) for p in made.problems] == [("Accepted", "InvalidSpec")]
    assert template(made) == template(make(running()))


def test_unknown_fields_are_ignored_and_named_and_their_edits_change_no_pod() -> None:
    observed = samples.observe(samples.resource(ofTomorrow={"a": 1}, engine={"maxNumReqs": 7, "warp": True}))
    made = make(observed)
    assert made.problems == ()
    assert "--max-num-reqs=7" in container(made)["args"]
    found = judge(observed, made)["Accepted"]
    assert found["status"] == "True"
    assert "spec.engine.warp" in found["message"]
    assert "spec.ofTomorrow" in found["message"]
    made = make(edit(pinned_by_another({"ofTomorrow": 1}), ofTomorrow=2))
    assert (made.problems, template(made)) == ((), template(make(running())))


STRANGE: dict[str, Obj] = {
    "autoscaling": {"provider": "OfTomorrow", "maxReplicas": 4}, "podDisruptionBudget": {"minAvailable": "OfTomorrow"},
    "networkPolicy": {"from": "OfTomorrow"}, "service": {"type": "OfTomorrow", "port": 81},
    "monitoring": {"podMonitor": "OfTomorrow"}, "rolloutStrategy": {"maxSurge": "OfTomorrow"},
    "serviceAccount": {"annotations": "OfTomorrow"},
}  # fmt: skip


@pytest.mark.parametrize("section", STRANGE)
@pytest.mark.parametrize("pinned", [True, False], ids=["the newer operator's", "an edit"])
def test_an_unknown_value_outside_the_pod_template_affects_only_its_section(section: str, pinned: bool) -> None:
    """Children of that section stay. Scaling, repairs and edits of the pods continue."""
    kind, known = next((k, spec) for k, spec in EDITS_OUTSIDE_POD_TEMPLATE.values() if section in spec)
    before = running(**known)
    live = make(before)
    strange = {section: STRANGE[section]}
    observed = pinned_by_another(strange, before) if pinned else edit(before, **strange)
    for change in ({}, {"replicas": 3}, {"suspend": True}):
        edited = edit(observed, **change)
        made = make(edited, NEW)
        assert made.problems == ()
        assert template(made) == template(live)
        deployment = child(made, "Deployment")["spec"]
        assert deployment["replicas"] == (0 if "suspend" in change else change.get("replicas", 1))
        assert deployment["strategy"] == child(live, "Deployment")["spec"]["strategy"]
        assert {ref.kind for ref in made.delete} <= {"PodDisruptionBudget", "ControllerRevision"}
        after = assert_settles(edited, made, NEW)
        if kind != "Deployment":
            assert kind not in kinds(made)
            assert [obj for ref, obj in after.children.items() if ref.kind == kind] == [child(live, kind)]
        found = judge(edited, made)["Accepted"]
        assert found["status"] == "True"
        assert f"spec.{section}" in found["message"]
        assert status(edited, make(edited))["url"] == status(before, live)["url"] or section != "service"
    assert "--max-num-reqs=7" in container(make(edit(observed, **requests(7))))["args"]
    bad = make(edit(observed, engine={"pageSize": "x"}, replicas=3))
    assert child(bad, "Deployment")["spec"]["replicas"] == 3
    assert [problem.reason for problem in bad.problems] == ["InvalidSpec"]


@pytest.mark.parametrize(
    "change",
    [
        {"provider": "OfTomorrow"}, {"minReplicas": 5000}, {"behavior": {"scaleDown": {"selectPolicy": "OfTomorrow"}}},
        {"behavior": {"scaleUp": {"policies": [{"type": "OfTomorrow", "value": 1, "periodSeconds": 15}]}}},
    ],
)  # fmt: skip
def test_rules_that_only_a_newer_operator_knows_stop_autoscaling(change: Obj) -> None:
    assert Rules.read({"autoscaling": {"maxReplicas": 4, "ofTomorrow": 1}}) is not None
    observed = edit(running(autoscaling={"maxReplicas": 4}), autoscaling={"maxReplicas": 4, **change})
    assert Rules.read(observed.resource["spec"]) is None
    found = judge(observed)["ScalingReady"]
    assert (found["status"], found["reason"]) == ("Unknown", "UnknownValue")
    assert "spec.autoscaling" in found["message"]


# Revisions that an earlier operator wrote: the same pods must be rendered from them.

RECORDED: list[Obj] = json.loads((Path(__file__).parent / "recorded" / "revisions.json").read_text())


@pytest.mark.parametrize("record", RECORDED, ids=lambda record: record["resource"]["metadata"]["name"])
@pytest.mark.parametrize("settings", [SETTINGS, NEW], ids=["same settings", "other settings"])
def test_the_pods_of_a_recorded_revision_stay_unchanged(record: Obj, settings: Settings) -> None:
    resource, revisions = copy.deepcopy(record["resource"]), record["revisions"]
    newest = max(revisions, key=lambda revision: revision["revision"])
    observed = samples.observe(resource, *copy.deepcopy(revisions))
    made = make(observed, settings)
    assert made.problems == ()
    assert template(made) == newest["data"]["template"]
    assert child(made, "ControllerRevision")["metadata"]["name"] == newest["metadata"]["name"]
    assert child(made, "ControllerRevision")["data"] == newest["data"]
    after = apply(observed, made)
    assert samples.settled(make(after, settings), after)
    resource["spec"]["service"] = {**resource["spec"].get("service", {}), "port": 8123}
    made = make(observed, settings)
    assert template(made) == newest["data"]["template"]
    assert child(made, "ControllerRevision")["revision"] == newest["revision"] + 1


def test_recorded_revisions_survive_encoding() -> None:
    revisions = [revision for record in RECORDED for revision in record["revisions"]]
    assert [json.loads(encode(revision)) for revision in revisions] == revisions
    hard = {"<", ">", "&", "\u2028", "\u2029", "\U0001f600", "\ufeff", "\x7f", "\x85"}
    assert hard <= set(json.dumps(RECORDED, ensure_ascii=False))
