"""Installs the Debian packages that a node and the browser need on the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster.binaries import say
from e2e.cluster.process import StartError

_PROGRAMS = {  # program -> Debian package that contains it
    "containerd": "containerd",
    "runc": "runc",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "conntrack": "conntrack",
    "iptables": "iptables",
    "ip": "iproute2",
    "nsenter": "util-linux",
}


def install_packages() -> None:
    """Installs missing packages of a node. Raises StartError without root, or if apt-get is needed but missing."""
    if os.geteuid() != 0:
        raise StartError("a node needs root (network namespaces, containers); use --api-only, or run as root")
    install(_PROGRAMS)


def install(programs: Mapping[str, str]) -> None:
    """Installs the packages of missing programs with apt-get. Raises StartError if that is impossible."""
    missing = sorted(package for program, package in programs.items() if not _exists(program))
    if not missing:
        return
    if os.geteuid() != 0:
        raise StartError(f"as root, install these first: {', '.join(missing)}")
    if not shutil.which("apt-get"):
        raise StartError(f"install these first: {', '.join(missing)}")
    say(f"installing {', '.join(missing)}")
    apt = ["apt-get", "-qq", "-o", "Dpkg::Use-Pty=0"]
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in ([*apt, "update"], [*apt, "install", "--yes", "--no-install-recommends", *missing]):
        subprocess.run(command, env=quiet, stdout=sys.stderr, check=True)


def _exists(program: str) -> bool:
    return Path(program).exists() if program.startswith("/") else shutil.which(program) is not None
