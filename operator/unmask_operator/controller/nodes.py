"""Lists nodes while a pod is unschedulable, for the conditions about GPUs. Nodes are never watched."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unmask_operator.kinds import NODES
from unmask_operator.kube.cache import owner_key
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import Key, Obj, condition, section
from unmask_operator.plan.plan import NODES_SECONDS
from unmask_operator.status.pods.pod_status import unschedulable as pod_unschedulable

_TAINT = ("key", "value", "effect")
LONGEST_SECONDS = 300.0  # between two lists while the scheduler says the same
PAGE = 200  # nodes in memory at a time; one may have more than 20 kB

log = logging.getLogger(__name__)


@dataclass
class Nodes:
    """The last list of nodes, read again after `NODES_SECONDS` while it is needed, and later after longer pauses."""

    client: Client
    granted: bool  # the operator may read nodes
    requeue: Callable[[Key, float], None]  # called with a resource and seconds after a failed list
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._nodes: Sequence[Obj] | None = None
        self._requested_at = float("-inf")
        self._pause = 0.0
        self._sentences: dict[Key | None, str] = {}  # of the scheduler, by resource
        self._listing = asyncio.Lock()  # one list serves all workers

    async def needed(self, pods: Sequence[Obj]) -> Sequence[Obj] | None:
        """Returns all nodes if one of the pods is unschedulable, else None.

        If the list fails, the previous one is returned: a less precise condition must not block the reconcile.
        """
        unschedulable = [pod for pod in pods if condition(pod, "PodScheduled").get("reason") == "Unschedulable"]
        if not (self.granted and unschedulable):
            return None
        key, sentence = owner_key(unschedulable[0]), " ".join(filter(None, map(pod_unschedulable, unschedulable)))
        if self._sentences.get(key) != sentence:
            self._sentences[key], self._pause = sentence, 0.0
        async with self._listing:
            if self.clock() - self._requested_at > max(self._pause, NODES_SECONDS):
                self._requested_at = self.clock()
                self._pause = min(max(2 * self._pause, NODES_SECONDS), LONGEST_SECONDS)
                try:
                    self._nodes, _ = await self.client.list(NODES, transform=slim, page=PAGE)
                except ApiError as error:
                    log.warning("cannot list nodes: %s", error)
                    self._pause = 0.0
        if self._nodes is None and key:
            self.requeue(key, NODES_SECONDS)
        return self._nodes


def slim(node: Obj) -> Obj:
    """Returns the part of a node that the status needs: labels, resources of device plugins, and exclusions of pods.

    Taints, a cordon and a Ready condition that is not True exclude pods.

    The names of images are the largest part of a node and are left out.
    """
    labels = {sys.intern(name): value for name, value in section(node, "metadata", "labels").items()}
    status, spec = section(node, "status"), section(node, "spec")
    devices = {sys.intern(name): value for name, value in section(status, "allocatable").items() if "/" in name}
    meta = {"name": node["metadata"]["name"], "labels": labels}
    slimmed: Obj = {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"allocatable": devices}}
    if not_ready := [c for c in status.get("conditions") or () if c["type"] == "Ready" and c["status"] != "True"]:
        slimmed["status"]["conditions"] = [{"type": "Ready", "status": c["status"]} for c in not_ready]
    taints = [{member: taint[member] for member in _TAINT if member in taint} for taint in spec.get("taints") or ()]
    exclusion = {"taints": taints, "unschedulable": spec.get("unschedulable")}
    if present := {member: value for member, value in exclusion.items() if value}:
        slimmed["spec"] = present
    return slimmed
