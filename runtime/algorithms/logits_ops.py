"""Operations on logits, and the random numbers of requests.

`LogitsOps` has the operations for one process, `VocabParallelLogitsOps` (`vocab_parallel.py`) for a vocabulary that is
sharded over ranks. Sampling with top-k and top-p is in ``kernels.topk_topp_sampling``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from runtime.algorithms.compile_cache import use_private_cache
from runtime.errors import ConfigError
from runtime.kernels import topk_topp_sampling

# Independent streams of random numbers of one request.
DRAW, CANVAS, RENOISE = range(3)


@dataclass(frozen=True)
class Candidate:
    """The candidate token of each row."""

    token: torch.Tensor  # int64 [rows]
    confidence: torch.Tensor  # float [rows], probability of `token` in the distribution that it was chosen from


@dataclass(frozen=True)
class TopTokens:
    """The most probable tokens in descending order (of equal ones, the lowest id first), with softmax probabilities."""

    ids: torch.Tensor  # int64 [..., count]
    probs: torch.Tensor  # float [..., count], 0 beyond the number of available tokens


def topk(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ids and values of the `count` largest logits of each row in descending order.

    Of equal logits, the lowest id comes first; `torch.topk` does not define this order. `logits` is unchanged.

    Args:
        logits: [rows, vocab].

    Returns:
        int64 [rows, count], and float [rows, count], -inf beyond the number of available tokens.
    """
    ids: list[torch.Tensor] = []
    values: list[torch.Tensor] = []
    for _ in range(count):
        if ids:
            logits.scatter_(1, ids[-1], float("-inf"))
        ids.append(logits.argmax(dim=1, keepdim=True))
        values.append(logits.gather(1, ids[-1]))
    # restore in reverse order: if tokens run out, an id repeats, and its first value is the original one
    for id, value in zip(ids[-2::-1], values[-2::-1], strict=True):
        logits.scatter_(1, id, value)
    return torch.cat(ids, 1), torch.cat(values, 1)


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
        """Sets the logits of ids that must not be predicted to -inf in place.

        Args:
            logits: [rows, vocab].
            mask_id: id of the mask; None if the model has none.
            max_token_id: the largest id of the tokenizer. Higher ids are forbidden.
            allowed_special_ids: exceptions.
        """
        allowed = [logits[:, token].clone() for token in allowed_special_ids]
        if mask_id is not None:
            logits[:, mask_id] = float("-inf")
        logits[:, max_token_id + 1 :] = float("-inf")
        for token, before in zip(allowed_special_ids, allowed, strict=True):
            logits[:, token] = before

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
        """Returns the argmax of each row of [rows, vocab] (of equal ones, the lowest id), and its probability."""
        best = logits.argmax(dim=1)  # the first of equal values
        return Candidate(best, self.probability(logits, best))

    def top_tokens(self, logits: torch.Tensor, count: int) -> TopTokens:
        """Returns the `count` most probable tokens of each row of [rows, vocab]. `logits` is unchanged."""
        ids, values = topk(logits, count)
        return TopTokens(ids, (values - logits.logsumexp(dim=1, keepdim=True)).exp())

    def probability(self, logits: torch.Tensor, token: torch.Tensor) -> torch.Tensor:
        """Returns the softmax probability [rows] of `token` [rows] under `logits` [rows, vocab]."""
        return (logits.gather(1, token[:, None])[:, 0] - logits.logsumexp(dim=1)).exp()

    def softmax(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns the softmax over the full vocabulary, for this rank's ids."""
        return logits.softmax(dim=1)

    def filtered_probs(self, logits: torch.Tensor, params: torch.Tensor, num_unfiltered: int = 0) -> torch.Tensor:
        """See ``topk_topp_sampling.filtered_probs``."""
        return topk_topp_sampling.filtered_probs(logits, params, num_unfiltered)

    def multinomial(self, probs: torch.Tensor, uniform: torch.Tensor) -> Candidate:
        """See ``topk_topp_sampling.multinomial``."""
        return Candidate(*topk_topp_sampling.multinomial(probs, uniform))

    def margin(self, probs: torch.Tensor) -> torch.Tensor:
        """Returns the difference of the two largest probabilities of each row of [rows, vocab], [rows]."""
        first, second = probs.topk(2, dim=1).values.unbind(dim=1)
        return first - second

    def entropy(self, probs: torch.Tensor) -> torch.Tensor:
        """Returns the entropy of each row of [rows, vocab] in nats, [rows]."""
        each: torch.Tensor = torch.special.entr(probs)
        return each.sum(dim=1)

    def margin_from_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns `margin` of the softmax of the logits."""
        return self.margin(self.softmax(logits))

    def entropy_from_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Returns `entropy` of the softmax of the logits."""
        return self.entropy(self.softmax(logits))


DEFAULT_LOGITS_OPS = LogitsOps()


class CompiledLogitsOps(LogitsOps):
    """`LogitsOps` with a compiled argmax and entropy. Sums may be rounded differently.

    Sampling and margins are not compiled: cumulative sums, sorts and `topk` do not become faster.

    Args:
        mode: mode of `torch.compile` that captures no CUDA graphs of its own.
        device: device of the logits.
        dtype: dtype of the logits.
        ids: size of the vocabulary. The constructor compiles for this size and any number of rows.

    Raises:
        ConfigError: `torch.compile` does not work on this machine.
    """

    def __init__(self, mode: str, device: torch.device, dtype: torch.dtype, ids: int) -> None:
        use_private_cache()
        self._greedy: Callable[[torch.Tensor], Candidate] = torch.compile(super().greedy, mode=mode, dynamic=True)
        self._entropy_from_logits = torch.compile(super().entropy_from_logits, mode=mode, dynamic=True)
        try:
            with torch.inference_mode():
                for rows in (1, 2):  # torch.compile specializes for one row
                    logits = torch.zeros(rows, ids, dtype=dtype, device=device)
                    self.greedy(logits)
                    self.entropy_from_logits(logits)
        except Exception as error:  # many types: the compiler may be missing or fail
            message = str(error).split("\n\n")[0]  # hints for debugging torch.compile follow
            reason = " ".join(message.split())[:300] or type(error).__name__
            raise ConfigError(
                f"--torch-compile-mode {mode}: torch.compile does not work here ({reason}); leave it out"
            ) from error

    def greedy(self, logits: torch.Tensor) -> Candidate:
        return self._greedy(logits)

    def entropy_from_logits(self, logits: torch.Tensor) -> torch.Tensor:
        return self._entropy_from_logits(logits)
