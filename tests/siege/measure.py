"""Runs attackers, prober and good clients against one server, and measures it before, during and after."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

from tests.siege import clients, observers, verdict
from tests.siege.attacker import EXIT_SECONDS, attacker
from tests.siege.meter import Meter
from tests.siege.processes import Child, children
from tests.siege.registry import CONTROLS, Attack
from tests.siege.server import MODULE, Besieged, SiegeError

NICE = 19  # of attackers: about forty of them yield the CPU to the server, as if they ran on other machines
IDLE_REQUESTS = 8
MARGIN = 90.0  # seconds in which a child has to start, or to end after the signal to stop


@dataclass(frozen=True)
class Options:
    module: str = MODULE
    server_args: tuple[str, ...] = ()
    seconds: float | None = None  # of each attack, instead of its own
    settle: float = 30.0  # seconds in which memory and descriptors may return
    max_mb: float = 3000.0  # of the frontend; an attack that exceeds it is stopped, to protect the machine
    pause_factor: float = 1.0
    nice: int = NICE
    good: int = 20
    think: float = 5.0  # seconds between the requests of a good client


def one(attack: Attack, options: Options) -> dict[str, Any]:
    """Measures one attack on a separate server that also has an innocent client."""
    args = (*attack.server_args, *options.server_args)
    with Besieged.started(options.module, args, attack.descriptors, attack.one_key) as server:
        seconds, kind = options.seconds or attack.seconds, clients.Kind(attack.schemas, attack.model)
        control_median = None
        if attack.name in CONTROLS:
            control = siege(server, [CONTROLS[attack.name]], seconds, replace(options, settle=0.0), kind=kind)
            control_median = control["innocent"]["median_times_usual"]
        measured = siege(server, [attack], seconds, options, kind=kind)
    measured |= {"attack": attack.name, "rate": attack.rate, "keyed": attack.keyed, "full": attack.full}
    measured |= {"slowdown": attack.slowdown, "control_median_times_usual": control_median}
    return measured | {"missed": verdict.alone(measured)}


def all_at_once(attacks: list[Attack], minutes: float, options: Options) -> dict[str, Any]:
    """Measures all attacks on one server that also has good clients. Attacks with a key have different keys."""
    holders = tuple(attack.name for attack in attacks if attack.keyed)
    with Besieged.started(options.module, options.server_args, holders=holders) as server:
        measured = siege(server, attacks, minutes * 60, options, good=options.good)
    measured |= {"attack": "all at once", "rate": f"{len(attacks)} attacks at 1/{options.pause_factor:g} of their pace"}
    return measured | {"missed": verdict.together(measured)}


def siege(
    server: Besieged,
    attacks: list[Attack],
    seconds: float,
    options: Options,
    good: int = 0,
    kind: clients.Kind = clients.PLAIN,
) -> dict[str, Any]:
    with children() as start:

        def to_its_end(child: Child) -> Any:
            result, _ = child.finish(MARGIN)
            return result

        usual = start(clients.usual, server.port, server.key, IDLE_REQUESTS, kind)
        if not usual.results.poll(MARGIN):
            raise SiegeError("the idle server did not answer")
        at_rest: clients.Usual = to_its_end(usual)
        stand_in = start(observers.stand_in)
        meter = Meter(server, options.max_mb)
        before = {"rss_before_mb": meter.rss_mb(), "descriptors_before": meter.descriptors()}
        prober = start(observers.prober, server.port, stand_in.ready())
        if good:
            client = start(clients.good_clients, server.port, server.key, at_rest, good, options.think)
        else:
            client = start(clients.innocent, server.port, server.key, at_rest, kind)
        prober.ready(), client.ready()
        with meter:
            attackers = [
                start(attacker, *_order(attack, server, seconds, options), nice=options.nice) for attack in attacks
            ]
            for child in attackers:
                child.ready(MARGIN)  # about forty start at once, with low priority
            end = time.monotonic() + seconds + EXIT_SECONDS
            while any(child.alive for child in attackers) and time.monotonic() < end and not meter.spent.is_set():
                time.sleep(0.1)
            results = [child.finish(MARGIN) for child in attackers]
            took = time.monotonic() - meter.started
            cpu = meter.cpu()
            health = to_its_end(prober)
            client_result = to_its_end(client)
            peak, lines, max_lines = meter.peak_mb, meter.lines, meter.max_lines
            settled = _settle(meter, before, options.settle)
        to_its_end(stand_in)
        ended = server.ended()
    attackers_cpu = round(sum(used for _, used in results), 2)
    did = {attack.name: result["did"] for attack, (result, _) in zip(attacks, results, strict=True)}
    return {
        **before, **settled, "rss_peak_mb": peak, "stopped_early": options.max_mb if meter.spent.is_set() else 0,
        "seconds": round(took, 1),
        "usual_seconds": round(at_rest.short, 3), "usual_long_seconds": round(at_rest.long, 3),
        "health": health, ("good" if good else "innocent"): client_result,
        "log_lines": lines, "log_lines_a_second": round(lines / took, 1), "log_lines_most_a_second": max_lines,
        "cpu_seconds": {**cpu, "attackers": attackers_cpu}, "nice": options.nice,
        "ended": ended, "last_words": server.last_lines() if ended else "",
        "did": did, "attacks_did": any(did.values()), "needs_work": bool(attacks),
        "broken": [f"{a.name}: {s}" for a, (r, _) in zip(attacks, results, strict=True) for s in r["broken"]],
    }  # fmt: skip


def _order(attack: Attack, server: Besieged, seconds: float, options: Options) -> tuple[Any, ...]:
    """Returns the arguments of an attacker's process."""
    key = server.keys_of.get(attack.name, server.attackers_key) if attack.keyed else None
    return attack.run.__module__, attack.name, server.port, key, seconds, options.pause_factor


def _settle(meter: Meter, before: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Waits until memory and descriptors are back, at most `seconds`."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        back = meter.rss_mb() <= before["rss_before_mb"] + verdict.LEFT_MB
        if back and meter.descriptors() <= before["descriptors_before"] + verdict.LEFT_DESCRIPTORS:
            break
        time.sleep(0.25)
    after = {"rss_after_mb": meter.rss_mb(), "descriptors_after": meter.descriptors()}
    return after | {"settle_seconds": round(time.monotonic() - start, 1)}
