"""Access that requires a node on this machine: signals to a container's processes, and the API server's audit log."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from e2e.cluster.audit import read_events
from e2e.cluster.config import environment
from e2e.cluster.kube import Obj


def signal_container(pod: Obj, number: int) -> None:
    """Sends a signal to all processes of a pod's only container.

    Raises:
        LookupError: They do not run on this machine.
    """
    container = pod["status"]["containerStatuses"][0]["containerID"].partition("://")[2]
    processes = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cgroup") if container in _text(path)]
    if not processes:
        raise LookupError(f"{pod['metadata']['name']}: no process of container {container} runs here")
    for process in processes:
        os.kill(process, number)


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):  # the process may have ended
        return path.read_text()
    return ""


def audit_log() -> Path:
    """Returns the path of the audit log. It exists only for a cluster that `up` started."""
    config = environment().kubeconfig
    assert config is not None
    return config.parent / "audit.log"


def requests(user: str = "", after: int = 0) -> list[Obj]:
    """Returns the audit events of completed requests, of one user if given, after the log's first `after` bytes."""
    return [event for event in read_events(audit_log(), user, after) if event["stage"] == "ResponseComplete"]


def pod_of(event: Obj) -> str:
    """Returns the name of the pod whose service account token authenticated the request."""
    name: str = event["user"]["extra"]["authentication.kubernetes.io/pod-name"][0]
    return name
