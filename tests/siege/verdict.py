"""Defines the bars, and finds those that a measurement missed."""

from __future__ import annotations

from typing import Any

GROWTH_MB = 100.0  # maximum growth of the frontend's memory under an attack
LEFT_MB = 20.0  # maximum growth that may be left after an attack
LEFT_TOGETHER_MB = (
    50.0  # and after all attacks at once: the interpreter keeps an arena with any live object, and uses it again
)
HEALTH_SECONDS = 0.2
SLOW_SECONDS = 2.0  # maximum by which an innocent request may exceed its usual time
LEFT_DESCRIPTORS = 10
LINES_A_SECOND = 50  # log lines that attackers may cause


def alone(m: dict[str, Any]) -> list[str]:
    """Returns the bars that were missed under one attack alone."""
    health, innocent = m["health"], m["innocent"]
    missed = _always(m, LEFT_MB)
    if m["rss_peak_mb"] - m["rss_before_mb"] >= GROWTH_MB:
        missed.append(f"memory grew by {m['rss_peak_mb'] - m['rss_before_mb']:.0f} MB (bar {GROWTH_MB:.0f})")
    if health["failed"]:
        missed.append(f"{health['failed']} of {health['probes']} probes of /health failed: {health['failures']}")
    if health["longest_seconds"] > HEALTH_SECONDS:
        bar = f"bar {HEALTH_SECONDS * 1000:.0f}"
        took = f"{health['longest_seconds'] * 1000:.0f} ms ({bar})"
        missed.append(f"/health took up to {took}{_machine_note(health)}")
    excused = innocent["turned_away"] if m.get("full") else 0
    if failed := innocent["failed"] - excused:
        sentences = [s for s in innocent["failures"] if not (excused and s.startswith("503: "))]
        missed.append(f"{failed} innocent requests failed: {'; '.join(sentences)}")
    slow_by = innocent["most_over_usual_seconds"]
    if slow_by > SLOW_SECONDS:
        missed.append(f"an innocent request took {slow_by:.1f} s longer than usual (bar {SLOW_SECONDS:.0f})")
    slowdown, median = m.get("slowdown"), innocent.get("median_times_usual")
    control = m.get("control_median_times_usual")
    if slowdown is not None and (median is None or median > slowdown * (control or 1.0)):
        bar = f"bar {slowdown:g}"
        if control is not None:
            bar = f"control: {control} times; limit: {slowdown:g} times the control"
        missed.append(f"the median of innocent requests took {median} times as long as usual ({bar})")
    return missed


def together(m: dict[str, Any]) -> list[str]:
    """Returns the bars that were missed under all attacks at once."""
    missed = _always(m, LEFT_TOGETHER_MB)
    good, health = m["good"], m["health"]
    if not good["requests"]:
        missed.append("no good request was made")
    if good["failed"]:
        missed.append(f"{good['failed']} of {good['requests']} good requests failed: {'; '.join(good['failures'])}")
    if health["most_failed_in_a_row"] > 1:
        row = health["most_failed_in_a_row"]
        took = f"{health['longest_seconds']:.1f} s"
        missed.append(f"{row} probes failed in a row, {took}{_machine_note(health)}")
    return missed


def _always(m: dict[str, Any], max_left: float) -> list[str]:
    missed = [f"{name} ended" for name in m["ended"]] + list(m["broken"])
    if m["stopped_early"]:
        missed.append(f"stopped early, memory had passed {m['stopped_early']:.0f} MB")
    if not m["health"]["probes"] or (not m["attacks_did"] and m["needs_work"]):
        missed.append("nothing was measured: no probe, or an attack that did nothing")
    left = m["rss_after_mb"] - m["rss_before_mb"]
    if left > max_left:
        missed.append(f"{left:.0f} MB were still held {m['settle_seconds']:.0f} s after it (bar {max_left:.0f})")
    if m["descriptors_after"] > m["descriptors_before"] + LEFT_DESCRIPTORS:
        missed.append(f"descriptors {m['descriptors_before']} -> {m['descriptors_after']}")
    if m["log_lines_most_a_second"] > LINES_A_SECOND:
        missed.append(f"{m['log_lines_most_a_second']} log lines in a second (bar {LINES_A_SECOND})")
    return missed


def _machine_note(health: dict[str, Any]) -> str:
    """Returns a note if a server that does nothing was delayed too, so that the machine is a part of the cause."""
    own = health["stand_in_longest_seconds"]
    return f"; a server that does nothing took {own * 1000:.0f} ms" if own > HEALTH_SECONDS / 2 else ""
