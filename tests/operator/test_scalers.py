"""Tests that no edit of a manifest scales a service down that an autoscaler owns, and that other writers are named."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.operator.fake_api import DEPLOYMENT, FakeApi
from tests.operator.pod_states import judge
from tests.operator.samples import edit, running
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Obj
from unmask_operator.plan.observed import Decision, Observed
from unmask_operator.plan.other_writers import WINDOW, ManifestWrites, kept_replicas

SCALED = {"maxReplicas": 8}
HPA = {**SCALED, "provider": "HPA"}
KEDA = {**SCALED, "provider": "KEDA"}
MANIFEST, SSA = {"manager": "kubectl-client-side-apply"}, {"manager": "flux", "operation": "Apply"}
OURS, THEIRS = ({"manager": name, "subresource": "scale"} for name in ("unmask-operator", "kube-controller-manager"))


def owned(observed: Observed, *owners: Obj) -> Observed:
    """Returns the state whose resource has these owners of spec.replicas, as the cache has them."""
    meta = {**observed.resource["metadata"], "managedFields": list(owners)}
    return replace(observed, resource={**observed.resource, "metadata": meta})


def edited(before: Obj, after: Obj, *owners: Obj, desired: int = 0) -> Observed:
    decision = Decision(desired, "at rest", True) if desired else None
    return owned(replace(edit(running(**before), **after), decision=decision), *owners)


LOST = {"replicas": 1}
# The state before and after an edit, the owners of spec.replicas, the autoscaler's decision, and the replicas to keep.
EDITS: list[tuple[Observed, int | None]] = [
    (edited({"replicas": 5}, {**LOST, "autoscaling": SCALED}, MANIFEST), 5),
    (edited({"replicas": 5}, {**LOST, "autoscaling": SCALED}), 5),  # server-side apply leaves no owner
    (edited({"replicas": 5}, {**LOST, "autoscaling": HPA}), 5),
    (edited({"replicas": 5}, {**LOST, "autoscaling": {"maxReplicas": 3}}, MANIFEST), 3),
    (edited({"replicas": 5}, {**LOST, "autoscaling": {"minReplicas": 5, "maxReplicas": 8}}, MANIFEST), None),
    (edited({"replicas": 5}, {"replicas": 2, "autoscaling": SCALED}, MANIFEST), None),
    (edited({"replicas": 5}, {**LOST, "autoscaling": SCALED, "suspend": True}, MANIFEST), None),
    (edited({"replicas": 5}, LOST, MANIFEST), None),
    (edited({"replicas": 5}, {**LOST, "autoscaling": {"maxReplicas": "many"}}, MANIFEST), 1),
    # `replicas` leaves a manifest that has autoscaling already, or a manifest sets the default again and again.
    (edited({"replicas": 5, "autoscaling": SCALED}, LOST, MANIFEST), 5),
    (edited({"replicas": 5, "autoscaling": HPA}, LOST, SSA), 5),
    (edited({"replicas": 5, "autoscaling": SCALED}, LOST, desired=5), 5),
    # Scalers scale down.
    (edited({"replicas": 5, "autoscaling": SCALED}, LOST, OURS), None),
    (edited({"replicas": 5, "autoscaling": HPA}, LOST, THEIRS), None),
    (edited({"replicas": 5, "autoscaling": SCALED}, LOST, desired=1), None),
    (edited({"replicas": 5, "autoscaling": HPA}, LOST), None),
]


@pytest.mark.parametrize(("observed", "kept"), EDITS)
def test_replicas_that_a_manifest_has_lost_are_kept(observed: Observed, kept: int | None) -> None:
    assert kept_replicas(observed) == (None if kept == 1 else kept)


@pytest.mark.parametrize("error", [None, ApiError(403, "Forbidden", "at most 4 replicas")], ids=["", "refused"])
def test_no_pod_ends_when_autoscaling_replaces_replicas(error: ApiError | None) -> None:
    api, manifest = FakeApi(running(replicas=5)), {**MANIFEST, "fieldsV1": {"f:spec": {"f:replicas": {}}}}
    api.wrong = lambda verb, obj: error if verb == "patch_scale" else None
    api.resource = api.stored(owned(replace(api.observed, resource=api.resource), manifest).resource)
    api.edit(replicas=1, autoscaling=SCALED)
    for _ in range(2):
        api.reconcile()
        assert api.objects[DEPLOYMENT]["spec"]["replicas"] == 5
    assert api.resource["spec"]["replicas"] == (1 if error else 5)
    assert len(api.events("ReplicasKept")) == (0 if error else 1)


PERSON = {"manager": "kubectl", "subresource": "scale"}
OLD = {**THEIRS, "time": "2020-01-01T00:00:00Z"}
WRITERS: list[tuple[Obj, Obj, str]] = [
    (SCALED, THEIRS, "AnotherScaler"), (SCALED, {**THEIRS, "manager": "keda-operator"}, "AnotherScaler"),
    (HPA, {**THEIRS, "manager": "keda-operator"}, "AnotherScaler"), (HPA, THEIRS, ""), (HPA, OURS, ""),
    (KEDA, {**THEIRS, "manager": "keda"}, ""), (KEDA, THEIRS, ""),
    (SCALED, OURS, ""), (SCALED, PERSON, ""), (SCALED, OLD, ""), (SCALED, MANIFEST, ""),
]  # fmt: skip


@pytest.mark.parametrize(("scaling", "owner", "reason"), WRITERS)
def test_a_second_scaler_is_named(scaling: Obj, owner: Obj, reason: str) -> None:
    found = judge(owned(running(autoscaling=scaling), owner))["ScalingReady"]
    assert (found["reason"] == "AnotherScaler") == bool(reason)
    assert not reason or owner["manager"] in found["message"]


def test_the_scaler_of_the_previous_provider_is_not_named() -> None:
    """Its last write stays in managedFields until the next provider writes."""
    observed = owned(running(autoscaling=SCALED), {**THEIRS, "time": "2026-01-02T03:00:00Z"})
    for edited, named in (("2026-01-02T02:59:59Z", True), ("2026-01-02T03:00:01Z", False)):
        for ref, live in observed.children.items():
            if ref.kind == "ControllerRevision":
                live["metadata"]["creationTimestamp"] = edited
        assert (judge(observed)["ScalingReady"]["reason"] == "AnotherScaler") == named


def test_a_manifest_that_keeps_setting_replicas_is_named_after_three_times_and_no_longer_than_it_does() -> None:
    observed, writes = running(autoscaling=SCALED), ManifestWrites()

    def at(second: int, owner: Obj) -> str:
        now: Any = observed.now + timedelta(seconds=second)
        owner = {**owner, "time": now.isoformat()} if "subresource" not in owner else owner
        return writes.observe(owned(observed, owner).resource, now)

    assert [at(second, owner) for second in (0, 3, 6) for owner in (SSA, OURS)] == ["", "", "", "", "flux", "flux"]
    assert at(6 + int(WINDOW.total_seconds()), OURS) == ""
    found = judge(replace(observed, replicas_manager="flux"))["ScalingReady"]
    assert (found["status"], found["reason"]) == ("False", "ReplicasOverwritten")
    assert "flux" in found["message"]
