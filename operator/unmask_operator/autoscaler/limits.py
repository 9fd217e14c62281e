"""How far the policies of ``behavior`` let the replicas move now, by the rules of autoscaling/v2."""

from datetime import datetime

from unmask_operator.autoscaler.history import History
from unmask_operator.autoscaler.rules import Direction


def up_limit(replicas: int, up: Direction, history: History, now: datetime) -> int:
    """The most replicas allowed now. Percentages are rounded up, so that one replica can always grow."""
    if up.select == "Disabled":
        return replicas
    limits = []
    for policy in up.policies:
        start = replicas - history.change_within(now, policy.period)
        grown = start + policy.value if policy.type == "Pods" else -(-start * (100 + policy.value) // 100)
        limits.append(grown)
    return max(replicas, min(limits) if up.select == "Min" else max(limits))


def down_limit(replicas: int, down: Direction, history: History, now: datetime) -> int:
    """The fewest replicas allowed now. Percentages are rounded down, so that the last ones can go too."""
    if down.select == "Disabled":
        return replicas
    limits = []
    for policy in down.policies:
        start = replicas - history.change_within(now, policy.period)
        shrunk = start - policy.value if policy.type == "Pods" else start * (100 - policy.value) // 100
        limits.append(shrunk)
    return min(replicas, max(limits) if down.select == "Min" else min(limits))
