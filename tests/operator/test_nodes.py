"""Tests of node lists: when nodes are listed, which data are retained, and failures of a list."""

import asyncio
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from e2e.cluster import kubeconfig
from unmask_operator.controller.nodes import PAGE, Nodes, slim
from unmask_operator.kube.errors import ApiError
from unmask_operator.kube.kinds import NODES
from unmask_operator.objects import SERVICE_LABEL, Key
from unmask_operator.plan.plan import NODES_SECONDS


def pod(reason="Unschedulable"):
    meta = {"name": "p", "namespace": "ns", "labels": {SERVICE_LABEL: "demo"}}
    return {"metadata": meta, "status": {"conditions": [{"type": "PodScheduled", "status": "False", "reason": reason}]}}


class Lists:
    """Fake client that returns another node for each list of nodes, or fails."""

    def __init__(self):
        self.count = 0
        self.fails = False

    async def list(self, kind, transform, page):
        assert kind is NODES
        self.count += 1
        if self.fails:
            raise ApiError(403, "Forbidden", "nodes is forbidden")
        return [transform({"metadata": {"name": f"node-{self.count}"}})], 1


@pytest.fixture
def clock():
    return [100.0]


def ask(nodes, pods):
    found = asyncio.run(nodes.needed(pods))
    return found and found[0]["metadata"]["name"]


@pytest.mark.parametrize("granted", [True, False])
def test_nodes_are_listed_for_an_unschedulable_pod_and_again_after_a_while(clock, granted):
    client, seen = Lists(), []
    nodes = Nodes(client, granted, lambda key, seconds: None, lambda: clock[0])
    for reason, later in [("", 0), ("Unschedulable", 0), ("Unschedulable", NODES_SECONDS - 1), ("Unschedulable", 2)]:
        clock[0] += later
        seen.append(ask(nodes, [pod(reason)]))
    assert seen == ([None, "node-1", "node-1", "node-2"] if granted else [None] * 4)
    assert client.count == (2 if granted else 0)


def test_concurrent_requests_for_nodes_use_one_list():
    client = Lists()
    nodes = Nodes(client, True, lambda key, seconds: None)

    async def at_once():
        await asyncio.gather(*(nodes.needed([pod()]) for _ in range(16)))

    asyncio.run(at_once())
    assert client.count == 1


def test_a_failed_list_keeps_the_known_nodes_and_is_retried_later(clock):
    client, again = Lists(), []
    nodes = Nodes(client, True, lambda key, seconds: again.append((key, seconds)), lambda: clock[0])
    client.fails = True
    assert [ask(nodes, [pod()]) for _ in range(3)] == [None] * 3
    assert client.count == 1, "each reconcile repeated the failed list"
    assert again == [(Key("ns", "demo"), NODES_SECONDS)] * 3, "no later reconcile is scheduled to repeat the list"
    client.fails = False
    clock[0] += NODES_SECONDS + 1
    assert ask(nodes, [pod()]) == "node-2"
    client.fails = True
    clock[0] += NODES_SECONDS + 1
    assert ask(nodes, [pod()]) == "node-2"


def node(number):
    """Returns a node of 20 kB, as in a cluster that has run for a while."""
    images = [
        {"names": [f"registry.example.com/team/image-{i}@sha256:{i:064x}", f"registry.example.com/team/image-{i}:v{i}"]}
        for i in range(120)
    ]
    meta = {"name": f"node-{number}", "uid": f"{number:032x}", "managedFields": [{"manager": "kubelet"}]}
    labels = {f"node.example.com/label-{i}": "value" for i in range(30)}
    allocatable = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}
    return {"metadata": {**meta, "labels": labels}, "status": {"allocatable": allocatable, "images": images}}


def test_a_cached_node_has_its_labels_and_devices():
    slimmed = slim(node(3))
    assert slimmed["metadata"]["name"] == "node-3"
    assert slimmed["metadata"]["labels"] == node(3)["metadata"]["labels"]
    assert slimmed["status"] == {"allocatable": {"nvidia.com/gpu": "8"}}
    assert slim({"metadata": {"name": "bare"}})["status"] == {"allocatable": {}}


def test_slim_retains_the_fields_that_exclude_pods():
    full = node(3)
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    full["spec"] = {
        "podCIDR": "10.0.0.0/24",
        "unschedulable": True,
        "taints": [{**taint, "timeAdded": "2030-01-01T00:00:00Z"}],
    }
    full["status"]["conditions"] = [
        {"type": "DiskPressure", "status": "False", "reason": "KubeletHasNoDiskPressure"},
        {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting"},
    ]
    slimmed = slim(full)
    assert slimmed["spec"] == {"taints": [taint], "unschedulable": True}
    assert slimmed["status"]["conditions"] == [{"type": "Ready", "status": "Unknown"}]
    full["status"]["conditions"][1]["status"] = "True"
    assert "conditions" not in slim(full)["status"]


COUNT = 1000

PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.operator.clients import client_of
from unmask_operator.kube.kinds import NODES
from unmask_operator.controller.nodes import slim

def peak():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))

async def run():
    async with client_of(Path(sys.argv[1])) as client:
        await client.request("GET", "/version")
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        before = peak()
        nodes, _ = await client.list(NODES, transform=slim, page=int(sys.argv[2]))
        grown = peak() - before
    print(len(nodes), grown)

asyncio.run(run())
"""


class ApiServer(BaseHTTPRequestHandler):
    """Lists COUNT nodes, in pages of the requested size."""

    def do_GET(self):
        asked = parse_qs(urlsplit(self.path).query)
        start, limit = int(asked.get("continue", ["0"])[0]), int(asked.get("limit", [COUNT])[0])
        end = min(start + limit, COUNT)
        meta = {"resourceVersion": "1", **({"continue": str(end)} if end < COUNT else {})}
        body = json.dumps({"metadata": meta, "items": [node(number) for number in range(start, end)]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.matrix
def test_a_thousand_nodes_of_20_kb_take_less_than_20_mb_at_the_peak(tmp_path):
    assert len(json.dumps(node(1))) > 20_000
    with ThreadingHTTPServer(("127.0.0.1", 0), ApiServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        file = kubeconfig.write(tmp_path / "config", f"http://127.0.0.1:{server.server_port}", b"", user="u")
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(file), str(PAGE)], stdout=subprocess.PIPE, text=True, check=True
        )
        server.shutdown()
    count, grown = map(int, done.stdout.split())
    assert count == COUNT
    assert grown < 20e6
