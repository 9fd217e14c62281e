"""containerd of one cluster: starts it with its own store, loads images, and removes all containers at the end."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

from e2e.cluster.node.network import PODS, Network
from e2e.cluster.process import Daemon, spawn, wait_for
from tests.wait import wait_until

PAUSE = "localhost/unmask-e2e/pod:1"  # without arguments it waits, as a pause container does
_REPLACED = "localhost/unmask-e2e/replaced:1"

_CONFIG = """\
version = 2
root = "{store}"
state = "{state}"
[grpc]
  address = "{socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{state}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  netns_mounts_under_state_dir = true  # below the cluster's folder, so that they go with it
  restrict_oom_score_adj = true  # the machine may lack CAP_SYS_RESOURCE
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
"""

_CNI = """\
{{"cniVersion": "0.4.0", "name": "unmask-e2e", "plugins": [
  {{"type": "bridge", "bridge": "pods0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
    "ipam": {{"type": "host-local", "dataDir": "{data}", "ranges": [[{{"subnet": "{pods}"}}]],
              "routes": [{{"dst": "0.0.0.0/0"}}]}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}
"""


class Containers:
    """The containerd of a cluster. Its image store outlives the cluster.

    Attributes:
        state: folder of its state.
        socket: path of its socket.
        daemon: its process, set by `start`.
    """

    def __init__(self, directory: Path, store: Path) -> None:
        self._directory, self._store = directory, store
        self.state = directory / "containerd"
        self.socket = self.state / "containerd.sock"

    def start(self, network: Network, logs: Path) -> Daemon:
        cni = self._directory / "cni"
        for folder in (cni, self.state, self._store):
            folder.mkdir(parents=True, exist_ok=True)
        (cni / "10-bridge.conflist").write_text(_CNI.format(data=self._directory / "addresses", pods=PODS))
        config = self._directory / "containerd.toml"
        config.write_text(_CONFIG.format(store=self._store, state=self.state, socket=self.socket, pause=PAUSE, cni=cni))
        self.daemon = spawn("containerd", [*network.enter, "containerd", "--config", config], logs, tied=False)
        wait_for("containerd", lambda: self._ctr("version").returncode == 0, [self.daemon])
        self.remove_containers()  # left by a killed cluster that used this store
        return self.daemon

    def _ctr(self, *command: str) -> subprocess.CompletedProcess[str]:
        arguments = ["ctr", "--address", str(self.socket), "--namespace", "k8s.io", *command]
        return subprocess.run(arguments, capture_output=True, text=True)

    def has_image(self, name: str) -> bool:
        return name in self._ctr("images", "list", "--quiet").stdout.split()

    def tag(self, name: str, other: str) -> None:
        """Gives an image a second name, which may belong to another image. Raises OSError with ctr's error."""
        done = self._ctr("images", "tag", "--force", name, other)
        if done.returncode:
            raise OSError(f"{name}: {done.stderr.strip()}")

    def load(self, name: str, archive: Path) -> None:
        """Imports image `name` from an archive. Raises OSError with ctr's error.

        An older image of that name stays until the new one is unpacked. Otherwise garbage collection could remove
        layers that both share during the import.
        """
        if self.has_image(name):
            self.tag(name, _REPLACED)
        done = self._ctr("images", "import", str(archive))
        self._ctr("images", "remove", _REPLACED)
        if done.returncode:
            raise OSError(f"{archive}: {done.stderr.strip()}")

    def remove_containers(self) -> None:
        """Kills every task and removes every container. Images stay."""
        if running := self._ctr("tasks", "list", "--quiet").stdout.split():
            for task in running:
                self._ctr("tasks", "kill", "--signal", "SIGKILL", "--all", task)

            def gone() -> bool:
                self._ctr("tasks", "delete", "--force", *self._ctr("tasks", "list", "--quiet").stdout.split())
                return not self._ctr("tasks", "list", "--quiet").stdout.split()

            with contextlib.suppress(TimeoutError):
                wait_until(gone, "the containers' end")
        if containers := self._ctr("containers", "list", "--quiet").stdout.split():
            self._ctr("containers", "delete", *containers)


def unmount_below(directory: Path) -> None:
    """Unmounts everything below a folder, the deepest first."""
    points = [
        line.split()[4].encode().decode("unicode_escape")
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
    ]
    for point in sorted((p for p in points if Path(p).is_relative_to(directory)), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", point], capture_output=True)


def remove_cgroups(name: str) -> None:
    """Removes the cgroup `name` and all below it, in every hierarchy. Kills processes that are left in it."""
    for top in [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*/")]:
        root = top / name
        for folder, _, _ in os.walk(root, topdown=False):
            for pid in _processes(Path(folder)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            with contextlib.suppress(TimeoutError):  # its processes may not have ended yet
                wait_until(partial(_is_removed, folder), f"the end of {folder}", timeout=10)


def _is_removed(folder: str) -> bool:
    """Removes a folder if it is empty. Returns whether it is gone."""
    try:
        os.rmdir(folder)
    except OSError:
        return not Path(folder).exists()
    return True


def _processes(folder: Path) -> list[int]:
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def remove_tree(directory: Path) -> None:
    unmount_below(directory)
    shutil.rmtree(directory, ignore_errors=True)
