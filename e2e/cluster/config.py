"""Reads the environment variables for clusters. No other module of this package reads them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """Settings from environment variables.

    Attributes:
        cache: folder of binaries, images and running clusters.
        assets: KUBEBUILDER_ASSETS, a folder with prebuilt etcd, kube-apiserver and kubectl.
        kubeconfig: UNMASK_E2E_KUBECONFIG, an existing cluster to test against.
        cluster: UNMASK_E2E_CLUSTER, the id that `up` printed.
        runtime_next: UNMASK_E2E_IMAGE_RUNTIME_NEXT, the runtime's image under a second tag, for tests of an upgrade.
        path: PATH.
    """

    cache: Path
    assets: Path | None
    kubeconfig: Path | None
    cluster: str
    path: str
    runtime_next: str = ""


def environment(environ: Mapping[str, str] | None = None) -> Environment:
    """Reads the variables.

    Raises:
        ValueError: The path in a variable does not exist. The message names the variable.
    """
    environ = os.environ if environ is None else environ

    def existing(name: str) -> Path | None:
        value = environ.get(name, "")
        if value and not Path(value).exists():
            raise ValueError(f"{name}: {value} does not exist; unset it or give a path that does")
        return Path(value) if value else None

    return Environment(
        cache=Path.home() / ".cache" / "unmask",
        assets=existing("KUBEBUILDER_ASSETS"),
        kubeconfig=existing("UNMASK_E2E_KUBECONFIG"),
        cluster=environ.get("UNMASK_E2E_CLUSTER", ""),
        path=environ.get("PATH", os.defpath),
        runtime_next=environ.get("UNMASK_E2E_IMAGE_RUNTIME_NEXT", ""),
    )
