"""Naive implementations of docs/research/decoding-rules.md#unmasking-algorithms in plain Python.

Each function decides for one block, and returns the offsets that it unmasks. Its parameters:

* `found`: the candidate of each MASKED offset.
* `p`: parameters of the request. A dot in the name of a field is a `_` here.
* `force`: the block must advance (docs/research/decoding-rules.md#forcing).
* `masks`: number of positions of the block that are not FIXED.
* `done`: number of earlier steps in which the block had to advance.

Details of the rules that oracle and engine interpret in the same way:

* Positions are ordered by the confidence metric. Of equal ones the lowest is first.
* `factor` stops at the first position of the order whose probability is too low.
* The radius of an anchor counts all positions of the block, FIXED and UNMASKED ones too.
* A run of masks ends at any position that is not MASKED.
* A candidate that suppress_eos="confidence" suppresses has conf -inf and no distribution. It passes no threshold and is
  last in every order, also in that of `sequential`. Of several, the lowest position is first.
"""

from collections.abc import Callable

import numpy as np

from tests.oracle.draws import Choice

Found = dict[int, Choice]


def metric(choice: Choice, name: str) -> float:
    """Returns the confidence metric `name` of a candidate. Positions are unmasked from the highest value down."""
    if choice.probs is None:
        return -np.inf
    if name == "margin":
        first, second = sorted(choice.probs)[:-3:-1]
        return float(first - second)
    if name == "neg_entropy":
        return -entropy(choice)
    return choice.conf


def entropy(choice: Choice) -> float:
    """Returns the entropy of the distribution in nats; inf for a suppressed candidate."""
    if choice.probs is None:
        return np.inf
    return float(sum(-p * np.log(p) for p in choice.probs if p > 0))


def in_order(found: Found, name: str) -> list[int]:
    return sorted(found, key=lambda i: (-metric(found[i], name), i))


def quota(masks: int, steps: int, done: int, remainder: str = "first") -> int:
    steps = max(1, min(steps, masks))
    if remainder == "spread":  # after step i of n, at least masks * i / n positions are unmasked
        return next(n for n in range(masks + 1) if n * steps >= masks * (done + 1)) - next(
            n for n in range(masks + 1) if n * steps >= masks * done
        )
    return masks // steps + (done < masks % steps)


def fixed(found: Found, p, *, force: bool, masks: int, done: int) -> list[int]:
    return in_order(found, p.confidence_metric)[: quota(masks, p.steps, done, p.step_remainder)] if force else []


def sequential(found: Found, p, *, force: bool, masks: int, done: int) -> list[int]:
    return sorted(found, key=lambda i: (found[i].probs is None, i))[: quota(masks, p.steps, done)] if force else []


def dynamic(found: Found, p, *, force: bool, masks: int, done: int) -> list[int]:
    if not force:
        return []
    sure = [i for i in found if found[i].conf > p.accept_threshold]
    least = quota(masks, p.steps, done)
    return sure if len(sure) >= least else in_order(found, p.confidence_metric)[:least]


def or_best(taken: list[int], found: Found, name: str, force: bool) -> list[int]:
    return taken if taken or not force else in_order(found, name)[:1]


def threshold(found: Found, p, *, force: bool, masks: int, done: int) -> list[int]:
    sure = [i for i in found if found[i].conf > p.accept_threshold]
    return or_best(sure, found, p.confidence_metric, force)


def factor(found: Found, p, *, force: bool, masks: int, done: int) -> list[int]:
    taken: list[int] = []
    for n, i in enumerate(in_order(found, p.confidence_metric), 1):
        if found[i].conf < 1 - p.factor / (n + 1):
            break
        taken.append(i)
    return or_best(taken, found, p.confidence_metric, force)


def entropy_bound(found: Found, p, *, force: bool, masks: int, done: int) -> list[int]:
    total, taken = 0.0, []
    for i in in_order(found, "neg_entropy"):
        total += entropy(found[i])
        if total > p.entropy_bound:
            break
        taken.append(i)
    return or_best(taken, found, "neg_entropy", force)


def local_leap(found: Found, p, *, force: bool, masks: int, done: int) -> list[int]:
    anchors = [i for i in found if found[i].conf >= p.local_leap_anchor]
    near = [
        i
        for i in found
        if found[i].conf >= p.local_leap_neighbor and any(abs(i - a) <= p.local_leap_radius for a in anchors)
    ]
    return or_best(sorted({*anchors, *near}), found, p.confidence_metric, force)


def hierarchical(found: Found, p, *, force: bool, masks: int, done: int) -> list[int]:
    taken = {i for i in found if found[i].conf > p.accept_threshold}
    runs: list[list[int]] = []
    for i in sorted(found):
        if i - 1 in found:
            runs[-1].append(i)
        else:
            runs.append([i])
    for run in runs:
        best = in_order({i: found[i] for i in run}, p.confidence_metric)[0]
        if found[best].conf > p.low_threshold:
            taken.add(best)
    return or_best(sorted(taken), found, p.confidence_metric, force)


def credit(found: Found, p, *, force: bool, masks: int, done: int) -> list[int]:
    """The candidates in `found` are computed with credit (`tests.oracle.block.fuse_credit`)."""
    return threshold(found, p, force=force, masks=masks, done=done)


NAIVE_ALGORITHMS: dict[str, Callable[..., list[int]]] = {
    rule.__name__: rule
    for rule in (threshold, fixed, dynamic, sequential, factor, entropy_bound, local_leap, hierarchical, credit)
}
