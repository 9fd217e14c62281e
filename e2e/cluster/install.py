"""Installs the charts as a user does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from e2e.cluster.binaries import say
from e2e.cluster.node.images import ROOT

RELEASE, CRDS, NAMESPACE = "unmask-operator", "unmask-crds", "unmask-system"
REGISTRY = "docker.io/library"  # the registry in the names of images that are loaded into the node


def install_chart(helm: Path, kubeconfig: Path, identity: str) -> None:
    """Installs or upgrades both charts, and waits until the operator's pods are ready.

    Args:
        identity: Digest of the operator's image. It becomes an annotation of the pods, because the tag does not change
            from build to build and the pods would not be replaced otherwise.
    """
    say(f"installing the charts into {NAMESPACE}")
    values = f"podAnnotations.image={identity[:12]},global.imageRegistry={REGISTRY}"
    for release, more in ((CRDS, ()), (RELEASE, ("--set-string", values))):
        command = [str(helm), "upgrade", "--install", release, str(ROOT / "charts" / release)]
        command += ["--namespace", NAMESPACE, "--create-namespace", "--kubeconfig", str(kubeconfig)]
        subprocess.run([*command, *more, "--wait", "--timeout", "10m"], stdout=sys.stderr, check=True)
