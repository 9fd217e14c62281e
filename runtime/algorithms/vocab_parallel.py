"""A vocabulary that processes share: each makes the logits of its own ids, and what is asked of them is worked out from
a few numbers a row of each. Nobody ever has all the logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.algorithms import sampling
from runtime.algorithms.distributed_quantile import Ordered, keys
from runtime.algorithms.logits_ops import Vocabulary
from runtime.algorithms.sampling import Candidate, Top
from runtime.layers.sharding import Ids

NONE = float("-inf")


class PartedVocabulary(Vocabulary):
    """Logits and probabilities are [rows, ids that are here]; what comes of them is the whole vocabulary's, and the
    same in every process. Where ids come to the same, the lowest is taken, and lower ids are those of lower ranks."""

    shared = True

    def __init__(self, ids: Ids) -> None:
        self.ids = ids
        self.group = ids.group

    def size(self, logits: torch.Tensor) -> int:
        return self.ids.whole

    def every(self, logits: torch.Tensor) -> torch.Tensor:
        size, whole = self.group.size, self.ids.whole
        counts = [whole * (rank + 1) // size - whole * rank // size for rank in range(size)]
        filled = torch.nn.functional.pad(logits, (0, max(counts) - logits.shape[1]))
        parts = self.group.all_gather(filled)
        return torch.cat([part[:, :count] for part, count in zip(parts, counts, strict=True)], 1)

    def columns(self, ids: torch.Tensor) -> torch.Tensor:
        at, here = self.ids.at(ids)
        return at[here]

    def ban(self, logits: torch.Tensor, *, mask_id: int | None, max_token_id: int, spared: Sequence[int] = ()) -> None:
        here = self.ids.here
        sampling.ban(
            logits,
            mask_id=here.index(mask_id) if mask_id in here else None,  # type: ignore[arg-type]
            max_token_id=max(max_token_id - here.start, -1),
            spared=[here.index(token) for token in spared if token in here],
        )

    def add(self, logits: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
        at, here = self.ids.at(ids)
        logits.scatter_add_(1, at, torch.where(here, values, 0))

    def values(self, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return logits.gather(1, self.ids.at(ids)[0])

    def put(self, logits: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
        at, here = self.ids.at(ids)
        row = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
        logits[row[here], at[here]] = values[here]

    def but(self, logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
        banned = logits.clone()
        for id in ids:
            if id in self.ids.here:
                banned[:, self.ids.here.index(id)] = NONE
        return self._best(banned)[0]

    def unlike(
        self, logits: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        at, here = self.ids.at(ids)
        banned = logits.scatter_add(1, at, torch.where(here & counts, NONE, 0.0).to(logits.dtype))
        best, value = self._best(banned)
        return best, value > NONE

    def greedy(self, logits: torch.Tensor) -> Candidate:
        token, value, total = self._best_of(logits, logits.logsumexp(1))
        return Candidate(token, (value - total).exp())

    def top(self, logits: torch.Tensor, count: int) -> Top:
        ids, values = sampling.largest(logits, min(count, logits.shape[1]))
        short = max(count - ids.shape[1], 0)
        ids = torch.nn.functional.pad(ids, (0, short)) + self.ids.here.start
        values = torch.nn.functional.pad(values, (0, short), value=NONE)
        ids, values = self.group.all_gather(torch.stack([ids.to(values.dtype), values])).unbind(1)
        ids, values = ids.transpose(0, 1).flatten(1), values.transpose(0, 1).flatten(1)  # [rows, ranks * count]
        values, order = values.sort(dim=1, descending=True, stable=True)
        ids = ids.gather(1, order)[:, :count].long()
        return Top(ids, (values[:, :count] - self._total(logits)[:, None]).exp())

    def probability(self, logits: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        values, totals = self.group.all_gather(torch.stack([self._mine(logits, token), logits.logsumexp(1)])).unbind(1)
        return (values.amax(0) - totals.logsumexp(0)).exp()

    def softmax(self, logits: torch.Tensor) -> torch.Tensor:
        return (logits - self._total(logits)[:, None]).exp()

    def distribution(
        self, logits: torch.Tensor, *, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor,
        min_p: torch.Tensor | None = None, free: int = 0,
    ) -> torch.Tensor:  # fmt: skip
        scaled = logits / temperature.to(logits.dtype)[:, None]
        if free < len(scaled):
            some = scaled[free:]
            if min_p is not None:
                sampling.drop_unlikely(some, self.group.all_reduce_max(some.amax(1)), min_p[free:])
            order = Ordered(keys(some), 8 * some.element_size())
            some.masked_fill_(~self._first(order, top_k[free:]), NONE)
            some.masked_fill_(~self._most(order, self.softmax(some), top_p[free:]), NONE)
        return self.softmax(scaled)

    def pick(self, probs: torch.Tensor, uniform: torch.Tensor) -> Candidate:
        sums = probs.cumsum(dim=1, dtype=torch.float64)
        before = self._before(sums[:, -1])
        below = (before[:, None] + sums <= uniform[:, None]).sum(1)
        there = probs > 0
        last = probs.shape[1] - 1 - there.flip(1).int().argmax(dim=1) + self.ids.here.start
        counts, lasts = self.group.all_gather(torch.stack([below, torch.where(there.any(1), last, -1)])).unbind(1)
        token = torch.minimum(counts.sum(0), lasts.amax(0))
        return Candidate(token, self.group.all_reduce_max(self._mine(probs, token)))

    def margin(self, probs: torch.Tensor) -> torch.Tensor:
        two = probs.topk(min(2, probs.shape[1]), dim=1).values
        two = torch.nn.functional.pad(two, (0, 2 - two.shape[1]))
        first, second = self.group.all_gather(two).transpose(0, 1).flatten(1).topk(2, dim=1).values.unbind(dim=1)
        return first - second

    def entropy(self, probs: torch.Tensor) -> torch.Tensor:
        return self.group.all_reduce(sampling.entropy(probs))

    def _mine(self, numbers: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        """[rows]: each row's number of `token`; -inf where another process has it."""
        at, here = self.ids.at(token)
        return torch.where(here, numbers.gather(1, at[:, None])[:, 0], NONE)

    def _total(self, logits: torch.Tensor) -> torch.Tensor:
        """[rows]: the logarithm of all exponentials' sum."""
        return self.group.all_gather(logits.logsumexp(1)).logsumexp(0)

    def _before(self, numbers: torch.Tensor) -> torch.Tensor:
        """[rows]: the sum of the lower ranks' numbers."""
        return self.group.all_gather(numbers)[: self.group.rank].sum(0)

    def _best(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The likeliest id and its logit."""
        token, value, _ = self._best_of(logits, logits[:, 0])
        return token, value

    def _best_of(self, logits: torch.Tensor, total: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The likeliest id, its logit, and the processes' totals joined."""
        at = logits.argmax(1, keepdim=True)
        value, token = logits.gather(1, at)[:, 0], at[:, 0] + self.ids.here.start
        told = torch.stack([value, token.to(value.dtype), total])
        values, tokens, totals = self.group.all_gather(told).unbind(1)
        best = values.argmax(0, keepdim=True)
        return tokens.gather(0, best)[0].long(), values.gather(0, best)[0], totals.logsumexp(0)

    def _first(self, order: Ordered, count: torch.Tensor) -> torch.Tensor:
        """bool [rows, ids that are here]: the `count` [rows] first in descending order (ties: lowest id); all for 0."""
        count = count[:, None]
        key = order.smallest_that(lambda key: self.group.all_reduce(order.above(key)) < count)
        above = self.group.all_reduce(order.above(key))
        same = order.keys == key
        place = self._before(same.sum(1))[:, None] + same.cumsum(1)
        return (order.keys > key) | (same & (above + place <= count)) | (count <= 0)

    def _most(self, order: Ordered, probs: torch.Tensor, most: torch.Tensor) -> torch.Tensor:
        """The same in that order before which there is less than `most` [rows] of probability; all for 1 or more."""
        most, mass = most[:, None], order.mass(probs)
        key = order.smallest_that(lambda key: self.group.all_reduce(mass(key)) < most)
        above = self.group.all_reduce(mass(key))
        same = order.keys == key
        each = self.group.all_reduce_max(torch.where(same, probs, 0).amax(1, keepdim=True)).double()
        earlier = self._before(same.sum(1))[:, None] + same.cumsum(1) - 1
        return (order.keys > key) | (same & (above + earlier * each < most)) | (most >= 1)
