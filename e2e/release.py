"""Upgrades, uninstalls and restores the chart's release on the cluster."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from e2e.cluster import Kube
from e2e.cluster.config import environment
from e2e.cluster.install import CRDS, NAMESPACE, RELEASE
from e2e.cluster.kube import Obj
from e2e.cluster.node.images import ROOT
from e2e.services import POD_TIMEOUT

__all__ = ["ACCOUNT", "CHART", "CRDS", "CRDS_CHART", "NAMESPACE", "RELEASE", "Release", "helm", "leader", "operators"]

CHART = ROOT / "charts" / RELEASE
CRDS_CHART = ROOT / "charts" / CRDS
WAIT = "10m"  # helm's timeout until the operator's pods match the release
HELM_TIMEOUT = 900  # seconds: longer than WAIT, so that helm itself can report what did not become ready
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"  # the operator's user


def helm(*arguments: str, values: Obj | None = None) -> str:
    """Runs helm and returns its stdout. Raises AssertionError with its output if it fails."""
    line = ["helm", *arguments, "--namespace", NAMESPACE, "--kubeconfig", str(environment().kubeconfig)]
    done = subprocess.run(line, input=json.dumps(values or {}), capture_output=True, text=True, timeout=HELM_TIMEOUT)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Release:
    """The release of the operator's chart, and that of the CRD's chart.

    Attributes:
        values: values that the release was installed with.
    """

    def __init__(self, kube: Kube) -> None:
        self._kube = kube
        self.values: Obj = json.loads(helm("get", "values", RELEASE, "--output", "json")) or {}
        self._changed = self._crds_changed = False

    def upgrade(self, values: dict[str, Any] | None = None, *, chart: Path = CHART) -> str:
        """Installs or upgrades the release with the original values, overridden by `values` (by their dotted paths).

        Returns when only the release's new pods are left, because helm does not wait until the previous pods end.
        """
        self._changed = True
        sets = [
            word for path, value in (values or {}).items() for word in ("--set-json", f"{path}={json.dumps(value)}")
        ]
        wait = ("--install", "--create-namespace", "--wait", "--timeout", WAIT)
        output = helm("upgrade", RELEASE, str(chart), "--values", "-", *sets, *wait, values=self.values)
        self._kube.wait("the operator's pods alone", self._settled, timeout=POD_TIMEOUT)
        return output

    def roll_back(self) -> None:
        """Rolls back to the previous revision with `helm rollback`."""
        self._changed = True
        helm("rollback", RELEASE, "--wait", "--timeout", WAIT)
        self._kube.wait("the operator's pods alone", self._settled, timeout=POD_TIMEOUT)

    def crds(self, chart: Path = CRDS_CHART) -> None:
        """Installs the CustomResourceDefinition of this chart, or upgrades to it."""
        self._crds_changed = chart != CRDS_CHART
        helm("upgrade", CRDS, str(chart), "--install", "--create-namespace", "--wait", "--timeout", WAIT)

    def uninstall_crds(self) -> None:
        """Uninstalls the release of the CustomResourceDefinition. The definition itself stays."""
        self._crds_changed = True
        helm("uninstall", CRDS)

    def _settled(self) -> bool:
        deployment = self._kube.get("apps/v1", "Deployment", RELEASE, NAMESPACE)
        desired, status = deployment["spec"]["replicas"], deployment["status"]
        counts = [status.get(count) for count in ("replicas", "updatedReplicas", "readyReplicas")]
        return counts == [desired] * 3 and len(operators(self._kube)) == desired

    def uninstall(self) -> None:
        self._changed = True
        helm("uninstall", RELEASE, "--wait", "--timeout", WAIT)

    def restore(self) -> None:
        """Restores the CustomResourceDefinition and the release with the original values if a test changed them."""
        if self._crds_changed:
            self.crds()
        if self._changed:
            self.upgrade()
            self._changed = False


def operators(kube: Kube) -> list[Obj]:
    """Returns the operator's pods."""
    selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/name={RELEASE}"
    return kube.list("v1", "Pod", NAMESPACE, labelSelector=selector)


def leader(kube: Kube) -> Obj | None:
    """Returns the operator's pod that holds the Lease; None if no pod holds it."""
    lease = kube.get("coordination.k8s.io/v1", "Lease", RELEASE, NAMESPACE)
    pod = (lease.get("spec", {}).get("holderIdentity") or "").rpartition("_")[0]
    return next((one for one in operators(kube) if one["metadata"]["name"] == pod), None)
