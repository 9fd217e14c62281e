"""Records of clusters that outlive the command that started them. Each has a numbered folder with its record.

The number is part of every name that must be unique on the machine (network namespace, cgroup, addresses, image store),
so that concurrent clusters do not conflict.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from e2e.cluster.process import Daemon, is_running

MAX_CLUSTERS = 60


@dataclass
class Record:
    """State of one cluster.

    Attributes:
        number: the cluster's number.
        directory: folder of all its files.
        checkout: working tree from which it was started.
        level: "api" or "node".
        owner: process id of the `up` that starts it; 0 when it is up.
        started: start time in seconds since the epoch.
        daemons: its daemons, in the order of their start.
        exports: variables that `up` prints.
        network: whether it created the network namespace of this number, rather than another user's cluster.
    """

    number: int
    directory: Path
    checkout: str
    level: str
    owner: int = 0
    started: float = 0.0
    daemons: list[Daemon] = field(default_factory=list)
    exports: dict[str, str] = field(default_factory=dict)
    network: bool = False

    @property
    def id(self) -> str:
        return f"e2e-{self.number}"

    def is_starting(self) -> bool:
        return bool(self.owner) and is_running(self.owner)

    def is_complete(self) -> bool:
        """Returns whether the cluster is up and all its daemons run."""
        return bool(self.exports) and all(daemon.alive() for daemon in self.daemons)

    def dead(self) -> bool:
        """Returns whether no `up` is starting the cluster and none of its daemons runs."""
        return not self.is_starting() and not any(daemon.alive() for daemon in self.daemons)

    def save(self) -> None:
        content = {**asdict(self), "directory": str(self.directory)}
        partial = self.directory / "cluster.json.partial"
        partial.write_text(json.dumps(content, indent=1))
        partial.rename(self.directory / "cluster.json")


def folder(cache: Path) -> Path:
    return cache / "clusters"


def claim(cache: Path, checkout: str, level: str) -> Record:
    """Creates a record with the lowest free number. Raises OSError if all numbers are taken."""
    for number in range(MAX_CLUSTERS):
        directory = folder(cache) / str(number)
        directory.parent.mkdir(parents=True, exist_ok=True)
        if level == "node" and Path(f"/run/netns/unmask-e2e-{number}").exists():
            continue  # belongs to another user or another home directory
        try:
            directory.mkdir()
        except FileExistsError:
            continue
        record = Record(number, directory, checkout, level, os.getpid(), time.time())
        record.save()
        return record
    raise OSError(
        f"{MAX_CLUSTERS} clusters exist already in {folder(cache)}; end some with: python -m e2e.cluster down ID"
    )


def load_all(cache: Path) -> list[Record]:
    """Returns the records of all clusters, the newest first."""
    records = []
    for path in folder(cache).glob("*/cluster.json"):
        content = json.loads(path.read_text())
        content["directory"] = path.parent
        content["daemons"] = [Daemon(**daemon) for daemon in content["daemons"]]
        records.append(Record(**content))
    return sorted(records, key=lambda record: record.started, reverse=True)


def choose(cache: Path, checkout: str, cluster_id: str, level: str = "") -> Record | None:
    """Returns the cluster with this id, or else the newest one of the checkout (of `level`); None if there is none."""
    for record in load_all(cache):
        matches = record.id == cluster_id if cluster_id else record.checkout == checkout
        if matches and level in ("", record.level):
            return record
    return None
