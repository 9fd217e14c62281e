"""Tests of node lists: when nodes are listed, which data are retained, and failures of a list."""

import asyncio

import pytest

from unmask_operator.controller.nodes import PAGE, Nodes, slim
from unmask_operator.kinds import NODES
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import SERVICE_LABEL, Key
from unmask_operator.plan.plan import NODES_SECONDS


def pod(reason="Unschedulable", says=""):
    meta = {"name": "p", "namespace": "ns", "labels": {SERVICE_LABEL: "demo"}}
    condition = {"type": "PodScheduled", "status": "False", "reason": reason, "message": says}
    return {"metadata": meta, "status": {"conditions": [condition]}}


class Lists:
    """Fake client that returns another node for each list of nodes, or fails. `nodes` uses it and the clock `now`."""

    def __init__(self, granted=True):
        self.count, self.fails, self.now, self.requeued = 0, False, 100.0, []
        self.nodes = Nodes(self, granted, lambda key, seconds: self.requeued.append((key, seconds)), lambda: self.now)

    async def list(self, kind, transform, page):
        assert (kind, page) == (NODES, PAGE)  # a whole list may take much memory
        self.count += 1
        if self.fails:
            raise ApiError(403, "Forbidden", "nodes is forbidden")
        node = {"metadata": {"name": f"node-{self.count}"}, "status": {"images": [{"names": ["large"]}]}}
        return [transform(node)], 1

    def ask(self, reason="Unschedulable", later=0.0, says=""):
        self.now += later
        found = asyncio.run(self.nodes.needed([pod(reason, says)]))
        assert "large" not in str(found)
        return found and found[0]["metadata"]["name"]


@pytest.mark.parametrize("granted", [True, False])
def test_nodes_are_listed_for_an_unschedulable_pod_and_again_after_a_while(granted):
    lists = Lists(granted)
    asks = [("", 0), ("Unschedulable", 0), ("Unschedulable", NODES_SECONDS), ("Unschedulable", 1)]
    seen = [lists.ask(*each) for each in asks]
    assert seen == ([None, "node-1", "node-1", "node-2"] if granted else [None] * 4)
    assert lists.count == (2 if granted else 0)
    assert lists.requeued == []


def test_nodes_are_listed_less_often_while_the_scheduler_says_the_same():
    lists = Lists()
    for _ in range(60):
        lists.ask(later=30.5)
    assert lists.count < 12, "a GPU pod that waits for half an hour lists all nodes each half minute"
    lists.ask(says="0/3 nodes are available: 3 Insufficient cpu.")
    assert lists.ask(says="0/3 nodes are available: 3 Insufficient cpu.", later=30.5) == f"node-{lists.count}"


def test_concurrent_requests_for_nodes_use_one_list():
    lists = Lists()

    async def at_once():
        await asyncio.gather(*(lists.nodes.needed([pod()]) for _ in range(16)))

    asyncio.run(at_once())
    assert lists.count == 1


def test_a_failed_list_keeps_the_known_nodes_and_is_retried_later():
    lists = Lists()
    lists.fails = True
    assert [lists.ask() for _ in range(3)] == [None] * 3
    assert lists.count == 1, "each reconcile repeated the failed list"
    assert lists.requeued == [(Key("ns", "demo"), NODES_SECONDS)] * 3, "no later reconcile repeats the list"
    lists.fails = False
    assert lists.ask(later=NODES_SECONDS + 1) == "node-2"
    lists.fails = True
    assert lists.ask(later=NODES_SECONDS + 1) == "node-2"


TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
PRESSURE = {"type": "DiskPressure", "status": "False", "reason": "KubeletHasNoDiskPressure"}
LOST = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting"}


@pytest.mark.parametrize(
    ("node", "slimmed"),
    [
        ({"metadata": {"name": "n"}}, {}),
        ({"metadata": {"name": "n", "labels": {"a": "b"}, "managedFields": [{}]}}, {"labels": {"a": "b"}}),
        ({"status": {"allocatable": {"cpu": "64", "nvidia.com/gpu": "8"}}}, {"gpus": {"nvidia.com/gpu": "8"}}),
        ({"status": {"conditions": [PRESSURE, LOST]}}, {"conditions": [{"type": "Ready", "status": "Unknown"}]}),
        ({"status": {"conditions": [PRESSURE, {**LOST, "status": "True"}]}}, {}),
        ({"spec": {"podCIDR": "c", "unschedulable": True, "taints": [{**TAINT, "timeAdded": "t"}]}},
         {"spec": {"taints": [TAINT], "unschedulable": True}}),
        ({"spec": {"unschedulable": False, "taints": []}}, {}),
    ],
)  # fmt: skip
def test_slim_retains_labels_devices_and_what_excludes_pods(node, slimmed):
    found = slim({"metadata": {"name": "n"}, **node})
    assert found["metadata"] == {"name": "n", "labels": slimmed.get("labels", {})}
    conditions = {"conditions": slimmed["conditions"]} if "conditions" in slimmed else {}
    assert found["status"] == {"allocatable": slimmed.get("gpus", {}), **conditions}
    assert found.get("spec") == slimmed.get("spec")
