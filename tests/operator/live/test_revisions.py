"""Tests of revisions on a real API server: edits outside the pod template leave the pods of another operator."""

import copy

import pytest

from e2e.cluster import Kube
from tests.operator.live.objects import Obj, children, demo, wait_condition
from tests.operator.test_revisions import EDITS_OUTSIDE_POD_TEMPLATE
from unmask_operator.objects import RESTARTED_AT

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("shared_operator")]

VARIABLE = {"name": "OF_ANOTHER", "value": "1"}
EDITS = [spec for name, (_, spec) in EDITS_OUTSIDE_POD_TEMPLATE.items() if name != "podMonitor"]


def template_of(kube: Kube, resource: Obj) -> Obj:
    live = kube.get("apps/v1", "Deployment", "demo", resource["metadata"]["namespace"])
    template: Obj = live["spec"]["template"]
    return template


def test_edits_outside_the_pod_template_leave_the_template(admin: Kube, namespace: str) -> None:
    """The newest revision is one that this operator would not render: it has one more environment variable."""
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    theirs = copy.deepcopy(children(admin, resource)["ControllerRevision", "demo-r1"])
    theirs["data"]["template"]["spec"]["containers"][0]["env"].append(VARIABLE)
    kept = {member: theirs["metadata"][member] for member in ("namespace", "labels", "ownerReferences")}
    admin.create({**theirs, "metadata": {**kept, "name": "demo-r2"}, "revision": 2})
    admin.wait(
        "the template of the other revision",
        lambda: VARIABLE in template_of(admin, resource)["spec"]["containers"][0]["env"],
    )
    wait_condition(admin, resource, "UpToDate", "False", "OperatorUpgraded")
    before = template_of(admin, resource)
    for edit in (*EDITS, {"suspend": True}, {"suspend": False}):
        admin.patch(resource, {"spec": edit})
        wait_condition(admin, resource, "Accepted", "True")
        assert template_of(admin, resource) == before, edit
    admin.patch(resource, {"metadata": {"annotations": {RESTARTED_AT: "now"}}})
    wait_condition(admin, resource, "UpToDate", "True")
    assert VARIABLE not in template_of(admin, resource)["spec"]["containers"][0]["env"]
