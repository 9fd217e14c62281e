"""Has a changed list of adapters brought into the pods now.

A kubelet looks after a pod's ConfigMaps every 60 to 90 seconds, and at once where the pod itself has changed: so each
pod is annotated with the list that it is to have.
"""

import logging

from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import GROUP, Key, Obj, Ref, digest
from unmask_operator.plan.observed import Observed
from unmask_operator.render.adapters import follows, listed
from unmask_operator.render.labels import adapters_config
from unmask_operator.status.pods.pod_status import is_live, is_ready

LIST_HASH = f"{GROUP}/adapters"  # annotation of a pod: a digest of the list that its kubelet was told of last

# Between a list's write and telling of it: a kubelet hears of ConfigMaps and of pods by two watches, and one that heard
# of the pod first would bring the old list.
PAUSE_SECONDS = 1.0

log = logging.getLogger(__name__)


def outdated_pods(observed: Observed) -> tuple[Obj, ...]:
    """The pods that serve and whose kubelet has yet to be told of the live list. One that still starts is told
    when it is Ready, for the list may have changed since it was mounted."""
    name = observed.resource["metadata"]["name"]
    if Ref("v1", "ConfigMap", adapters_config(name)) not in observed.children:
        return ()
    now = list_hash(observed)
    return tuple(
        pod
        for pod in observed.pods
        if is_live(pod)
        and is_ready(pod)
        and follows(pod)
        and (pod["metadata"].get("annotations") or {}).get(LIST_HASH) != now
    )


def list_hash(observed: Observed) -> str:
    return digest(listed(observed.children, observed.resource["metadata"]["name"]))


async def annotate(client: Client, observed: Observed, pods: tuple[Obj, ...]) -> list[Obj]:
    """Annotate the pods; those that the API server took. A pod that is not annotated has the list later."""
    meta, written = observed.resource["metadata"], []
    for pod in pods:
        try:
            written.append(await client.annotate_pod(pod, {LIST_HASH: list_hash(observed)}))
        except ApiError as error:
            if not (error.not_found or error.conflict):
                key = Key(meta["namespace"], meta["name"])
                log.warning("%s has its adapters later: %s", pod["metadata"]["name"], error, extra={"service": key})
    return written
