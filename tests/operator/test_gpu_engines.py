"""Tests of the chart's tolerations and node selector for engines with spec.gpu."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.operator.samples import SETTINGS, apply, edit, make, observe, resource, running, settled, template
from unmask_operator.objects import Obj
from unmask_operator.settings import Settings
from unmask_operator.status import status

TAINTED = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
GPU_NODES = Settings(gpu_tolerations=[TAINTED], gpu_node_selector={"pool": "gpu", "zone": "a"})


def pod_spec(settings: Settings, **spec: Any) -> Obj:
    found: Obj = template(make(observe(resource(**spec)), settings))["spec"]
    return found


def test_every_engine_with_gpus_gets_the_tolerations_and_node_selector() -> None:
    found = pod_spec(GPU_NODES, gpu={})
    assert found["tolerations"] == [TAINTED]
    assert found["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "gpu", "zone": "a"}
    assert {**found, "tolerations": None, "nodeSelector": None} == {
        **pod_spec(SETTINGS, gpu={}),
        "tolerations": None,
        "nodeSelector": None,
    }


def test_an_engine_without_gpus_gets_neither() -> None:
    assert template(make(observe(resource()), GPU_NODES)) == template(make(observe(resource())))


@pytest.mark.parametrize("spec", [{}, {"gpu": {}}])
def test_empty_values_leave_the_pods_as_they_were(spec: Obj) -> None:
    empty = replace(SETTINGS, gpu_tolerations=[], gpu_node_selector={})
    found = pod_spec(empty, **spec)
    assert found == pod_spec(SETTINGS, **spec)
    assert "tolerations" not in found
    assert found["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert "nodeSelector" not in pod_spec(replace(empty, engine_node_selector={}), **spec)


def test_the_pod_template_is_merged_over_the_tolerations_and_node_selector() -> None:
    own = {"key": "team", "value": "a"}
    patch = {"spec": {"tolerations": [own, TAINTED], "nodeSelector": {"zone": "b", "disk": "ssd"}}}
    found = pod_spec(GPU_NODES, gpu={}, podTemplate=patch)
    assert found["tolerations"] == [TAINTED, own]
    assert found["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "gpu", "zone": "b", "disk": "ssd"}
    without = pod_spec(GPU_NODES, gpu={}, podTemplate={"spec": {"tolerations": None, "nodeSelector": {"zone": None}}})
    assert "tolerations" not in without
    assert without["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "gpu"}


def test_a_changed_value_restarts_no_pod_and_is_adopted_by_the_next_edit_of_the_pods() -> None:
    observed = running(gpu={})
    made = make(observed, GPU_NODES)
    assert template(made) == template(make(observed))
    assert settled(made, observed)
    up_to_date = next(c for c in status(observed, made)["conditions"] if c["type"] == "UpToDate")
    assert (up_to_date["status"], up_to_date["reason"]) == ("False", "OperatorUpgraded")
    scaled = edit(observed, replicas=3)
    assert template(make(scaled, GPU_NODES)) == template(make(observed))
    edited = edit(observed, engine={"maxNumReqs": 7})
    adopted = make(edited, GPU_NODES)
    assert template(adopted)["spec"]["tolerations"] == [TAINTED]
    assert adopted.up_to_date
    back = make(apply(edited, adopted), SETTINGS)
    assert template(back)["spec"]["tolerations"] == [TAINTED]
    assert not back.up_to_date


def test_a_changed_value_does_not_affect_engines_without_gpus() -> None:
    assert make(running(), GPU_NODES).up_to_date


def test_rendering_does_not_change_the_settings() -> None:
    pod_spec(GPU_NODES, gpu={}, podTemplate={"spec": {"tolerations": [{"key": "a"}], "nodeSelector": {"pool": "x"}}})
    assert GPU_NODES.gpu_tolerations == [TAINTED]
    assert GPU_NODES.gpu_node_selector == {"pool": "gpu", "zone": "a"}
