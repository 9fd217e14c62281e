"""Collects the logs that explain a failed test."""

from __future__ import annotations

import re
from pathlib import Path

from urllib3.exceptions import HTTPError

from e2e.cluster import ApiError, Kube
from e2e.host import audit_log
from e2e.release import NAMESPACE, operators

LINES = 80  # per log
_ERROR = re.compile(r"[EF]\d{4} |panic|goroutine ")  # how klog begins errors, and how Go begins the trace of a panic


def collect(kube: Kube) -> list[tuple[str, str]]:
    """Returns titles and texts: the API server's errors, and the logs of each operator's pod."""
    found = [("errors of the API server", _errors(audit_log().parent / "logs" / "kube-apiserver.log"))]
    try:
        for name in (pod["metadata"]["name"] for pod in operators(kube)):
            found.append((f"log of {name}", _log(kube, name)))
            found.append((f"log of {name} before its last restart", _log(kube, name, previous="true")))
    except (ApiError, HTTPError) as error:
        found.append(("operator's pods", f"cannot be listed: {error}"))
    return [(title, text) for title, text in found if text]


def _errors(log: Path) -> str:
    """Returns the last errors of a log of klog. It is empty for a cluster that another program started."""
    if not log.exists():
        return ""
    lines = log.read_text(errors="replace").splitlines()
    return "\n".join([line for line in lines if _ERROR.match(line)][-LINES:])


def _log(kube: Kube, pod: str, **query: str) -> str:
    """Returns the last lines of a pod's log. It is empty if the container did not restart, for `previous`."""
    try:
        path = kube.path("v1", "Pod", NAMESPACE, pod, "log")
        answer = kube.request("GET", path, tailLines=LINES, **query)
    except ApiError:
        return ""
    return str(answer.get("text", answer))  # a log of one line of JSON is an object
