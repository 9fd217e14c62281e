"""The chart, as a user installs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from e2e.cluster.binaries import say
from e2e.cluster.node.images import ROOT

RELEASE, NAMESPACE = "unmask-operator", "unmask-system"


def install_chart(helm: Path, kubeconfig: Path, identity: str) -> None:
    """Install the chart or upgrade it, and wait until its pods are ready.

    `identity` is the operator image's: the tag stays the same from build to build, so the pods would, too.
    """
    say(f"installing the chart into {NAMESPACE}")
    command = [str(helm), "upgrade", "--install", RELEASE, str(ROOT / "charts" / "unmask-operator")]
    command += ["--namespace", NAMESPACE, "--create-namespace", "--kubeconfig", str(kubeconfig)]
    command += ["--set-string", f"podAnnotations.image={identity[:12]}", "--wait", "--timeout", "5m"]
    subprocess.run(command, stdout=sys.stderr, check=True)
