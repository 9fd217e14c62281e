"""Operations on logits over a vocabulary, of which one process has all or each rank a shard (`vocab_parallel.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.algorithms import sampling
from runtime.algorithms.sampling import Candidate, Top


class Vocabulary:
    """All of it is here: logits and probabilities are [rows, vocab]. Ids are the vocabulary's own, whatever is here."""

    shared = False  # whether other processes have the rest of it

    def size(self, logits: torch.Tensor) -> int:
        """How many ids there are."""
        return logits.shape[1]

    def every(self, logits: torch.Tensor) -> torch.Tensor:
        """[rows, all ids], of few rows: what rules need of a step is worked out without it."""
        return logits

    def columns(self, ids: torch.Tensor) -> torch.Tensor:
        """int64: which columns of logits belong to those of some ids that are here."""
        return ids

    def ban(self, logits: torch.Tensor, *, mask_id: int | None, max_token_id: int, spared: Sequence[int] = ()) -> None:
        """See `choose.ban`."""
        sampling.ban(logits, mask_id=mask_id, max_token_id=max_token_id, spared=spared)

    def add(self, logits: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
        """In place: to the logits of `ids` [rows, n], `values` alike."""
        logits.scatter_add_(1, ids, values)

    def values(self, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """The logits of `ids` [rows, n]; of those that are not here, anything."""
        return logits.gather(1, ids)

    def put(self, logits: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
        """In place: the logits of `ids` [rows, n] are `values`, the same wherever an id of a row is the same."""
        logits.scatter_(1, ids, values)

    def but(self, logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
        """int64 [rows]: the likeliest id that is none of `ids`."""
        said = [logits[:, id].clone() for id in ids]
        for id in ids:
            logits[:, id] = float("-inf")
        best = logits.argmax(1)
        for id, before in zip(ids, said, strict=True):
            logits[:, id] = before
        return best

    def unlike(
        self, logits: torch.Tensor, ids: torch.Tensor, counts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [rows], the likeliest id that is none of a row's `ids` [rows, n], of which those count that `counts`
        says; and bool [rows], whether there is one."""
        held = logits.gather(1, ids)
        logits.scatter_add_(1, ids, torch.where(counts, float("-inf"), 0.0).to(logits.dtype))
        best = logits.argmax(1, keepdim=True)
        there = logits.gather(1, best) > float("-inf")
        logits.scatter_(1, ids, held)
        return best[:, 0], there[:, 0]

    def greedy(self, logits: torch.Tensor) -> Candidate:
        return sampling.greedy(logits)

    def top(self, logits: torch.Tensor, count: int) -> Top:
        return sampling.top(logits, count)

    def probability(self, logits: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        return sampling.probability(logits, token)

    def softmax(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.softmax(dim=1)

    def distribution(
        self, logits: torch.Tensor, *, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor,
        min_p: torch.Tensor | None = None, free: int = 0,
    ) -> torch.Tensor:  # fmt: skip
        return sampling.distribution(
            logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, free=free
        )  # fmt: skip

    def pick(self, probs: torch.Tensor, uniform: torch.Tensor) -> Candidate:
        return sampling.pick(probs, uniform)

    def margin(self, probs: torch.Tensor) -> torch.Tensor:
        return sampling.margin(probs)

    def entropy(self, probs: torch.Tensor) -> torch.Tensor:
        return sampling.entropy(probs)

    def margin_of(self, logits: torch.Tensor) -> torch.Tensor:
        """`margin` of their softmax."""
        return self.margin(self.softmax(logits))

    def entropy_of(self, logits: torch.Tensor) -> torch.Tensor:
        """`entropy` of their softmax."""
        return self.entropy(self.softmax(logits))


WHOLE = Vocabulary()
