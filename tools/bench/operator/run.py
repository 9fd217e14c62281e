"""Runs one measurement: two operators and N services on simulated nodes.

It covers the creation of the services, a time at rest, and the loss of the leader.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

import yaml

from e2e.cluster import ApiServer, Kube, start_api_server
from e2e.cluster.operator_process import ACCOUNT, ROOT, OperatorProcess, install
from e2e.cluster.pretend_nodes import PODS
from tools.bench.operator import machine
from tools.bench.operator.audit import AuditLog, tally
from unmask_operator.objects import API_VERSION, KIND

OWN, NAMESPACE = "unmask-system", "scale"
EXAMPLE = ROOT / "examples" / "demo-service.yaml"
RECONCILES = 'unmask_operator_reconciles_total{result="ok"}'
AUTOSCALED_EVERY = 10  # every n-th service has the Builtin autoscaler, which cannot reach pods here
QUIET_SECONDS = 6.0  # without a write; longer than minReadySeconds, the longest pause before Ready
PATIENCE = 1800.0
INTERVAL = 0.25  # seconds between two looks at a condition

Result = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """Options of a measurement.

    Attributes:
        services: number of DiffusionLMServices.
        rest: measured seconds at rest.
        nodes: number of further nodes, on none of which a pod fits that waits for the same time; 0: no pod waits.
        watched: seconds that the new leader is observed for after its first reconcile.
        kill: ends the leader by SIGKILL and runs the operators with their own limits. Otherwise it ends by SIGTERM and
            releases the Lease, which does not expire before on a slow machine.
    """

    services: int = 200
    rest: float = 300.0
    nodes: int = 0
    watched: float = 30.0
    kill: bool = True


class Run:
    """The phases of the measurement. They are called in order, and each returns its figures."""

    def __init__(self, api: ApiServer, kube: Kube, leader: OperatorProcess, standby: OperatorProcess) -> None:
        self._kube, self._manager, self._standby = kube, leader, standby
        assert api.audit_log is not None
        self._audit = AuditLog(api.audit_log, f"system:serviceaccount:{OWN}:{ACCOUNT}")
        self._processes = {**api.processes, "leader": leader.pid, "standby": standby.pid}

    def apply(self, count: int) -> Result:
        """Measures from the first `create` until every service is Ready."""
        services = [_service(number) for number in range(count)]
        cpu, start, begun = machine.CpuTimes(self._processes), time.time(), time.monotonic()
        for service in services:
            self._kube.create(service)
        applied = time.monotonic() - begun
        _wait("all services are Ready", lambda: self.ready() == count, self._manager, self._standby)
        taken, used = time.monotonic() - begun, cpu.since()
        each = sorted(self._seconds_to_ready())
        self._until_quiet(count)
        requests = self._audit.between(start)
        about = [request for request in requests if request.namespace == NAMESPACE]
        return {
            "applied_seconds": round(applied, 2),
            "all_ready_seconds": round(taken, 2),
            "ready_seconds": {"median": median(each), "p99": each[math.ceil(0.99 * count) - 1]},
            "requests_per_service": round(len(about) / count, 2),
            "other_requests": tally(request for request in requests if request.namespace != NAMESPACE),
            "requests": tally(about),
            "reconciles_per_service": round(self._manager.metric(RECONCILES) / count, 2),
            "refused": tally(request for request in requests if request.status >= 400),
            "cpu_seconds": used,
            "memory": self.memory(),
        }

    def rest(self, seconds: float) -> Result:
        """Measures a time in which nothing changes."""
        start, cpu = time.time(), machine.CpuTimes(self._processes)
        time.sleep(seconds)
        requests = self._audit.between(start, start + seconds)
        return {
            "seconds": seconds,
            "requests_per_second": round(len(requests) / seconds, 3),
            "requests": tally(requests),
            "written": tally(request for request in requests if request.writes),
            "cpu_seconds": cpu.since(),
            "memory": self.memory(),
        }

    def waiting(self, nodes: int, seconds: float) -> Result:
        """Measures a time in which the scheduler finds no node for a pod."""
        for number in range(nodes):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"cordoned-{number}"}}
            self._kube.create({**node, "spec": {"unschedulable": True}})
        service = _service(0)
        service["metadata"]["name"], service["spec"]["gpu"] = "waiting", {}
        self._kube.create(service)

        def told() -> bool:
            found = {service["metadata"]["name"]: conditions for service, conditions in self._services()}
            return found.get("waiting", {}).get("Scheduled", {}).get("status") == "False"

        _wait("the status says that no node fits", told, self._manager, self._standby)
        return {"nodes": nodes, **self.rest(seconds)}

    def failover(self, count: int, watched: float, *, kill: bool) -> Result:
        """Ends the leader and measures until the standby has taken over and reconciled everything."""
        start, begun = time.time(), time.monotonic()
        if kill:
            self._manager.kill()
        else:
            self._manager.terminate()
        _wait("the standby reconciles", lambda: self._reconciled() > 0, self._standby)
        first = time.monotonic() - begun
        _wait("the standby has looked at all services", lambda: self._reconciled() >= count, self._standby)
        everything = time.monotonic() - begun
        time.sleep(max(0.0, first + watched - everything))
        written = [request for request in self._audit.between(start) if request.writes]
        return {
            "signal": "SIGKILL" if kill else "SIGTERM",
            "first_reconcile_seconds": round(first, 2),
            "all_reconciled_seconds": round(everything, 2),
            "errors": self._standby.metric('unmask_operator_reconciles_total{result="error"}'),
            "written": tally(written),
            "memory": {"standby": machine.memory(self._standby.pid)},
        }

    def ready(self) -> int:
        return len(self._seconds_to_ready())

    def memory(self) -> Result:
        return {name: machine.memory(self._processes[name]) for name in ("leader", "standby")}

    def _services(self) -> Iterator[tuple[Result, dict[str, Result]]]:
        """Yields each service with its conditions by type."""
        for service in self._kube.list(API_VERSION, KIND, NAMESPACE, resourceVersion="0"):
            yield service, {c["type"]: c for c in (service.get("status") or {}).get("conditions") or ()}

    def _seconds_to_ready(self) -> list[float]:
        """Returns the seconds until Ready per Ready service, by the times in its status (whole seconds)."""
        return [
            (_time(conditions["Ready"]["lastTransitionTime"]) - _time(service["metadata"]["creationTimestamp"]))
            for service, conditions in self._services()
            if conditions.get("Ready", {}).get("status") == "True"
        ]

    def _until_quiet(self, count: int) -> None:
        """Waits until the autoscaler has reported the pods that it cannot reach, and no more writes occur."""
        autoscaled = sum(map(_is_autoscaled, range(count)))

        def quiet() -> bool:
            scaling = [conditions.get("ScalingReady", {}) for _, conditions in self._services()]
            recent = self._audit.between(time.time() - QUIET_SECONDS)
            writes = [request for request in recent if request.writes and request.namespace == NAMESPACE]
            rolled_out = all(found.get("RolloutComplete", {}).get("status") == "True" for _, found in self._services())
            missing = sum(found.get("reason") == "MetricsMissing" for found in scaling)
            return missing == autoscaled and rolled_out and not writes

        _wait("the operator writes no more", quiet, self._manager, self._standby)

    def _reconciled(self) -> float:
        return self._standby.metric(RECONCILES)


def measure(options: Options) -> Result:
    """Starts a cluster and measures all phases on it."""
    before = {"load": machine.load(), "python_ms": round(machine.python_speed(), 1)}
    with _cluster(options) as (api, kube, leader, standby):
        run = Run(api, kube, leader, standby)
        apply = run.apply(options.services)
        rest = run.rest(options.rest)
        waiting = run.waiting(options.nodes, options.rest) if options.nodes else None
        failover = run.failover(options.services, options.watched, kill=options.kill)
        still_ready = run.ready()
    after = {"load": machine.load(), "python_ms": round(machine.python_speed(), 1)}
    return {
        "services": options.services,
        "machine": {"before": before, "after": after},
        "apply": apply,
        "rest": rest,
        **({"waiting": waiting} if waiting else {}),
        "failover": failover,
        "ready_at_the_end": still_ready,
    }


@contextlib.contextmanager
def _cluster(options: Options) -> Iterator[tuple[ApiServer, Kube, OperatorProcess, OperatorProcess]]:
    """Yields a cluster with the operator installed and two running operators, the leader first."""
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(start_api_server(nodes=1 + options.services // (PODS // 2)))
        kube = api.admin()
        stack.callback(kube.close)
        for name in (OWN, NAMESPACE):
            kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        install(api, kube, OWN, [])
        operators = [OperatorProcess(api, OWN, name=name, own_limits=options.kill) for name in ("a", "b")]
        for operator in operators:
            operator.start(wait=False)
            stack.push(operator)
        for operator in operators:
            operator.wait_ready()
        _wait("one of the operators leads", lambda: any(map(_leads, operators)), *operators)
        operators.sort(key=_leads, reverse=True)
        yield api, kube, operators[0], operators[1]


def _leads(operator: OperatorProcess) -> bool:
    return operator.metric("unmask_operator_leader") == 1


def _is_autoscaled(number: int) -> bool:
    return number % AUTOSCALED_EVERY == AUTOSCALED_EVERY - 1


def _service(number: int) -> Result:
    spec = yaml.safe_load(EXAMPLE.read_text())["spec"]
    if _is_autoscaled(number):
        spec["autoscaling"] = {"maxReplicas": 3, "targets": {"queuedRequestsPerReplica": 4}}
    meta = {"name": f"demo-{number}", "namespace": NAMESPACE}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": meta, "spec": spec}


def _time(stamp: str) -> float:
    return datetime.fromisoformat(stamp).timestamp()


def _wait(what: str, true: Callable[[], bool], *operators: OperatorProcess) -> None:
    """Waits until `true` returns True.

    Raises:
        RuntimeError: one of the operators ended before, or PATIENCE has passed.
    """
    deadline = time.monotonic() + PATIENCE
    while not true():
        if ended := [operator for operator in operators if not operator.alive()]:
            raise RuntimeError(f"{what}: an operator ended:\n{ended[0].log()}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}: not within {PATIENCE:g} s")
        time.sleep(INTERVAL)
