"""``python -m e2e.latency``: measures the latencies that a user sees, on the cluster that `up` started.

Each repetition applies the demo service and waits until it is Ready. It then edits the service, finds the operator's
first write to a child in the audit log, and deletes the service. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import os
import secrets
import time
from datetime import datetime
from statistics import median

from e2e.cluster import Kube
from e2e.cluster.config import environment
from e2e.cluster.kube import Obj
from e2e.host import audit_log, requests
from e2e.release import ACCOUNT
from e2e.services import EXAMPLES, condition, get, kubectl, patch, pods


def apply_to_ready(kube: Kube, namespace: str) -> float:
    start = time.monotonic()
    kubectl("apply", "-f", str(EXAMPLES / "demo-service.yaml"), namespace=namespace)
    kube.wait("Ready", lambda: condition(get(kube, namespace), "Ready").get("status") == "True", timeout=300)
    return time.monotonic() - start


def edit_to_write(kube: Kube, namespace: str) -> float:
    """Returns the seconds from the end of the edit's request to the operator's first write to a child.

    Dry runs do not count.
    """
    log = audit_log().stat().st_size
    patch(kube, namespace, {"engine": {"maxNumReqs": 12}})

    def writes() -> list[Obj]:
        events = [e for e in requests(after=log) if (e.get("objectRef") or {}).get("namespace") == namespace]
        return [e for e in events if e["verb"] in ("create", "patch", "delete") and "dryRun" not in e["requestURI"]]

    def to_children() -> list[Obj]:
        own = [e for e in writes() if e["user"]["username"] == ACCOUNT]
        return [e for e in own if _about(e) not in ("diffusionlmservices", "events")]

    first = min(_time(e, "requestReceivedTimestamp") for e in kube.wait("a write", to_children))
    others = [e for e in writes() if e["user"]["username"] != ACCOUNT]
    (edit,) = (e for e in others if _about(e) == "diffusionlmservices")
    return first - _time(edit, "stageTimestamp")


def _about(event: Obj) -> str:
    return str(event["objectRef"]["resource"])


def _time(event: Obj, member: str) -> float:
    return datetime.fromisoformat(event[member]).timestamp()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m e2e.latency", description=__doc__)
    parser.add_argument("--times", type=int, default=3, help="how often (default 3)")
    times = parser.parse_args().times
    config = environment().kubeconfig
    if config is None or not audit_log().exists():
        parser.error('no cluster of this machine: eval "$(python -m e2e.cluster up)" first')
    kube = Kube(config)
    print(f"load average: {os.getloadavg()[0]:.1f}")
    ready, edit = [], []
    for _ in range(times):
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"latency-{secrets.token_hex(3)}"}}
        name = kube.create(namespace)["metadata"]["name"]
        try:
            ready.append(apply_to_ready(kube, name))
            edit.append(edit_to_write(kube, name))
        finally:
            kube.delete(namespace)
        kube.wait("its end", lambda name=name: not pods(kube, name))
        print(f"apply -> Ready {ready[-1]:5.1f} s    edit -> first write to a child {edit[-1]:5.2f} s", flush=True)
    print(f"median        {median(ready):5.1f} s (bar 20)                        {median(edit):5.2f} s (bar 1)")


if __name__ == "__main__":
    main()
