"""Operations on logits over the vocabulary, for one process. `vocab_parallel.py` has them for a sharded vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.algorithms import sampling
from runtime.algorithms.sampling import Candidate, TopTokens


class LogitsOps:
    """Operations on logits and probabilities of shape [rows, vocab]. Ids are token ids, also in subclasses."""

    is_sharded = False  # whether each rank has a shard of the vocabulary

    def vocab_size(self, logits: torch.Tensor) -> int:
        """Returns the size of the full vocabulary."""
        return logits.shape[1]

    def all_gather(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the full logits [rows, vocab]. Expensive: algorithms do not use it."""
        return logits

    def local_columns(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the columns of this rank's logits for those of `ids` that it has, int64."""
        return ids

    def mask_forbidden(
        self, logits: torch.Tensor, *, mask_id: int | None, max_token_id: int, allowed_special_ids: Sequence[int] = ()
    ) -> None:
        """See `sampling.mask_forbidden`."""
        sampling.mask_forbidden(
            logits, mask_id=mask_id, max_token_id=max_token_id, allowed_special_ids=allowed_special_ids
        )

    def scatter_add(self, logits: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
        """Adds `values` [rows, n] to the logits of `ids` [rows, n] in place."""
        logits.scatter_add_(1, ids, values)

    def gather(self, logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Returns the logits of `ids` [rows, n]. Values of ids on other ranks are undefined."""
        return logits.gather(1, ids)

    def scatter(self, logits: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
        """Sets the logits of `ids` [rows, n] to `values` in place. Equal ids of a row must have equal values."""
        logits.scatter_(1, ids, values)

    def argmax_excluding(self, logits: torch.Tensor, ids: Sequence[int]) -> torch.Tensor:
        """Returns the argmax over all ids except `ids`, int64 [rows]."""
        excluded = [logits[:, id].clone() for id in ids]
        for id in ids:
            logits[:, id] = float("-inf")
        best = logits.argmax(1)
        for id, before in zip(ids, excluded, strict=True):
            logits[:, id] = before
        return best

    def argmax_excluding_rows(
        self, logits: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the argmax of each row over all ids except the row's own `ids`.

        Args:
            logits: [rows, vocab].
            ids: int64 [rows, n].
            mask: bool [rows, n], which of `ids` are excluded.

        Returns:
            int64 [rows], and bool [rows], whether any id with a finite logit is left.
        """
        excluded = logits.gather(1, ids)
        logits.scatter_add_(1, ids, torch.where(mask, float("-inf"), 0.0).to(logits.dtype))
        best = logits.argmax(1, keepdim=True)
        found = logits.gather(1, best) > float("-inf")
        logits.scatter_(1, ids, excluded)
        return best[:, 0], found[:, 0]

    def greedy(self, logits: torch.Tensor) -> Candidate:
        """See `sampling.greedy`."""
        return sampling.greedy(logits)

    def top_tokens(self, logits: torch.Tensor, count: int) -> TopTokens:
        """See `sampling.top_tokens`."""
        return sampling.top_tokens(logits, count)

    def probability(self, logits: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        """See `sampling.probability`."""
        return sampling.probability(logits, token)

    def softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the softmax over the full vocabulary, for this rank's ids."""
        return logits.softmax(dim=1)

    def filtered_probs(
        self, logits: torch.Tensor, *, temperature: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor,
        min_p: torch.Tensor | None = None, num_unfiltered: int = 0,
    ) -> torch.Tensor:  # fmt: skip
        """See `sampling.filtered_probs`."""
        return sampling.filtered_probs(
            logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, num_unfiltered=num_unfiltered
        )  # fmt: skip

    def multinomial(self, probs: torch.Tensor, uniform: torch.Tensor) -> Candidate:
        """See `sampling.multinomial`."""
        return sampling.multinomial(probs, uniform)

    def margin(self, probs: torch.Tensor) -> torch.Tensor:
        """See `sampling.margin`."""
        return sampling.margin(probs)

    def entropy(self, probs: torch.Tensor) -> torch.Tensor:
        """See `sampling.entropy`."""
        return sampling.entropy(probs)

    def margin_from_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns `margin` of the softmax of the logits."""
        return self.margin(self.softmax(logits))

    def entropy_from_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns `entropy` of the softmax of the logits."""
        return self.entropy(self.softmax(logits))


DEFAULT_LOGITS_OPS = LogitsOps()
