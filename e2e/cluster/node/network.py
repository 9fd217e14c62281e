"""A network namespace for a cluster. Its only connection is a veth pair to the machine."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

PODS = "10.244.0.0/24"


@dataclass(frozen=True)
class Network:
    """The namespace of cluster `number`. Its addresses are a /30 of 198.18.0.0/24, a range reserved for benchmarks."""

    number: int

    @property
    def name(self) -> str:
        return f"unmask-e2e-{self.number}"

    @property
    def machine(self) -> str:
        """The machine's address, as the cluster sees it."""
        return f"198.18.0.{4 * self.number + 1}"

    @property
    def node(self) -> str:
        """The node's address, as the machine sees it."""
        return f"198.18.0.{4 * self.number + 2}"

    @property
    def enter(self) -> tuple[str, ...]:
        """The prefix of a command that runs in the namespace.

        `ip netns exec` would not work, because it mounts another /sys, without the cgroups.
        """
        return ("nsenter", f"--net=/run/netns/{self.name}")

    @property
    def _link(self) -> str:
        return f"unmask-e2e{self.number}"

    def claim(self) -> None:
        """Creates the namespace. Raises OSError if it exists, because its name is unique on the machine."""
        _run("ip", "netns", "add", self.name)

    def connect(self) -> None:
        """Connects the claimed namespace to the machine, and enables routing between its pods."""
        inside = self.enter
        _run("ip", "link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _run("ip", "address", "add", f"{self.machine}/30", "dev", self._link)
        _run("ip", "link", "set", self._link, "up")
        forwarding = Path(f"/proc/sys/net/ipv4/conf/{self._link}/forwarding")
        forwarding.write_text("0")  # the cluster reaches this machine and nothing beyond it
        _run(*inside, "ip", "address", "add", f"{self.node}/30", "dev", "eth0")
        for link in ("lo", "eth0"):
            _run(*inside, "ip", "link", "set", link, "up")
        _run(*inside, "ip", "route", "add", "default", "via", self.machine)  # kube-proxy and the kubelet need one
        for key in ("ipv4/ip_forward", "bridge/bridge-nf-call-iptables"):  # for Services between pods on one bridge
            _run(*inside, "sh", "-c", f"test ! -e /proc/sys/net/{key} || echo 1 > /proc/sys/net/{key}")

    def delete(self) -> None:
        """Removes the namespace with all its interfaces and rules. Does nothing if it does not exist."""
        subprocess.run(["ip", "link", "delete", self._link], capture_output=True)
        if Path(f"/run/netns/{self.name}").exists():
            _run("ip", "netns", "delete", self.name)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
