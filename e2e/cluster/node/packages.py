"""What a node, and a browser, need of the machine itself: Debian's packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from e2e.cluster.binaries import say
from e2e.cluster.process import StartError

_PROGRAMS = {  # a program, and the Debian package that brings it
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
    """Install what a node lacks. StartError without root, or where there is no apt-get."""
    if os.geteuid() != 0:
        raise StartError("a node needs root (network namespaces, containers); use --api-only, or run as root")
    install(_PROGRAMS)


def install(programs: Mapping[str, str]) -> None:
    """Install, with apt-get, the packages of the programs that are missing. StartError where that cannot be."""
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
