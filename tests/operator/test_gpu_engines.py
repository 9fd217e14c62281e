"""Tests of the chart's tolerations and node selector for engines with spec.gpu."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.operator.samples import SETTINGS, make, observe, resource, template
from unmask_operator.objects import Obj
from unmask_operator.settings import Settings

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
    assert GPU_NODES.gpu_tolerations == [TAINTED], "rendering changed the settings"
    assert GPU_NODES.gpu_node_selector == {"pool": "gpu", "zone": "a"}
