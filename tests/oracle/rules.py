"""The positions that the algorithms of docs/research/decoding-rules.md#unmasking-algorithms take, in plain Python.

`found` maps every MASKED offset of the block to its choice; each function returns the offsets taken. `masks` is the
block's number of non-fixed positions, `done` the steps before this one in which it might force.

Readings: the metric orders positions, and of equals the lowest goes first. `factor` walks the positions in their order
and stops at the first whose probability is less than its place asks for (in the default order: the largest n). An
anchor's radius counts positions of the block, fixed and filled ones too. A run of masks ends at whatever is not MASKED.
A choice that suppress_eos="confidence" holds back has conf -inf and no distribution: it passes nothing, and comes after
all others in any order, the lowest position first; `sequential` too takes it after the others.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.oracle.draws import Choice

Found = dict[int, Choice]


def metric(choice: Choice, name: str) -> float:
    """The larger, the earlier the position's turn."""
    if choice.probs is None:
        return -np.inf
    if name == "margin":
        first, second = sorted(choice.probs)[:-3:-1]
        return float(first - second)
    if name == "neg_entropy":
        return -entropy(choice)
    return choice.conf


def entropy(choice: Choice) -> float:
    """In nats."""
    if choice.probs is None:
        return np.inf
    return float(sum(-p * np.log(p) for p in choice.probs if p > 0))


def in_order(found: Found, name: str) -> list[int]:
    return sorted(found, key=lambda i: (-metric(found[i], name), i))


def quota(masks: int, steps: int, done: int) -> int:
    steps = max(1, min(steps, masks))
    return masks // steps + (done < masks % steps)


def fixed(found: Found, p, *, force: bool, masks: int, done: int) -> list[int]:
    return in_order(found, p.confidence_metric)[: quota(masks, p.steps, done)] if force else []


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
    """`found` was chosen with credit (`tests.oracle.block.fuse_credit`)."""
    return threshold(found, p, force=force, masks=masks, done=done)


NAIVE_ALGORITHMS: dict[str, Callable[..., list[int]]] = {
    rule.__name__: rule
    for rule in (threshold, fixed, dynamic, sequential, factor, entropy_bound, local_leap, hierarchical, credit)
}
