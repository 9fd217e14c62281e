"""Operations on logits that are sharded over the vocabulary by tensor parallelism.

Each rank computes the logits of its own ids. The ranks exchange a few numbers per row instead of the full logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from runtime.algorithms.logits_ops import Candidate, LogitsOps, TopTokens, topk
from runtime.kernels.topk_topp_sampling import min_p_filter
from runtime.parameters.sharding import VocabShard

_INT_DTYPES = {torch.float32: torch.int32, torch.float64: torch.int64}
DIGIT = 8  # bits of a key that one iteration determines


def sortable_keys(numbers: torch.Tensor) -> torch.Tensor:
    """Returns integers that have the same order as the numbers, int64. Keys of float32 have 32 bits. NaN is invalid."""
    bits = (numbers + 0.0).view(_INT_DTYPES[numbers.dtype])  # -0.0 becomes 0.0
    return torch.where(bits < 0, bits ^ torch.iinfo(bits.dtype).max, bits).long()


class DistributedQuantile:
    """The sorted keys of this rank's columns.

    Args:
        keys: int64 [rows, n], see `sortable_keys`.
        bits: number of bits of a key.
    """

    def __init__(self, keys: torch.Tensor, bits: int) -> None:
        self.keys = keys
        self.bits = bits
        self._ascending, self._order = keys.sort(dim=1)

    def count_above(self, key: torch.Tensor) -> torch.Tensor:
        """Returns the number of larger keys of this rank for each of `key` [rows, m], int64 [rows, m]."""
        return self.keys.shape[1] - torch.searchsorted(self._ascending, key, right=True)

    def mass_above(self, probs: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """Returns a function from keys [rows, m] to the summed probability of this rank's larger keys, float64.

        Args:
            probs: [rows, n], probabilities of the columns.
        """
        falling = probs.gather(1, self._order).flip(1).cumsum(1, dtype=torch.float64)
        sums = torch.nn.functional.pad(falling, (1, 0))
        return lambda key: sums.gather(1, self.count_above(key))

    def smallest_key_where(self, holds: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Returns the smallest key for which `holds` is true, [rows, 1].

        Args:
            holds: maps keys [rows, m] to bools. If it is true for a key, it is true for all larger keys; it is true
                for the largest key. The number of calls does not depend on the keys.
        """
        found = self.keys.new_full((len(self.keys), 1), -(2 ** (self.bits - 1)))
        digits = torch.arange(1, 2**DIGIT, device=found.device)
        for shift in range(self.bits - DIGIT, -1, -DIGIT):
            last = found + (digits << shift) - 1  # the largest key with each value of this digit, except the last value
            found = found + ((~holds(last)).sum(1, keepdim=True) << shift)
        return found


NEG_INF = float("-inf")


