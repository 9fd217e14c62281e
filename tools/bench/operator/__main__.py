"""Benchmark of the operator with hundreds of services on its own cluster: ``python -m tools.bench.operator``.

``make operator-bench`` runs it. etcd, API server, controller-manager and scheduler are real; kwok simulates the nodes.
Pods start, load for two seconds, become Ready, and cannot be reached. Two operators run as processes. The exit status
is not 0 if a figure exceeds its limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from tools.bench.operator import machine
from tools.bench.operator.run import Options, Result, measure

QUIET_LOAD = 1.5
FEW = 200  # services; above it the time limit is proportional, and the memory limit is that of the chart


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.bench.operator", description=__doc__)
    parser.add_argument("--services", type=int, default=200)
    parser.add_argument("--rest", type=float, default=300.0, metavar="SECONDS", help="how long rest is measured")
    parser.add_argument("--nodes", type=int, default=0, help="also measure a pod that fits on none of so many nodes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--busy", action="store_true", help=f"measure although the load is {QUIET_LOAD} or more")
    arguments = parser.parse_args()
    if arguments.services < 1 or arguments.rest <= 0:
        parser.error("--services and --rest: more than nothing")
    return arguments


def bars(result: Result) -> Iterator[tuple[str, float, float]]:
    """Yields the name, the value and the limit of each figure. A figure must not exceed its limit."""
    apply, rest, failover = result["apply"], result["rest"], result["failover"]
    many = result["services"] > FEW
    yield "all Ready, s", apply["all_ready_seconds"], 45 * max(1.0, result["services"] / FEW)
    yield "requests a service", apply["requests_per_service"], 15
    for name in ("leader", "standby"):
        peak = max(phase["memory"][name]["rss_peak_mb"] for phase in result.values() if name in _measured(phase))
        yield f"memory of the {name} (peak RSS), MB", peak, 256 * 1024**2 / machine.MB if many else 200
    yield "requests per second at rest, both operators", rest["requests_per_second"], 0.8
    yield "writes at rest but the Lease's", _but_leases(rest["written"]), 0
    if waiting := result.get("waiting"):
        yield f"requests per second, a pod fits on no node of {waiting['nodes']}", waiting["requests_per_second"], 1
    yield "SIGKILL of the leader to the standby's first reconcile, s", failover["first_reconcile_seconds"], 20
    yield "writes of the failover but the Lease's", _but_leases(failover["written"]), 0


def _measured(phase: object) -> Result:
    return phase.get("memory", {}) if isinstance(phase, dict) else {}


def _but_leases(written: dict[str, int]) -> int:
    return sum(count for what, count in written.items() if not what.endswith(" leases"))


def main() -> int:
    arguments = _arguments()
    load = machine.load()
    if load >= QUIET_LOAD and not arguments.busy:
        print(f"load average {load:.1f}: figures of a busy machine say little; wait, or give --busy", file=sys.stderr)
        return 2
    started = datetime.now(UTC).isoformat(timespec="seconds")
    result = {"started": started, **measure(Options(arguments.services, arguments.rest, arguments.nodes))}
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))
    missed = False
    for what, figure, bar in bars(result):
        missed |= figure > bar
        print(f"{figure:10g}  (bar {bar:g}{', MISSED' if figure > bar else ''})  {what}")
    for when, seen in result["machine"].items():
        print(f"load {when}: {seen['load']:.1f}, a Python loop of a million turns: {seen['python_ms']:g} ms")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
