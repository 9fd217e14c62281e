"""The charts, as a user installs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from e2e.cluster.binaries import say
from e2e.cluster.node.images import ROOT

RELEASE, CRDS, NAMESPACE = "unmask-operator", "unmask-crds", "unmask-system"
REGISTRY = "docker.io/library"  # as the node calls images that are loaded into it by name


def install_chart(helm: Path, kubeconfig: Path, identity: str) -> None:
    """Install both charts or upgrade them, and wait until the operator's pods are ready.

    `identity` is the operator image's: the tag stays the same from build to build, so the pods would, too.
    """
    say(f"installing the charts into {NAMESPACE}")
    values = f"podAnnotations.image={identity[:12]},global.imageRegistry={REGISTRY}"
    for release, more in ((CRDS, ()), (RELEASE, ("--set-string", values))):
        command = [str(helm), "upgrade", "--install", release, str(ROOT / "charts" / release)]
        command += ["--namespace", NAMESPACE, "--create-namespace", "--kubeconfig", str(kubeconfig)]
        subprocess.run([*command, *more, "--wait", "--timeout", "10m"], stdout=sys.stderr, check=True)
