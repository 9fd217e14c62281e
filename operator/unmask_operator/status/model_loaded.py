"""ModelLoaded: the engines of the newest template have their model in memory."""

from __future__ import annotations

from unmask_operator.status import pods as pod_facts
from unmask_operator.status.facts import Facts
from unmask_operator.status.verdict import Verdict, no, yes


def verdict(facts: Facts) -> Verdict | None:
    """Pods that are added by scaling may load while others serve; those of a rollout must be done."""
    if facts.idle or facts.absent:
        return None
    if facts.trouble:
        return no(facts.trouble.reason, facts.trouble.message)
    started = [pod_facts.is_started(pod) for pod in facts.pods]
    if any(started) and (all(started) or facts.rolled_out):
        return yes("Loaded", "the model is loaded")
    if load := facts.slowest_load:
        return no("Loading", f"the model is being loaded: {load.phase}, {load.percent:.0f} %")
    if any(pod_facts.runs(pod) and not pod_facts.is_started(pod) for pod in facts.pods):
        return no("Starting", "the engine's process has started and its start-up probe has not passed yet")
    return no("Pending", "the engine has not started yet")
