"""SettingsConsistent: finds valid settings that contradict each other.

These are warnings: the condition is not part of Ready and is present only while there is a contradiction. The spec is
compared with the pod template in use, which includes spec.podTemplate.
"""

import math
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

from runtime.config import BY_DEST
from unmask_operator.api import Spec, SpecError, parse
from unmask_operator.objects import RESTARTED_AT, Obj, number, quantity, section
from unmask_operator.render.labels import MAIN, all_containers, main_container
from unmask_operator.render.pod import END_SECONDS, GRACE, pre_stop_seconds
from unmask_operator.status.admission import planned_template
from unmask_operator.status.condition import Condition, false
from unmask_operator.status.status_input import StatusInput

TYPE = "SettingsConsistent"
_GPU = re.compile(r"(nvidia\.com/(gpu|gpu\.shared|mig-.+)|gpu\.intel\.com/(i915|xe)|[^/]+/gpu)$")
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


class Contradiction(NamedTuple):
    """A reason of the condition, and a message with both fields and the fix."""

    reason: str
    message: str


def evaluate(inputs: StatusInput) -> Condition | None:
    """Returns the condition, or None without a contradiction. Accepted reports a spec that cannot be parsed."""
    try:
        spec = parse(inputs.observed.resource).spec
    except SpecError:
        return None
    template = planned_template(inputs.plan) or section(section(inputs.deployment, "spec"), "template")
    found = list(contradictions(spec, section(template, "spec")))
    return false(found[0].reason, "; ".join(one.message for one in found)) if found else None


def contradictions(spec: Spec, pod: Obj) -> Iterator[Contradiction]:
    """Yields the contradictions of a spec.

    Args:
        spec: the parsed spec.
        pod: the spec of the pod template in use; {} if there is none.
    """
    yield from _network(spec)
    yield from _disruptions(spec)
    yield from _targets(spec)
    if not pod:
        return
    main = main_container(pod)
    yield from _gpus(spec, main)
    yield from _memory(spec, main, section(section(pod, "resources"), "limits"))
    yield from _grace_period(spec, pod, main)
    yield from _probes(main)
    yield from _host_ports(spec, pod)


def _network(spec: Spec) -> Iterator[Contradiction]:
    policy = spec.network_policy
    if policy is None:
        return
    peers = policy.from_
    if spec.service.type != "ClusterIP" and not any(peer.ip_block for peer in peers):
        yield Contradiction(
            "NetworkPolicyBlocksClients",
            f"spec.networkPolicy admits only pods of the cluster, and spec.service.type {spec.service.type} is for "
            "external clients; add their addresses as ipBlock to spec.networkPolicy.from, or use ClusterIP",
        )
    everywhere = any(peer.namespace_selector and not peer.pod_selector and _is_empty(peer) for peer in peers)
    if spec.monitoring.pod_monitor and peers and not policy.metrics_from and not everywhere:
        yield Contradiction(
            "NetworkPolicyBlocksMetrics",
            "spec.networkPolicy.from restricts the clients, and spec.monitoring.podMonitor makes Prometheus scrape the "
            "pods; add Prometheus to spec.networkPolicy.metricsFrom",
        )


def _is_empty(peer: Any) -> bool:
    selector = peer.namespace_selector
    return not selector.match_labels and not selector.match_expressions


def _disruptions(spec: Spec) -> Iterator[Contradiction]:
    """Finds a PodDisruptionBudget that allows no eviction, which blocks every drain of a node."""
    budget, count = spec.pod_disruption_budget, spec.replicas
    if spec.autoscaling:
        count = spec.autoscaling.min_replicas
    if budget is None or spec.suspend or count == 0:
        return
    of = f"spec.autoscaling.minReplicas is {count}" if spec.autoscaling else f"spec.replicas is {count}"
    if budget.max_unavailable is not None and _amount(budget.max_unavailable, count) == 0:
        sentence = f"spec.podDisruptionBudget.maxUnavailable is {budget.max_unavailable}"
    elif budget.min_available is not None and _amount(budget.min_available, count) >= count:
        sentence = f"spec.podDisruptionBudget.minAvailable is {budget.min_available}, and {of}"
    else:
        return
    yield Contradiction(
        "DisruptionBudgetBlocksDrains",
        f"{sentence}: no pod may be evicted, and a drain of its node never completes; lower minAvailable, set "
        "maxUnavailable 1, or add replicas",
    )


