"""Renders the LeaderWorkerSet of spec.parallelism.nodes: one engine over several pods, of which the leader serves.

LeaderWorkerSet sets LWS_LEADER_ADDRESS and LWS_WORKER_INDEX in every container of a group.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from unmask_operator.api import DiffusionLMService
from unmask_operator.kinds import DEPLOYMENTS, LEADER_WORKER_SETS
from unmask_operator.objects import ROLE_LABEL, Obj, is_ready, section, serves
from unmask_operator.render.labels import MAIN, PORT_NAME, annotate, child, group_name, template_digest

WORKLOADS = (DEPLOYMENTS.kind, LEADER_WORKER_SETS.kind)
LEADER, WORKER = {ROLE_LABEL: "leader"}, {ROLE_LABEL: "worker"}
POD_IP: Obj = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
_PORT = 29500  # to which the ranks of workers connect
_TOPOLOGY = "leaderworkerset.sigs.k8s.io/exclusive-topology"
# Arguments of the leader, and those of workers in their place. A leader's own name has no address in its first seconds,
# so it listens on that of its pod.
_OF_WORKER = {
    "--node-rank=0": "--node-rank=$(LWS_WORKER_INDEX)",
    "--master-addr=$(POD_IP)": "--master-addr=$(LWS_LEADER_ADDRESS)",
}
_SERVING = ("ports", "startupProbe", "readinessProbe", "livenessProbe")


def arguments(nodes: int) -> list[str]:
    """Returns the arguments of the leader's engine; none for one node."""
    return [f"--num-nodes={nodes}", f"--master-port={_PORT}", *_OF_WORKER] if nodes > 1 else []


def worker_template(leader: Obj) -> Obj:
    """Returns the template of workers, which serve no HTTP and end with the leader's engine."""
    meta = leader["metadata"]
    return {
        "metadata": {**meta, "labels": {**meta["labels"], **WORKER}},
        "spec": {**leader["spec"], "containers": [_worker(one) for one in leader["spec"]["containers"]]},
    }


def _worker(container: Obj) -> Obj:
    if container["name"] != MAIN:
        return container
    kept = {member: value for member, value in container.items() if member not in _SERVING}
    if ports := [port for port in container.get("ports") or () if port.get("name") != PORT_NAME]:
        kept["ports"] = ports
    return {**kept, "args": [_OF_WORKER.get(argument, argument) for argument in container["args"]]}


def leader_worker_set(resource: DiffusionLMService, leader: Obj, worker: Obj, replicas: int) -> Obj:
    """Renders the LeaderWorkerSet. Its headless Service has its name, which therefore differs from the resource's."""
    strategy, parallelism = resource.spec.rollout_strategy, resource.spec.parallelism
    given = strategy.model_fields_set
    spec = {
        "replicas": replicas,
        "startupPolicy": "LeaderCreated",  # a leader is Ready only after its workers
        "leaderWorkerTemplate": {
            "size": parallelism.nodes,
            "restartPolicy": "None",  # the engine forms its group again by itself, and keeps the pods' nodes
            "leaderTemplate": leader,
            "workerTemplate": worker,
        },
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": {
                "maxSurge": strategy.max_surge if "max_surge" in given else 0,
                "maxUnavailable": strategy.max_unavailable if "max_unavailable" in given else 1,
            },
        },
    }
    made = child(resource, LEADER_WORKER_SETS, group_name(resource.name), spec=spec)
    annotate(made, {_TOPOLOGY: parallelism.topology_key} if parallelism.topology_key else {})
    return made


def pod_template(workload: Mapping[str, Any]) -> Obj:
    """Returns the template of the pods that serve, of a Deployment or a LeaderWorkerSet; {} without one."""
    of_group = section(workload, "spec", "leaderWorkerTemplate", "leaderTemplate")
    return of_group or section(workload, "spec", "template")


def as_deployment(live: Obj, pods: Sequence[Obj]) -> Obj:
    """Returns a live LeaderWorkerSet in the form of a Deployment, whose replicas are groups.

    Its status counts the leaders: no watch reports the LeaderWorkerSet, because not every cluster has the kind.
    """
    if not live:
        return {}
    template = pod_template(live)
    leaders = [pod for pod in pods if serves(pod) and not pod["metadata"].get("deletionTimestamp")]
    newest = [pod for pod in leaders if template_digest(pod) == template_digest(template)]
    worker = section(live, "spec", "leaderWorkerTemplate", "workerTemplate")
    status = {
        "observedGeneration": live["metadata"].get("generation", 0),
        "replicas": len(leaders),
        "updatedReplicas": len(newest),
        "readyReplicas": sum(map(is_ready, leaders)),
    }
    spec = {"replicas": live["spec"].get("replicas", 1), "template": template, "workerTemplate": worker}
    return {**live, "spec": spec, "status": status}