class VocabParallelLogitsOps(LogitsOps):
    """`LogitsOps` for logits and probabilities of shape [rows, local vocab].

    Results are those for the full vocabulary and equal on all ranks. Of equal values, the lowest id is chosen; lower
    ranks have lower ids.
    """

    is_sharded = True

    def __init__(self, vocab_shard: VocabShard) -> None:
        self.vocab_shard = vocab_shard
        self.group = vocab_shard.group

    def vocab_size(self, logits: torch.Tensor) -> int:
        return self.vocab_shard.vocab_size

    def all_gather(self, logits: torch.Tensor) -> torch.Tensor:
        size, vocab = self.group.size, self.vocab_shard.vocab_size
        counts = [vocab * (rank + 1) // size - vocab * rank // size for rank in range(size)]
        padded = torch.nn.functional.pad(logits, (0, max(counts) - logits.shape[1]))
        shards = self.group.all_gather(padded)
        return torch.cat([shard[:, :count] for shard, count in zip(shards, counts, strict=True)], 1)

    def local_columns(self, ids: torch.Tensor) -> torch.Tensor:
        column, is_local = self.vocab_shard.local_index(ids)
        return column[is_local]

    def mask_forbidden(
        self, logits: torch.Tensor, *, mask_id: int | None, max_token_id: int, allowed_special_ids: Sequence[int] = ()
    ) -> None:
        local = self.vocab_shard.local
        super().mask_forbidden(
            logits,
            mask_id=local.index(mask_id) if mask_id in local else None,  # type: ignore[arg-type]
            max_token_id=max(max_token_id - local.start, -1),
            allowed_special_ids=[local.index(token) for token in allowed_special_ids if token in local],
        )

    def scatter_add(self, logits: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
        column, is_local = self.vocab_shard.local_index(ids)
        logits.scatter_add_(1, column, torch.where(is_local, values, 0))

    def gather(self, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return logits.gather(1, self.vocab_shard.local_index(ids)[0])

    def scatter(self, logits: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
        column, is_local = self.vocab_shard.local_index(ids)
        row = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)
        logits[row[is_local], column[is_local]] = values[is_local]

    def argmax_excluding(self, logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
        allowed = logits.clone()
        for id in ids:
            if id in self.vocab_shard.local:
                allowed[:, self.vocab_shard.local.index(id)] = NEG_INF
        return self._argmax(allowed)[0]

    def argmax_excluding_rows(
        self, logits: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        column, is_local = self.vocab_shard.local_index(ids)
        allowed = logits.scatter_add(1, column, torch.where(is_local & mask, NEG_INF, 0.0).to(logits.dtype))
        best, value = self._argmax(allowed)
        return best, value > NEG_INF

    def greedy(self, logits: torch.Tensor) -> Candidate:
        token, value, total = self._argmax_and_logsumexp(logits, logits.logsumexp(1))
        return Candidate(token, (value - total).exp())

    def top_tokens(self, logits: torch.Tensor, count: int) -> TopTokens:
        ids, values = topk(logits, min(count, logits.shape[1]))
        missing = max(count - ids.shape[1], 0)
        ids = torch.nn.functional.pad(ids, (0, missing)) + self.vocab_shard.local.start
        values = torch.nn.functional.pad(values, (0, missing), value=NEG_INF)
        ids, values = self.group.all_gather(torch.stack([ids.to(values.dtype), values])).unbind(1)
        ids, values = ids.transpose(0, 1).flatten(1), values.transpose(0, 1).flatten(1)  # [rows, ranks * count]
        values, order = values.sort(dim=1, descending=True, stable=True)
        ids = ids.gather(1, order)[:, :count].long()
        return TopTokens(ids, (values[:, :count] - self._logsumexp(logits)[:, None]).exp())

    def probability(self, logits: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        local = torch.stack([self._local_values(logits, token), logits.logsumexp(1)])
        values, totals = self.group.all_gather(local).unbind(1)
        return (values.amax(0) - totals.logsumexp(0)).exp()

    def softmax(self, logits: torch.Tensor) -> torch.Tensor:
        return (logits - self._logsumexp(logits)[:, None]).exp()

    def filtered_probs(self, logits: torch.Tensor, params: torch.Tensor, num_unfiltered: int = 0) -> torch.Tensor:
        temperature, top_p, top_k, min_p = params.unbind(1)
        scaled = logits / temperature.to(logits.dtype)[:, None]
        if num_unfiltered < len(scaled):
            filtered = scaled[num_unfiltered:]
            min_p_filter(filtered, self.group.all_reduce_max(filtered.amax(1)), min_p[num_unfiltered:])
            quantile = DistributedQuantile(sortable_keys(filtered), 8 * filtered.element_size())
            filtered.masked_fill_(~self._top_k_mask(quantile, top_k[num_unfiltered:].long()), NEG_INF)
            filtered.masked_fill_(
                ~self._top_p_mask(quantile, self.softmax(filtered), top_p[num_unfiltered:]), NEG_INF
            )  # fmt: skip
        return self.softmax(scaled)

    def multinomial(self, probs: torch.Tensor, uniform: torch.Tensor) -> Candidate:
        sums = probs.cumsum(dim=1, dtype=torch.float64)
        before = self._exclusive_rank_sum(sums[:, -1])
        below = (before[:, None] + sums <= uniform[:, None]).sum(1)
        possible = probs > 0
        last = probs.shape[1] - 1 - possible.flip(1).int().argmax(dim=1) + self.vocab_shard.local.start
        counts, lasts = self.group.all_gather(torch.stack([below, torch.where(possible.any(1), last, -1)])).unbind(1)
        token = torch.minimum(counts.sum(0), lasts.amax(0))
        return Candidate(token, self.group.all_reduce_max(self._local_values(probs, token)))

    def margin(self, probs: torch.Tensor) -> torch.Tensor:
        top = probs.topk(min(2, probs.shape[1]), dim=1).values
        top = torch.nn.functional.pad(top, (0, 2 - top.shape[1]))
        first, second = self.group.all_gather(top).transpose(0, 1).flatten(1).topk(2, dim=1).values.unbind(dim=1)
        return first - second

    def entropy(self, probs: torch.Tensor) -> torch.Tensor:
        return self.group.all_reduce(super().entropy(probs))

    def _local_values(self, numbers: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        """Returns each row's number of `token`, [rows]; -inf if another rank has the token."""
        column, is_local = self.vocab_shard.local_index(token)
        return torch.where(is_local, numbers.gather(1, column[:, None])[:, 0], NEG_INF)

    def _logsumexp(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the logsumexp over the full vocabulary, [rows]."""
        return self.group.all_gather(logits.logsumexp(1)).logsumexp(0)

    def _exclusive_rank_sum(self, numbers: torch.Tensor) -> torch.Tensor:
        """Returns the sum of the numbers [rows] of all lower ranks."""
        return self.group.all_gather(numbers)[: self.group.rank].sum(0)

    def _argmax(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the argmax and its logit, [rows] each."""
        token, value, _ = self._argmax_and_logsumexp(logits, logits[:, 0])
        return token, value

    def _argmax_and_logsumexp(
        self, logits: torch.Tensor, total: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns the argmax, its logit, and the logsumexp of the `total` [rows] of all ranks, in one all-gather."""
        column = logits.argmax(1, keepdim=True)
        value, token = logits.gather(1, column)[:, 0], column[:, 0] + self.vocab_shard.local.start
        local = torch.stack([value, token.to(value.dtype), total])
        values, tokens, totals = self.group.all_gather(local).unbind(1)
        best = values.argmax(0, keepdim=True)
        return tokens.gather(0, best)[0].long(), values.gather(0, best)[0], totals.logsumexp(0)

    def _top_k_mask(self, quantile: DistributedQuantile, count: torch.Tensor) -> torch.Tensor:
        """Returns whether each local id is one of the `count` [rows] largest, bool [rows, local vocab]; all for 0.

        Of equal values, the lowest ids count first.
        """
        count = count[:, None]
        key = quantile.smallest_key_where(lambda key: self.group.all_reduce(quantile.count_above(key)) < count)
        above = self.group.all_reduce(quantile.count_above(key))
        same = quantile.keys == key
        rank = self._exclusive_rank_sum(same.sum(1))[:, None] + same.cumsum(1)
        return (quantile.keys > key) | (same & (above + rank <= count)) | (count <= 0)

    def _top_p_mask(self, quantile: DistributedQuantile, probs: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
        """Returns whether the ids before each local id, in the order of `_top_k_mask`, have less than `top_p` [rows]
        of probability. Shape as there; all for 1 or more."""
        top_p, mass = top_p[:, None], quantile.mass_above(probs)
        key = quantile.smallest_key_where(lambda key: self.group.all_reduce(mass(key)) < top_p)
        above = self.group.all_reduce(mass(key))
        same = quantile.keys == key
        each = self.group.all_reduce_max(torch.where(same, probs, 0).amax(1, keepdim=True)).double()
        earlier = self._exclusive_rank_sum(same.sum(1))[:, None] + same.cumsum(1) - 1
        return (quantile.keys > key) | (same & (above + earlier * each < top_p)) | (top_p >= 1)
