"""SettingsConsistent: finds valid settings that contradict each other.

These are warnings: the condition is not part of Ready and is present only while there is a contradiction. The spec is
compared with the pod template in use, which includes spec.podTemplate.
"""

import math
import re
from collections.abc import Iterator
from decimal import Decimal

from runtime.config import BY_DEST
from unmask_operator.api import Spec, SpecError, parse
from unmask_operator.objects import RESTARTED_AT, Obj, number, quantity, section
from unmask_operator.render.labels import all_containers, main_container
from unmask_operator.render.pod import END_SECONDS, GRACE, pre_stop_seconds
from unmask_operator.status.admission import planned_template
from unmask_operator.status.condition import Condition, false
from unmask_operator.status.conditions.model_cached import shared_by_one_node
from unmask_operator.status.status_input import StatusInput

TYPE = "SettingsConsistent"
_GPU = re.compile(r"(nvidia\.com/(gpu|gpu\.shared|mig-.+)|gpu\.intel\.com/(i915|xe)|[^/]+/gpu)$")
_PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def evaluate(inputs: StatusInput) -> Condition | None:
    """Returns the condition, or None without a contradiction. Accepted reports a spec that cannot be parsed."""
    try:
        spec = parse(inputs.observed.resource).spec
    except SpecError:
        return None
    template = planned_template(inputs.plan) or section(inputs.deployment, "spec", "template")
    found = list(contradictions(spec, section(template, "spec")))
    found += filter(None, [shared_by_one_node(spec, inputs.plan.fetch)])
    return false(found[0].reason, "; ".join(one.message for one in found)) if found else None


def contradictions(spec: Spec, pod: Obj) -> Iterator[Condition]:
    """Yields the contradictions of a spec.

    Args:
        spec: the parsed spec.
        pod: the spec of the pod template in use; {} if there is none.
    """
    yield from _network(spec)
    yield from _disruptions(spec)
    yield from _targets(spec)
    if spec.parallelism.nodes > 1 and spec.model.uri.startswith("hf://") and spec.model_cache.pvc is None:
        yield false("EachPodDownloads", nodes=spec.parallelism.nodes)
    if not pod:
        return
    main = main_container(pod)
    yield from _gpus(spec, main)
    yield from _memory(spec, main, section(pod, "resources", "limits"))
    yield from _grace_period(spec, pod, main)
    yield from _probes(main)
    yield from _host_ports(spec, pod)


def _network(spec: Spec) -> Iterator[Condition]:
    policy = spec.network_policy
    if policy is None:
        return
    peers = policy.from_
    if spec.service.type != "ClusterIP" and not any(peer.ip_block for peer in peers):
        yield false("NetworkPolicyBlocksClients", type=spec.service.type)
    namespaces = [peer.namespace_selector for peer in peers if not peer.pod_selector]
    everywhere = any(one and not one.model_dump(exclude_defaults=True) for one in namespaces)
    if spec.monitoring.pod_monitor and peers and not policy.metrics_from and not everywhere:
        yield false("NetworkPolicyBlocksMetrics")


def _disruptions(spec: Spec) -> Iterator[Condition]:
    """Finds a PodDisruptionBudget that allows no eviction, which blocks every drain of a node."""
    budget, scaling = spec.pod_disruption_budget, spec.autoscaling
    field, count = ("autoscaling.minReplicas", scaling.min_replicas) if scaling else ("replicas", spec.replicas)
    if budget is None or spec.suspend or count == 0:
        return
    pods = count * spec.parallelism.nodes
    if budget.max_unavailable is not None and _amount(budget.max_unavailable, pods) == 0:
        yield false("DisruptionBudgetBlocksDrains", limit=f"maxUnavailable is {budget.max_unavailable}")
    elif budget.min_available is not None and _amount(budget.min_available, pods) >= pods:
        limit = f"minAvailable is {budget.min_available}, and spec.{field} is {count}"
        yield false("DisruptionBudgetBlocksDrains", limit=limit)


def _amount(value: int | str, count: int) -> int:
    """Returns a number of pods. A percentage is rounded up, as in the disruption controller."""
    return value if isinstance(value, int) else math.ceil(int(value.removesuffix("%")) * count / 100)


