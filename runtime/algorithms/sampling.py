"""Computes candidates and their probabilities from logits (docs/decoding-rules.md#candidates-and-confidence)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Candidate:
    """The token that each of some rows would take."""

    token: torch.Tensor  # int64 [rows]
    conf: torch.Tensor  # float [rows], probability of `token` in the distribution it was taken from


@dataclass(frozen=True)
class Top:
    """The likeliest tokens, the best first (ties: lowest id), and their softmax probabilities."""

    ids: torch.Tensor  # int64 [..., count]
    probs: torch.Tensor  # float [..., count], 0 where there are no more tokens


def ban(logits: torch.Tensor, *, mask_id: int | None, max_token_id: int, spared: Sequence[int] = ()) -> None:
    """In place: the mask, where there is one, and ids above the tokenizer's largest are never predicted, but for those
    that are `spared`."""
    held = [logits[:, token].clone() for token in spared]
    if mask_id is not None:
        logits[:, mask_id] = float("-inf")
    logits[:, max_token_id + 1 :] = float("-inf")
    for token, before in zip(spared, held, strict=True):
        logits[:, token] = before


def greedy(logits: torch.Tensor) -> Candidate:
    """[rows, vocab] -> the likeliest token (ties: lowest id) and its softmax probability."""
    best = logits.argmax(dim=1)  # the first of equal values
    return Candidate(best, probability(logits, best))


def top(logits: torch.Tensor, count: int) -> Top:
    """[rows, vocab] -> of each row the `count` likeliest tokens. `logits` is left as it was."""
    ids, values = largest(logits, count)
    return Top(ids, (values - logits.logsumexp(dim=1, keepdim=True)).exp())


def largest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, vocab] -> ids and values [rows, count] of the `count` largest, the largest first (ties: lowest id); -inf
    where there are no more. `logits` is left as it was."""
    ids: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    for _ in range(count):  # no `topk`: of equal values it takes any
        if ids:
            logits.scatter_(1, ids[-1], float("-inf"))
        ids.append(logits.argmax(dim=1, keepdim=True))
        values.append(logits.gather(1, ids[-1]))
    for id, value in zip(ids[-2::-1], values[-2::-1], strict=True):  # backwards: what is out of tokens repeats one
        logits.scatter_(1, id, value)
    return torch.cat(ids, 1), torch.cat(values, 1)


def probability(logits: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
    """Softmax probability of `token` [rows] under `logits` [rows, vocab]."""
    return (logits.gather(1, token[:, None])[:, 0] - logits.logsumexp(dim=1)).exp()


def distribution(
    logits: torch.Tensor, *, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor,
    min_p: torch.Tensor | None = None, free: int = 0,
) -> torch.Tensor:  # fmt: skip
    """[rows, vocab] probabilities to draw from: divide by the temperature, keep what has at least `min_p` of the
    likeliest one's probability, of that the top k, then the top p.

    Args:
        logits: [rows, vocab]. temperature, top_p, min_p: float64 [rows]; top_k: int64 [rows]; 0 is off, no `min_p` too.
        free: so many of the first rows are known to be under none of them; only the others' vocabulary is sorted.
    """
    scaled = logits / temperature.to(logits.dtype)[:, None]
    if free < len(scaled):
        some = scaled[free:]
        if min_p is not None:
            drop_unlikely(some, some.amax(1), min_p[free:])
        some.masked_fill_(~_kept(some, top_k[free:], top_p[free:]), float("-inf"))
    return scaled.softmax(dim=1)


def drop_unlikely(scaled: torch.Tensor, best: torch.Tensor, share: torch.Tensor) -> None:
    """In place: what has less than `share` [rows] of the likeliest one's probability; `best` [rows] are its logits."""
    least = best + share.log().to(scaled.dtype)  # -inf where it is off
    scaled.masked_fill_(scaled < least[:, None], float("-inf"))


def pick(probs: torch.Tensor, uniform: torch.Tensor) -> Candidate:
    """One draw a row: the first id in id order whose cumulative probability exceeds `uniform`, float64 [rows]."""
    below = probs.cumsum(dim=1, dtype=torch.float64) <= uniform[:, None]
    last = probs.shape[1] - 1 - (probs > 0).flip(1).int().argmax(dim=1)  # if rounding leaves the sum short of `uniform`
    token = torch.minimum(below.sum(dim=1), last)
    return Candidate(token, probs.gather(1, token[:, None])[:, 0])


def margin(probs: torch.Tensor) -> torch.Tensor:
    """[rows]: by how much the likeliest of [rows, vocab] leads before the second."""
    first, second = probs.topk(2, dim=1).values.unbind(dim=1)
    return first - second


def entropy(probs: torch.Tensor) -> torch.Tensor:
    """[rows]: in nats, of [rows, vocab]."""
    each: torch.Tensor = torch.special.entr(probs)
    return each.sum(dim=1)


def _kept(scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """bool [rows, vocab]: what top-k and then top-p leave. Ties go to the lowest id; the token that crosses p stays."""
    ordered, ids = scaled.sort(dim=1, descending=True, stable=True)
    rank = torch.arange(scaled.shape[1], device=scaled.device)
    keep = (rank < top_k[:, None]) | (top_k <= 0)[:, None]
    probs = ordered.masked_fill(~keep, float("-inf")).softmax(dim=1)
    before = probs.cumsum(dim=1, dtype=torch.float64) - probs
    keep &= (before < top_p[:, None]) | (top_p >= 1)[:, None]
    return torch.zeros_like(keep).scatter_(1, ids, keep)