def _amount(value: int | str, count: int) -> int:
    """Returns a number of pods. A percentage is rounded up, as in the disruption controller."""
    return value if isinstance(value, int) else math.ceil(int(value.removesuffix("%")) * count / 100)


def _targets(spec: Spec) -> Iterator[Contradiction]:
    """Finds targets that the load of a replica cannot exceed, so that no replica is added."""
    if spec.autoscaling is None:
        return
    targets = spec.autoscaling.targets
    maximum = (spec.engine.max_num_reqs or BY_DEST["max_num_reqs"].default) * spec.parallelism.data
    unreachable = []
    if targets.running_requests_per_replica is not None and targets.running_requests_per_replica >= maximum:
        unreachable.append(
            f"runningRequestsPerReplica is {targets.running_requests_per_replica}, and a pod runs at most {maximum} "
            "(engine.maxNumReqs * parallelism.data)"
        )
    if targets.kv_cache_utilization_percent == 100:
        unreachable.append("kvCacheUtilizationPercent is 100, which no pod exceeds")
    if unreachable and len(unreachable) == len(targets.model_dump(exclude_none=True)):
        yield Contradiction(
            "TargetOutOfReach",
            f"spec.autoscaling.targets: {' and '.join(unreachable)}: replicas are never added; lower the target",
        )


def _gpus(spec: Spec, main: Obj) -> Iterator[Contradiction]:
    resources = section(main, "resources")
    limits = {**section(resources, "requests"), **section(resources, "limits")}
    counts = {name: amount for name, value in limits.items() if (amount := quantity(value)) and _is_gpu(spec, name)}
    total, needed = sum(counts.values(), Decimal(0)), spec.gpus_per_pod
    listed = ", ".join(f"{amount:f} {name}" for name, amount in sorted(counts.items()))
    if spec.gpu is None:
        if counts:
            yield Contradiction(
                "GPUsUnused",
                f"spec.podTemplate requests {listed}, and the engine runs on CPU without spec.gpu; set spec.gpu, or "
                "remove the request",
            )
        return
    if not counts or total == needed:  # without counts, a resource claim may provide the devices
        return
    yield Contradiction(
        "GPUsUnused" if total > needed else "GPUsMissing",
        f"spec.podTemplate changes the request to {listed} per pod, and the engine uses {needed} "
        "(parallelism.tensor * parallelism.data); change spec.parallelism, or remove the resource from "
        "spec.podTemplate",
    )


def _is_gpu(spec: Spec, name: str) -> bool:
    return bool(_GPU.match(name)) or (spec.gpu is not None and name == spec.gpu.resource_name)


def _memory(spec: Spec, main: Obj, of_pod: Obj) -> Iterator[Contradiction]:
    limits = section(section(main, "resources"), "limits")
    memories = [each["memory"] for each in (limits, of_pod) if quantity(each.get("memory")) is not None]
    lowest = min(memories, key=lambda text: quantity(text) or 0, default=None)
    memory, disk = quantity(lowest), quantity(limits.get("ephemeral-storage"))
    shared = spec.shared_memory_size or ("8Gi" if spec.parallelism.tensor > 1 else None)
    size = quantity(shared)
    if memory is not None and size is not None and size >= memory:
        yield Contradiction(
            "SharedMemoryExceedsMemory",
            f"spec.sharedMemorySize is {shared}, which counts towards memory, and the memory limit of the engine or of "
            f"its pod is {lowest}; raise spec.resources.limits.memory, or lower spec.sharedMemorySize",
        )
    size_limit = spec.model_cache.empty_dir.size_limit
    cache = quantity(size_limit)
    if disk is not None and cache is not None and cache > disk:
        yield Contradiction(
            "CacheExceedsStorage",
            f"spec.modelCache.emptyDir.sizeLimit is {size_limit}, and the engine's limit of ephemeral-storage is "
            f"{limits['ephemeral-storage']}: the pod is evicted before the cache is full; raise "
            "spec.resources.limits[ephemeral-storage], or lower sizeLimit",
        )