def _targets(spec: Spec) -> Iterator[Condition]:
    """Finds targets that the load of a replica cannot exceed, so that no replica is added."""
    if spec.autoscaling is None:
        return
    targets = spec.autoscaling.targets
    running = targets.running_requests_per_replica
    maximum = (spec.engine.max_num_reqs or BY_DEST["max_num_reqs"].default) * spec.parallelism.data
    unreachable = []
    if running is not None and running >= maximum:
        most = f"a pod runs at most {maximum} (engine.maxNumReqs * parallelism.data)"
        unreachable.append(f"runningRequestsPerReplica is {running}, and {most}")
    if targets.kv_cache_utilization_percent == 100:
        unreachable.append("kvCacheUtilizationPercent is 100, which no pod exceeds")
    if unreachable and len(unreachable) == len(targets.model_dump(exclude_none=True)):
        yield false("TargetOutOfReach", targets=" and ".join(unreachable))


def _gpus(spec: Spec, main: Obj) -> Iterator[Condition]:
    resources = section(main, "resources")
    requested = {**section(resources, "requests"), **section(resources, "limits")}
    amounts = {name: quantity(value) for name, value in requested.items()}
    own = spec.gpu.extended_resource if spec.gpu else None
    counts = {name: amount for name, amount in amounts.items() if amount and (name == own or _GPU.match(name))}
    total, needed = sum(counts.values(), Decimal(0)), spec.gpus_per_pod
    if not counts or total == needed:  # without counts, a resource claim may provide the devices
        return
    use = f"uses {needed} (parallelism.tensor * parallelism.data); change spec.parallelism, or remove the resource"
    if spec.gpu is None:
        use = "runs on CPU without spec.gpu; set spec.gpu, or remove the request"
    listed = ", ".join(f"{amount:f} {name}" for name, amount in sorted(counts.items()))
    yield false("GPUsUnused" if total > needed else "GPUsMissing", gpus=listed, use=use)


def _memory(spec: Spec, main: Obj, of_pod: Obj) -> Iterator[Condition]:
    limits = section(main, "resources", "limits")
    memories = [each["memory"] for each in (limits, of_pod) if quantity(each.get("memory")) is not None]
    lowest = min(memories, key=lambda text: quantity(text) or 0, default=None)
    memory, disk = quantity(lowest), quantity(limits.get("ephemeral-storage"))
    shared = spec.shared_memory_size or ("8Gi" if spec.parallelism.tensor > 1 else None)
    size = quantity(shared)
    if memory is not None and size is not None and size >= memory:
        yield false("SharedMemoryExceedsMemory", shared=shared, memory=lowest)
    size_limit = spec.model_cache.empty_dir.size_limit
    cache = quantity(size_limit)
    if disk is not None and cache is not None and cache > disk:
        yield false("CacheExceedsStorage", cache=size_limit, disk=limits["ephemeral-storage"])


def _grace_period(spec: Spec, pod: Obj, main: Obj) -> Iterator[Condition]:
    hook, drain = pre_stop_seconds(main), spec.drain_delay + spec.drain_timeout_seconds
    needed, is_set = drain + (hook or 0), GRACE in spec.pod_template.spec
    grace = number(pod, GRACE, 30 if is_set else needed)  # the API server's default, if a null removed it
    if grace < needed:
        parts = f"{'preStop + ' if hook else ''}drainDelaySeconds + drainTimeoutSeconds"
        fix = "remove it from spec.podTemplate" if is_set else f"set the annotation {RESTARTED_AT} to a new value"
        yield false("GracePeriodTooShort", grace=grace, needed=needed, parts=parts, fix=fix)
    elif hook is None and not (is_set and grace > drain + END_SECONDS):
        yield false("PreStopNotCounted", grace=grace, drain=drain, end=drain + END_SECONDS)


def _probes(main: Obj) -> Iterator[Condition]:
    probes = {name: section(main, name) for name in _PROBES if section(main, name)}
    for name, probe in probes.items():
        period, timeout = number(probe, "periodSeconds", 10), number(probe, "timeoutSeconds", 1)
        if timeout > period:
            yield false("ProbeTimeoutExceedsPeriod", probe=name, timeout=timeout, period=period)
    if "livenessProbe" not in probes:
        return
    if "startupProbe" not in probes:
        yield false("LivenessWithoutStartupProbe")
    budgets = {
        name: number(probe, "periodSeconds", 10) * number(probe, "failureThreshold", 3)
        for name, probe in probes.items()
    }
    liveness, readiness = budgets["livenessProbe"], budgets.get("readinessProbe", 0)
    if liveness <= readiness:
        yield false("LivenessBeforeReadiness", liveness=liveness, readiness=readiness)


def _host_ports(spec: Spec, pod: Obj) -> Iterator[Condition]:
    has_port = any(port.get("hostPort") for one in all_containers(pod) for port in one.get("ports") or ())
    if not has_port and pod.get("hostNetwork") is not True:
        return
    if spec.parallelism.nodes == 1 and _amount(spec.rollout_strategy.max_unavailable, 100) == 0:
        yield false("HostPortBlocksRollouts")
