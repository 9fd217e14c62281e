"""Tests that running services keep the pod template of their recorded revision until it is adopted.

An adopted template gains what is listed here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.operator.samples import SETTINGS, apply, child, edit, make, observe, resource, template
from unmask_operator.objects import RESTARTED_AT, TEMPLATE_LABEL, Obj
from unmask_operator.plan.drift import differs
from unmask_operator.status import status

RECORDED = list(yaml.safe_load_all((Path(__file__).parent / "recorded/revisions.yaml").read_text(encoding="utf-8")))
NAMES = sorted(obj["metadata"]["name"] for obj in RECORDED if obj["kind"] == "Deployment")
# Members that a template gains when this operator renders it again.
GAINED = {
    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
    "nodes": {"kubernetes.io/os": "linux"},
}


def recorded(name: str):
    children = [obj for obj in RECORDED if obj["metadata"]["labels"]["serving.unmask.dev/service"] == name]
    (pin,) = [obj for obj in children if obj["kind"] == "ControllerRevision"]
    observed = observe(resource(name, **pin["data"]["spec"]), *children)
    observed.resource["spec"]["replicas"] = child_of(children)["spec"]["replicas"]
    return observed


def child_of(children) -> Obj:
    (found,) = [obj for obj in children if obj["kind"] == "Deployment"]
    return found


@pytest.mark.parametrize("name", NAMES)
def test_an_upgrade_of_the_operator_changes_no_pod_template(name):
    observed = recorded(name)
    live = child_of(observed.children.values())
    made = make(observed)
    assert not differs(child(made, "Deployment"), live)
    assert template(made) == live["spec"]["template"]
    after = apply(observed, made)
    (found,) = [c for c in status(after, make(after))["conditions"] if c["type"] == "UpToDate"]
    assert (found["status"], found["reason"]) == ("False", "OperatorUpgraded")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "change",
    [{"replicas": 5}, {"suspend": True}, {"service": {"port": 8080}}, {"podDisruptionBudget": {"minAvailable": 1}}],
    ids=str,
)
def test_an_edit_of_another_section_changes_no_pod_template(name, change):
    observed = recorded(name)
    made = make(edit(observed, **change))
    assert template(made) == child_of(observed.children.values())["spec"]["template"]


@pytest.mark.parametrize("name", NAMES)
def test_a_restart_adopts_what_the_changelog_lists(name):
    observed = recorded(name)
    old = child_of(observed.children.values())["spec"]["template"]
    observed.resource["metadata"]["annotations"] = {RESTARTED_AT: "now"}
    adopted = template(make(observed))
    assert adopted["metadata"]["annotations"] == {
        **old["metadata"]["annotations"],
        **GAINED["annotations"],
        RESTARTED_AT: "now",
    }
    labels = {**old["metadata"]["labels"], TEMPLATE_LABEL: adopted["metadata"]["labels"][TEMPLATE_LABEL]}
    assert adopted["metadata"]["labels"] == labels
    nodes = {**GAINED["nodes"], **old["spec"].get("nodeSelector", {})}
    image = SETTINGS.runtime_image
    containers = [{**c, "image": image} for c in old["spec"]["containers"]]
    key = [e for e in adopted["spec"]["containers"][0]["env"] if e["name"] == "MODEL_REVISION"]
    for one in containers:  # a restart resolves the hub's commit again
        one["env"] = [(key[0] if e["name"] == "MODEL_REVISION" else e) for e in one["env"]]
    assert adopted["spec"] == {**old["spec"], "nodeSelector": nodes, "containers": containers}
