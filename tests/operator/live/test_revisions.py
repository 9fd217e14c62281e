"""Tests of revisions on a real API server.

Edits that do not affect pods leave the pod template unchanged, also if another operator wrote the newest revision.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from e2e.cluster import Kube
from e2e.cluster.operator_process import OperatorProcess
from tests.operator.live.objects import Obj, children, demo, read, wait_condition
from tests.operator.test_revisions import EDITS_OUTSIDE_POD_TEMPLATE
from unmask_operator.objects import RESTARTED_AT

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("shared_operator")]

EDITS = [
    *(spec for name, (_, spec) in EDITS_OUTSIDE_POD_TEMPLATE.items() if name != "podMonitor"),
    {"suspend": True},
    {"suspend": False},
]


def pin_by_another(kube: Kube, resource: Obj, data: dict[str, Any]) -> Obj:
    """Creates a revision after the newest one, with the same owner, as another version of the operator would."""
    of_ours = [obj for (kind, _), obj in children(kube, resource).items() if kind == "ControllerRevision"]
    newest = copy.deepcopy(max(of_ours, key=lambda obj: obj["revision"]))
    number, meta = newest["revision"] + 1, newest["metadata"]
    owner_metadata = {member: meta[member] for member in ("namespace", "labels", "ownerReferences")}
    name = f"{resource['metadata']['name']}-r{number}"
    made = {
        **newest,
        "metadata": {**owner_metadata, "name": name},
        "revision": number,
        "data": {**newest["data"], **data},
    }
    return kube.create(made)


def deployment(kube: Kube, resource: Obj) -> Obj:
    return kube.get("apps/v1", "Deployment", resource["metadata"]["name"], resource["metadata"]["namespace"])


def template_of(kube: Kube, resource: Obj) -> Obj:
    template: Obj = deployment(kube, resource)["spec"]["template"]
    return template


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: "-".join(f"{k}" for k in edit))
def test_an_edit_outside_the_pod_template_leaves_the_template(
    admin: Kube, namespace: str, edit: dict[str, Any]
) -> None:
    """Checks this with a newest revision that this operator would not render: it has one more environment variable."""
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    template = copy.deepcopy(template_of(admin, resource))
    template["spec"]["containers"][0]["env"].append({"name": "OF_ANOTHER", "value": "1"})
    pin_by_another(admin, resource, {"template": template})

    def follows() -> bool:
        return {"name": "OF_ANOTHER", "value": "1"} in template_of(admin, resource)["spec"]["containers"][0]["env"]

    admin.wait("the other's form", follows)
    wait_condition(admin, resource, "UpToDate", "False", "OperatorUpgraded")
    before = template_of(admin, resource)
    admin.patch(resource, {"spec": edit})
    wait_condition(admin, resource, "Accepted", "True")
    assert template_of(admin, resource) == before


def test_a_revision_of_an_unknown_format_is_reported_and_the_pods_stay(
    admin: Kube, namespace: str, shared_operator: OperatorProcess
) -> None:
    resource = admin.create(demo(namespace))
    wait_condition(admin, resource, "Accepted", "True")
    before = template_of(admin, resource)
    theirs = pin_by_another(admin, resource, {"format": 2})
    up_to_date = wait_condition(admin, resource, "UpToDate", "False", "UnknownPin")
    assert "demo-r2" in up_to_date["message"]
    admin.patch(resource, {"spec": {"engine": {"maxNumReqs": 7}}})
    wait_condition(admin, resource, "UpToDate", "False", "UnknownPin")
    assert template_of(admin, resource) == before
    admin.patch(resource, {"spec": {"replicas": 2}}, subresource="scale")
    admin.wait("two replicas", lambda: deployment(admin, resource)["spec"]["replicas"] == 2)
    assert template_of(admin, resource) == before

    admin.patch(resource, {"metadata": {"annotations": {RESTARTED_AT: "now"}}})

    def adopted() -> bool:
        return "--max-num-reqs=7" in template_of(admin, resource)["spec"]["containers"][0]["args"]

    admin.wait("this operator's form", adopted)
    wait_condition(admin, resource, "UpToDate", "True")
    pins = sorted(name for kind, name in children(admin, resource) if kind == "ControllerRevision")
    assert pins == ["demo-r1", "demo-r2", "demo-r3"]
    assert read(admin, resource)["status"]["conditions"]
    assert admin.get("apps/v1", "ControllerRevision", "demo-r2", namespace)["data"] == theirs["data"]
    assert "Traceback" not in shared_operator.log()
