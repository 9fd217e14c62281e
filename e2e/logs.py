"""Collects the logs that explain a failed test."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from e2e.cluster import ApiError, Kube
from e2e.host import audit_log
from e2e.pods import log
from e2e.release import NAMESPACE, operators

LINES = 80  # per log
_ERROR = re.compile(r"[EF]\d{4} |panic|goroutine ")  # how klog begins errors, and how Go begins the trace of a panic


def collect(kube: Kube) -> Iterator[tuple[str, str]]:
    """Yields titles and texts: the API server's errors, and the logs of each operator's pod."""
    if errors := _errors(audit_log().parent / "logs" / "kube-apiserver.log"):
        yield "errors of the API server", errors
    for name in [pod["metadata"]["name"] for pod in operators(kube)]:
        for title, query in (("", {}), (" before its last restart", {"previous": "true"})):
            with contextlib.suppress(ApiError):  # the container did not start, or did not restart
                yield f"log of {name}{title}", log(kube, NAMESPACE, name, tailLines=LINES, **query)


def _errors(file: Path) -> str:
    """Returns the last errors of a log of klog. It is empty for a cluster that another program started."""
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    return "\n".join([line for line in lines if _ERROR.match(line)][-LINES:])