def _grace_period(spec: Spec, pod: Obj, main: Obj) -> Iterator[Contradiction]:
    hook, drain = pre_stop_seconds(main), spec.drain_delay + spec.drain_timeout_seconds
    needed, is_set = drain + (hook or 0), GRACE in spec.pod_template.spec
    grace = number(pod, GRACE, 30 if is_set else needed)  # the API server's default, if a null removed it
    if grace < needed:
        parts = f"{'preStop + ' if hook else ''}drainDelaySeconds + drainTimeoutSeconds"
        fix = "remove it from spec.podTemplate" if is_set else f"set the annotation {RESTARTED_AT} to a new value"
        yield Contradiction(
            "GracePeriodTooShort",
            f"spec.podTemplate.spec.{GRACE} is {grace}, and ending takes up to {needed} s ({parts}): requests are cut "
            f"off; {fix}",
        )
    elif hook is None and not (is_set and grace > drain + END_SECONDS):
        yield Contradiction(
            "PreStopNotCounted",
            f"spec.podTemplate has a preStop hook of unknown length for the container {MAIN}, and {GRACE} is {grace}, "
            f"of which draining takes up to {drain} s: requests may be cut off; use preStop.sleep, or "
            f"drainDelaySeconds instead of the hook, or set spec.podTemplate.spec.{GRACE} to {drain + END_SECONDS} and "
            "the time of the hook",
        )


def _probes(main: Obj) -> Iterator[Contradiction]:
    probes = {name: section(main, name) for name in _PROBES if section(main, name)}
    for name, probe in probes.items():
        period, timeout = number(probe, "periodSeconds", 10), number(probe, "timeoutSeconds", 1)
        if timeout > period:
            yield Contradiction(
                "ProbeTimeoutExceedsPeriod",
                f"spec.{name}.timeoutSeconds is {timeout} and periodSeconds {period}: a check lasts longer than the "
                "time to the next one; raise periodSeconds, or lower timeoutSeconds",
            )
    if "livenessProbe" not in probes:
        return
    if "startupProbe" not in probes:
        yield Contradiction(
            "LivenessWithoutStartupProbe",
            "spec.podTemplate removes startupProbe of the engine, and livenessProbe restarts the engine while it loads "
            "its model; keep startupProbe, or remove livenessProbe too",
        )
    readiness, liveness = (_budget(probes.get(name, {})) for name in ("readinessProbe", "livenessProbe"))
    if "readinessProbe" in probes and liveness <= readiness:
        yield Contradiction(
            "LivenessBeforeReadiness",
            f"spec.livenessProbe restarts the engine after {liveness} s, and spec.readinessProbe takes it out of the "
            f"Service after {readiness} s (periodSeconds * failureThreshold); raise failureThreshold of livenessProbe",
        )


def _budget(probe: Obj) -> int:
    return number(probe, "periodSeconds", 10) * number(probe, "failureThreshold", 3)


def _host_ports(spec: Spec, pod: Obj) -> Iterator[Contradiction]:
    has_port = any(port.get("hostPort") for one in all_containers(pod) for port in one.get("ports") or ())
    if not has_port and pod.get("hostNetwork") is not True:
        return
    if _amount(spec.rollout_strategy.max_unavailable, 100) == 0:
        yield Contradiction(
            "HostPortBlocksRollouts",
            "spec.podTemplate uses a port of the node, so that a node runs only one pod, and a rollout starts the new "
            "pod before it ends an old one; set spec.rolloutStrategy to maxSurge 0 and maxUnavailable 1, or remove "
            "hostPort and hostNetwork",
        )
