"""Nodes: for what the conditions say of GPUs. They are listed while a pod finds none, and never watched."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Sequence

from unmask_operator.client.client import Client
from unmask_operator.client.errors import ApiError
from unmask_operator.client.kinds import NODES
from unmask_operator.client.store import owner_key
from unmask_operator.objects import Key, Obj
from unmask_operator.state.plan import NODES_SECONDS
from unmask_operator.status.pods import condition

PAGE = 25  # nodes in memory at a time, each of which may have 20 kB and more

log = logging.getLogger(__name__)


class Nodes:
    """The last list of them.

    Args:
        granted: the operator may read nodes.
        again: told which resource to look at again, in so many seconds, after a list that failed.
    """

    def __init__(
        self,
        client: Client,
        granted: bool,
        again: Callable[[Key, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._granted = granted
        self._again = again
        self._clock = clock
        self._nodes: Sequence[Obj] | None = None
        self._asked = float("-inf")
        self._listing = asyncio.Lock()  # one list serves all workers

    async def needed(self, pods: Sequence[Obj]) -> Sequence[Obj] | None:
        """All nodes while one of the pods finds none, else None. Where the list fails, those of the one before: a
        condition that says less is no reason to leave a resource alone."""
        homeless = [pod for pod in pods if condition(pod, "PodScheduled").get("reason") == "Unschedulable"]
        if not (self._granted and homeless):
            return None
        async with self._listing:
            if self._clock() - self._asked > NODES_SECONDS:
                self._asked = self._clock()
                try:
                    self._nodes, _ = await self._client.list(NODES, keep=slim, page=PAGE)
                except ApiError as error:
                    log.warning("cannot list nodes: %s", error)
        if self._nodes is None and (key := owner_key(homeless[0])):
            self._again(key, NODES_SECONDS)
        return self._nodes


def slim(node: Obj) -> Obj:
    """Most of a node are names of images; what is read are its labels and what device plugins offer."""
    labels = {sys.intern(name): value for name, value in (node["metadata"].get("labels") or {}).items()}
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    offered = {sys.intern(name): value for name, value in allocatable.items() if "/" in name}
    meta = {"name": node["metadata"]["name"], "labels": labels}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"allocatable": offered}}
