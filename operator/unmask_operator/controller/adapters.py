"""Annotates pods, so that their kubelet updates the list of adapters immediately.

A kubelet updates the ConfigMaps of a pod every 60 to 90 seconds, and immediately if the pod changes. So each Ready pod
gets an annotation with the digest of the list.
"""

import logging

from unmask_operator.kinds import CONFIG_MAPS
from unmask_operator.kube.client import Client
from unmask_operator.kube.errors import ApiError
from unmask_operator.objects import GROUP, Obj, digest, is_ready, section
from unmask_operator.plan.observed import Observed
from unmask_operator.render.adapters import follows, listed
from unmask_operator.render.labels import adapters_config
from unmask_operator.status.pods.pod_status import is_live

LIST_HASH = f"{GROUP}/adapters"  # annotation of a pod: digest of the last list that it was annotated with

# Between the write of a list and the annotation. A kubelet watches ConfigMaps and pods separately. If the pod's event
# arrived first, the kubelet would mount the old list.
PAUSE_SECONDS = 1.0

log = logging.getLogger(__name__)


def outdated_pods(observed: Observed) -> tuple[Obj, ...]:
    """Returns the Ready pods that are not annotated with the live list.

    A pod that still starts is annotated once it is Ready, because the list may have changed since it was mounted.
    """
    if CONFIG_MAPS.ref(adapters_config(observed.name)) not in observed.children:
        return ()
    now = list_hash(observed)
    ready = (pod for pod in observed.pods if is_live(pod) and is_ready(pod) and follows(pod))
    return tuple(pod for pod in ready if section(pod, "metadata", "annotations").get(LIST_HASH) != now)


def list_hash(observed: Observed) -> str:
    return digest(listed(observed.children, observed.name))


async def annotate(client: Client, observed: Observed, pods: tuple[Obj, ...]) -> list[Obj]:
    """Annotates the pods and returns those that were written. Others get the list with the kubelet's next update."""
    written = []
    for pod in pods:
        try:
            written.append(await client.annotate_pod(pod, {LIST_HASH: list_hash(observed)}))
        except ApiError as error:
            if not (error.not_found or error.conflict):
                sentence = "cannot annotate pod %s, its adapters are updated within 90 s: %s"
                log.warning(sentence, pod["metadata"]["name"], error, extra={"service": observed.key})
    return written
