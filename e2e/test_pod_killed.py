"""Test of a pod that is killed under load: only its requests fail, with an error; the second pod serves all others."""

from __future__ import annotations

import subprocess

from e2e.cluster import Kube
from e2e.cluster.kube import Obj
from e2e.load import CLIENTS, Load, load
from e2e.services import POD_TIMEOUT, condition, demo, get, is_ready, kubectl, kubectl_command, pods, wait_condition

LOST = ("EOF", "connection reset", "broke off")  # errors of clients whose request was in a process that died
# Errors of clients whose request was sent to an address that is still an endpoint, or to the restarted container.
SENT_TO_NOBODY = ("connection refused", "no route to host", "model is being loaded")
# Kills the engine's first process without a drain, as the kernel does when memory runs out. The process is busy then,
# and is stopped for some seconds before. Clients keep sending meanwhile, so even a fast engine has requests in flight.
CRASH = """
import os, pathlib, re, signal, time, urllib.request
processes = pathlib.Path("/proc").glob("[0-9]*")
engine = min(int(one.name) for one in processes if b"runtime.server" in (one / "cmdline").read_bytes())
busy = re.compile(rb"^unmask_requests_running [1-9]", re.M)
while not busy.search(urllib.request.urlopen("http://127.0.0.1:8000/metrics").read()):
    time.sleep(0.01)
os.kill(engine, signal.SIGSTOP)
time.sleep(3)
os.kill(engine, signal.SIGKILL)
"""


def serving(kube: Kube, namespace: str) -> list[Obj]:
    """Returns the service's two pods if both and the service are Ready; else an empty list."""
    service, found = get(kube, namespace), pods(kube, namespace)
    ready = [pod for pod in found if is_ready(pod)]
    is_complete = len(found) == len(ready) == service["status"].get("readyReplicas") == 2
    return ready if is_complete and condition(service, "Ready")["status"] == "True" else []


def lost_since(before: int, under: Load) -> int:
    """Returns the number of requests that were lost with a pod, after the first `before` failures.

    Checks that every other failure is one of SENT_TO_NOBODY, and that all failed requests started before this call.
    """
    now = under.report().seconds
    failures = under.wait_requests(100).failures[before:]
    for one in failures:
        print(one)
        assert one.started < now, one
        assert any(text in one.cause for text in LOST + SENT_TO_NOBODY), one
    return sum(any(text in one.cause for text in LOST) for one in failures)


def test_only_requests_of_the_dead_pod_fail(kube: Kube, namespace: str) -> None:
    # In a shared process namespace the engine is not process 1, which cannot be killed from inside a pod. The CPU limit
    # leaves CPU for the restarted container under constant load.
    spec = {
        "replicas": 2,
        "podTemplate": {"spec": {"shareProcessNamespace": True}},
        "resources": {"limits": {"cpu": "700m"}},
    }
    kube.create(demo(namespace, spec=spec))
    wait_condition(kube, namespace)
    victim = pods(kube, namespace)[0]["metadata"]
    with load(kube, namespace, pause="150ms") as under:
        assert not under.report().failed
        # The exit code is not checked, because this process may die with the container. The restart is checked below.
        crash = kubectl_command("exec", victim["name"], "--", "python", "-c", CRASH, namespace=namespace)
        subprocess.run(crash, capture_output=True)

        def restarted() -> bool:
            pod = kube.get("v1", "Pod", victim["name"], namespace)
            return pod["status"]["containerStatuses"][0]["restartCount"] >= 1 and bool(serving(kube, namespace))

        kube.wait("the pod's second life", restarted, timeout=POD_TIMEOUT)
        assert 0 < lost_since(0, under) <= CLIENTS
        before = under.report().failed

        kubectl("delete", "pod", victim["name"], "--grace-period=0", "--force", namespace=namespace)

        def replaced() -> bool:
            return victim["uid"] not in {pod["metadata"]["uid"] for pod in serving(kube, namespace)} != set()

        kube.wait("another pod in its place", replaced, timeout=POD_TIMEOUT)
        assert lost_since(before, under) <= CLIENTS
