"""Tests of the chart's tolerations and node selector for engines with spec.gpu."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.operator.samples import SETTINGS, apply, edit, make, observe, resource, running, settled, template
from unmask_operator.objects import Obj
from unmask_operator.settings import Settings
from unmask_operator.status import status

TAINTED = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
OWN = {"key": "team", "value": "a"}
GPU_NODES = Settings(gpu_tolerations=[TAINTED], gpu_node_selector={"pool": "gpu", "zone": "a"})
EMPTY = replace(SETTINGS, gpu_tolerations=[], gpu_node_selector={})
LINUX = {"kubernetes.io/os": "linux"}
MERGED = {"tolerations": [OWN, TAINTED], "nodeSelector": {"zone": "b", "disk": "ssd"}}
REMOVED = {"tolerations": None, "nodeSelector": {"zone": None}}


@pytest.mark.parametrize(
    ("settings", "spec", "tolerations", "selector"),
    [
        (GPU_NODES, {"gpu": {}}, [TAINTED], LINUX | {"pool": "gpu", "zone": "a"}),
        (GPU_NODES, {}, None, LINUX),
        (EMPTY, {"gpu": {}}, None, LINUX),
        (replace(EMPTY, engine_node_selector={}), {"gpu": {}}, None, None),
        (
            GPU_NODES,
            {"gpu": {}, "podTemplate": {"spec": MERGED}},
            [TAINTED, OWN],
            LINUX | {"pool": "gpu", "zone": "b", "disk": "ssd"},
        ),
        (GPU_NODES, {"gpu": {}, "podTemplate": {"spec": REMOVED}}, None, LINUX | {"pool": "gpu"}),
    ],
)
def test_engines_with_gpus_get_the_tolerations_and_node_selector(
    settings: Settings, spec: Obj, tolerations: object, selector: object
) -> None:
    found = template(make(observe(resource(**spec)), settings))["spec"]
    assert (found.get("tolerations"), found.get("nodeSelector")) == (tolerations, selector)
    if "podTemplate" not in spec:
        others = found.keys() - {"tolerations", "nodeSelector"}
        default = template(make(observe(resource(**spec))))["spec"]
        assert {member: found[member] for member in others} == {member: default[member] for member in others}
    assert GPU_NODES.gpu_tolerations == [TAINTED], "rendering changed the settings"
    assert GPU_NODES.gpu_node_selector == {"pool": "gpu", "zone": "a"}


def test_a_changed_value_restarts_no_pod_and_is_adopted_by_the_next_edit_of_the_pods() -> None:
    observed = running(gpu={})
    made = make(observed, GPU_NODES)
    assert template(made) == template(make(observed))
    assert settled(made, observed)
    up_to_date = next(c for c in status(observed, made)["conditions"] if c["type"] == "UpToDate")
    assert (up_to_date["status"], up_to_date["reason"]) == ("False", "OperatorUpgraded")
    assert template(make(edit(observed, replicas=3), GPU_NODES)) == template(make(observed))
    edited = edit(observed, engine={"maxNumReqs": 7})
    adopted = make(edited, GPU_NODES)
    assert template(adopted)["spec"]["tolerations"] == [TAINTED]
    assert adopted.up_to_date
    back = make(apply(edited, adopted), SETTINGS)
    assert template(back)["spec"]["tolerations"] == [TAINTED]
    assert not back.up_to_date
    assert make(running(), GPU_NODES).up_to_date
