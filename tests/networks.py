"""Markers for tests that need IPv6 or network namespaces, and commands that run in a namespace."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence

import pytest


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def _has_namespaces() -> bool:
    tools = all(map(shutil.which, ("unshare", "ip")))
    return tools and subprocess.run(["unshare", "--net", "true"], capture_output=True).returncode == 0


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this host has no IPv6")
needs_namespaces = pytest.mark.skipif(not _has_namespaces(), reason="needs root and iproute2 for a network namespace")

TARGETS = ("127.0.0.1", "10.9.9.9", "::1", "fd00::9")  # addresses of a namespace
# Name of a setup -> shell command that changes a namespace with both families, and targets that a wildcard listener
# accepts in it.
NAMESPACES = {
    "both": ("true", ["127.0.0.1", "10.9.9.9", "::1", "fd00::9"]),
    "no IPv4 address": ("ip -4 addr flush dev lo", ["::1", "fd00::9"]),
    "disable_ipv6": ("echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6", ["127.0.0.1", "10.9.9.9"]),
    "bindv6only": ("echo 1 > /proc/sys/net/ipv6/bindv6only", ["127.0.0.1", "10.9.9.9", "::1", "fd00::9"]),
}
CONNECT = """
import json, socket, sys
def accepted(listener, targets):
    for target in targets:
        try:
            socket.create_connection((target, listener.getsockname()[1]), 60).close()
            yield target
        except OSError:
            pass
def report(listener, targets):
    print(json.dumps(list(accepted(listener, targets))))
"""


def python_in_namespace(script: str, arguments: Sequence[str] = (), setup: str = "true") -> list[str]:
    """Returns the command that runs a Python script in its own network namespace.

    Args:
        script: Python source. It can call `report(listener, targets)`, which prints the targets that a listening socket
            accepts, as JSON.
        arguments: Arguments of the script.
        setup: Shell command that changes the namespace before the script runs.
    """
    shell = (
        "ip link set lo up && ip addr add 10.9.9.9/32 dev lo && ip addr add fd00::9/128 dev lo && "
        f'ip addr add fe80::7/64 dev lo nodad && {setup} && exec "$@"'
    )
    return ["unshare", "--net", "sh", "-c", shell, "sh", sys.executable, "-c", CONNECT + script, *arguments]
