"""Computes candidates from hidden states: logits, then argmax or sampling with temperature, top-k, top-p and min-p.

`CandidateSampler` computes the logits of the sampled rows, masks forbidden ids, applies logits processors and the
changes of the algorithms, and samples. It computes statistics only for the rows of algorithms that require them. The
order of the operations is that of docs/research/decoding-rules.md#logits, the result that of
docs/research/decoding-rules.md#candidates-and-confidence.

Top-k and top-p are in ``kernels.topk_topp_sampling``, in torch and as a kernel. `CandidateSampler` chooses between
them. `logprobs.py` and `constrained_decoding.py` read logits of `FullLogits`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from runtime.algorithms.base import (
    SUPPRESS_EOS,
    TOKEN_MERGE_TOP_K,
    EditTokens,
    LogitStat,
    SampledRows,
    UnmaskingAlgorithm,
)
from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS, LogitsOps, TopTokens
from runtime.kernels.fused_softmax_stats import StatsRequest
from runtime.kernels.ops import KernelSet
from runtime.layers.lm_head import LMHead, SoftcapLMHead
from runtime.scheduling.step_plan import NUM_STEPS
from runtime.worker.input_batch import AlgorithmDescriptor, SampleDescriptor
from runtime.worker.logits_processors import apply_logits_processors

RowIndex = tuple[torch.Tensor, torch.Tensor]  # int64 [rows] each: block of a row, and its offset in the block
Tensors = Mapping[str, torch.Tensor]  # the arrays of ``worker.input_batch`` on the device

# Rows of logits per chunk. It bounds the memory: 1000 rows of a vocabulary of 157k in float32 take 0.6 GB.
LOGITS_CHUNK_ROWS = 2048
# Rows sampled per chunk: top-k and top-p sort the vocabulary and sum it in float64, which takes eight times the logits.
SAMPLING_CHUNK_ROWS = 256
GATHERED_ROWS = 256  # rows gathered per chunk: a vocabulary of 157k in float32 takes 0.16 GB, briefly three times

# The field of BlockBatch for each statistic, and its value at positions that were not sampled.
STATS = {
    LogitStat.TOKEN_PROB: ("token_prob", 1.0),
    LogitStat.MARGIN: ("margin", -math.inf),
    LogitStat.ENTROPY: ("entropy", math.inf),
}
SelfConditioningFn = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]  # see ``SelfConditioned``
RENOISE_REQUIRED = LogitStat.PROCESS_LOGITS | LogitStat.ENTROPY
RENOISE_SUPPORTED = RENOISE_REQUIRED | LogitStat.ARGMAX | LogitStat.SELF_CONDITIONING
_SUPPRESS_BY_LOGITS = SUPPRESS_EOS.choices.index("logits")


@dataclass(frozen=True)
class RowSpan:
    """Consecutive rows of a group: as a slice of all sampled rows, and as a slice of the current chunk of them."""

    rows: slice
    part: slice


@dataclass(frozen=True)
class AlgorithmGroup:
    """The blocks of a step that use one unmasking algorithm.

    Attributes:
        first: first sampled row of the group; its rows are ``[first, first + descriptor.rows)``.
        members: int64 [m], indices of the group's blocks in `DenoiseBlocks`. None: all blocks.
        block_in_group: int64 [sampled rows], index of each row's block within its group.
        params: float64 [m, columns], parameters of the algorithm for each block.
        history: [m, B, records, fields], values that the algorithm recorded in earlier steps.
        top_k: [m, B, k], output buffer for the most probable tokens.
    """

    algorithm: UnmaskingAlgorithm
    descriptor: AlgorithmDescriptor
    first: int
    members: torch.Tensor | None
    block_in_group: torch.Tensor
    params: torch.Tensor
    history: torch.Tensor | None
    top_k: TopTokens | None
    logits_ops: LogitsOps

    @property
    def required_stats(self) -> LogitStat:
        return LogitStat(self.descriptor.required_stats)

    @property
    def random_rows(self) -> slice:
        """The group's rows with a temperature."""
        end = self.first + self.descriptor.rows
        return slice(end - self.descriptor.num_random, end)

    def rows_in(self, part: slice, max_rows: int | None = None) -> RowSpan | None:
        """Returns the group's rows within the chunk `part` of the sampled rows; None if there are none.

        Args:
            max_rows: consider only this many rows at the end of the group.
        """
        end = self.first + self.descriptor.rows
        begin = self.first if max_rows is None else end - max_rows
        begin, end = max(begin, part.start), min(end, part.stop)
        return RowSpan(slice(begin, end), slice(begin - part.start, end - part.start)) if begin < end else None

    def write_token_prob(self, logits: torch.Tensor, index: RowIndex, tokens: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the probability of the current token at the positions `index` into `out` [n, B]."""
        last = self.logits_ops.vocab_size(logits) - 1
        out[index] = self.logits_ops.probability(logits, tokens[index].clamp(max=last))

    def write_top_k(self, logits: torch.Tensor, own: RowIndex) -> None:
        """Writes the most probable tokens at the positions `own` into `top_k`, up to the number that each request
        mixes; the probability of the others is 0."""
        assert self.top_k is not None
        block, at = own
        found = self.logits_ops.top_tokens(logits, self.top_k.ids.shape[2])
        count = self.params[block, self.algorithm.columns[TOKEN_MERGE_TOP_K.name]]
        beyond = torch.arange(self.top_k.ids.shape[2], device=block.device) >= count[:, None]
        self.top_k.ids[block, at], self.top_k.probs[block, at] = found.ids, found.probs.masked_fill(beyond, 0)


@dataclass(frozen=True)
class SamplingStep:
    """The blocks of a step whose candidates are sampled.

    Attributes:
        inputs: see ``worker.input_batch``.
        masked: [n, B], masked positions.
        dtype: float dtype of the probabilities.
        uniform: random numbers of the rows with a temperature, float64 [num_random]. None: there are none.
        self_conditioning: [n, B, hidden], written for algorithms that require ``LogitStat.SELF_CONDITIONING``.
        graph_safe: launch the same kernels for any content, without host synchronization.
    """

    descriptor: SampleDescriptor
    inputs: Tensors
    groups: list[AlgorithmGroup]
    masked: torch.Tensor
    dtype: torch.dtype
    uniform: torch.Tensor | None
    self_conditioning: torch.Tensor | None
    graph_safe: bool

    def index(self, rows: slice) -> RowIndex:
        """Returns the positions of sampled rows."""
        return self.inputs["block"][rows], self.inputs["at"][rows]

    def view(self, group: AlgorithmGroup, rows: slice) -> SampledRows:
        """Returns rows of the group as input of `process_logits`."""
        tokens, masked, num_steps = self.inputs["block_tokens"], self.masked, self.inputs["numbers"][:, NUM_STEPS]
        if group.members is not None:
            tokens, masked, num_steps = (each[group.members] for each in (tokens, masked, num_steps))
        block, columns = group.block_in_group[rows], group.algorithm.columns
        return SampledRows(
            tokens, masked, block, self.inputs["at"][rows], num_steps[block], group.params[block], columns,
            group.history, self.graph_safe, group.logits_ops,
        )  # fmt: skip


@dataclass
class Candidates:
    """Sampled tokens and what algorithms require of them, [n, B] each.

    A position that was not sampled keeps its token.

    Attributes:
        tokens: int64.
        confidence: probabilities of the tokens; -inf where none was sampled.
        stats: the required statistics; the values of STATS where none was sampled.
        argmax: int64, the most probable tokens; None if no algorithm requires them.
    """

    tokens: torch.Tensor
    confidence: torch.Tensor
    stats: dict[LogitStat, torch.Tensor]
    argmax: torch.Tensor | None

    @classmethod
    def unsampled(cls, step: SamplingStep) -> Candidates:
        """Returns those of a step before its sampling."""
        tokens = step.inputs["block_tokens"]
        confidence = torch.full(tokens.shape, -math.inf, dtype=step.dtype, device=tokens.device)
        required = LogitStat(functools.reduce(operator.or_, (group.required_stats for group in step.groups)))
        stats = {stat: torch.full_like(confidence, none) for stat, (_, none) in STATS.items() if stat & required}
        return cls(tokens.clone(), confidence, stats, tokens.clone() if LogitStat.ARGMAX & required else None)

    def write_argmax(self, index: RowIndex, token: torch.Tensor, confidence: torch.Tensor) -> None:
        """Writes the most probable tokens of the positions `index` as candidates."""
        self.tokens[index], self.confidence[index] = token, confidence
        if self.argmax is not None:
            self.argmax[index] = token


def make_groups(
    descriptor: SampleDescriptor, inputs: Tensors, dtype: torch.dtype, logits_ops: LogitsOps
) -> list[AlgorithmGroup]:
    """Makes the groups of a step, in the order of the sampled rows.

    Args:
        dtype: float dtype of the probabilities.
    """
    groups = []
    first = 0
    for i, group in enumerate(descriptor.groups):
        params, top = inputs[f"params{i}"], None
        if group.top_k:
            ids = params.new_zeros((group.blocks, descriptor.size, group.top_k), dtype=torch.int64)
            top = TopTokens(ids, torch.zeros_like(ids, dtype=dtype))
        single = len(descriptor.groups) == 1
        members, own = (None, inputs["block"]) if single else (inputs[f"members{i}"], inputs["block_in_group"])
        # a copy, because the algorithm updates it and the input buffer must not change
        history = inputs[f"history{i}"].clone() if group.history_len else None
        groups.append(AlgorithmGroup(group.algorithm, group, first, members, own, params, history, top, logits_ops))
        first += group.rows
    return groups


def needs_only_argmax(descriptor: SampleDescriptor) -> bool:
    """Whether the step needs only the argmax of each row and its probability."""
    more = any(group.required_stats & ~LogitStat.ARGMAX for group in descriptor.groups)
    return not (descriptor.num_random or descriptor.uniform_noise or descriptor.has_logits_processors or more)


def only_renoise(step: SamplingStep) -> bool:
    """Whether all blocks use one uniform-noise algorithm that requires only what the fused kernel computes."""
    (group, *others) = step.groups
    required = group.required_stats
    fits = (
        group.algorithm.uniform_noise
        and required & RENOISE_REQUIRED == RENOISE_REQUIRED
        and not required & ~RENOISE_SUPPORTED
    )
    return fits and not others and not group.descriptor.num_filtered


@dataclass(frozen=True)
class SamplerConfig:
    """Properties of the model and of the server on which sampling depends.

    Attributes:
        block_size: positions per block.
        mask_id, max_token_id, eos_ids: see EngineInfo.
        edit_tokens: the model's edit tokens, delete and split. They may be predicted even if above `max_token_id`.
        max_num_reqs: number of slots, one per running request.
        max_request_len, max_request_pages: maximum number of positions and pages of a request.
        vocab_size: number of ids, from which noise is drawn.
        batch_invariant: the bits of a request do not depend on the other requests of the batch.
        logits_ops: operations on logits, which may be sharded over the vocabulary.
    """

    block_size: int
    mask_id: int | None
    max_token_id: int
    eos_ids: tuple[int, ...]
    edit_tokens: EditTokens | None = None
    max_num_reqs: int = 0
    max_request_len: int = 0
    max_request_pages: int = 0
    vocab_size: int = 0
    batch_invariant: bool = False
    logits_ops: LogitsOps = DEFAULT_LOGITS_OPS


class CandidateSampler:
    """Computes candidates, confidence and statistics of the sampled positions.

    Args:
        lm_head: [rows, hidden] -> [rows, vocab]. If it has a fused argmax kernel, the sampler uses it
            where the argmax suffices.
        self_conditioning_fn: see ``SelfConditioned``; None for models without self-conditioning.
    """

    def __init__(
        self, lm_head: Callable[[torch.Tensor], torch.Tensor], config: SamplerConfig,
        device: torch.device | str = "cpu", self_conditioning_fn: SelfConditioningFn | None = None,
    ) -> None:  # fmt: skip
        self.lm_head = lm_head
        self.logits_ops = logits_ops = config.logits_ops
        # prob_stats: from the filtered probabilities that candidates are drawn from; logit_stats: from logits
        self.prob_stats = {LogitStat.MARGIN: logits_ops.margin, LogitStat.ENTROPY: logits_ops.entropy}
        self.logit_stats = {
            LogitStat.MARGIN: logits_ops.margin_from_logits,
            LogitStat.ENTROPY: logits_ops.entropy_from_logits,
        }
        self.fused_lm_head = lm_head if isinstance(lm_head, LMHead) and lm_head.fused_argmax else None
        if self.fused_lm_head is not None:
            self.fused_lm_head.prepare()
        self.softcap_lm_head = None  # only without vocabulary sharding: its kernel needs the full vocabulary
        if isinstance(lm_head, SoftcapLMHead) and lm_head.kernels.softmax_stats and not logits_ops.is_sharded:
            self.softcap_lm_head = lm_head
        kernels: KernelSet | None = getattr(lm_head, "kernels", None)
        self.sample_kernel = None if kernels is None or logits_ops.is_sharded else kernels.topk_topp_sample
        self.self_conditioning_fn = self_conditioning_fn
        self.mask_id = config.mask_id
        self.max_token_id = config.max_token_id
        self.eos_ids = torch.tensor(config.eos_ids, dtype=torch.int64, device=device)
        self.eos_columns = logits_ops.local_columns(self.eos_ids)
        ids = () if config.edit_tokens is None else (config.edit_tokens.delete, config.edit_tokens.split)
        self.edit_ids = list(ids)
        self.allowed_special = [token for token in ids if token > config.max_token_id]

    def sample(self, step: SamplingStep, hidden: torch.Tensor) -> Candidates:
        """Returns the candidates of a step.

        Args:
            hidden: [rows, hidden], hidden states of the sampled positions in their order.
        """
        found, rows = Candidates.unsampled(step), step.descriptor.rows
        if not rows:
            return found
        if self.fused_lm_head is not None and needs_only_argmax(step.descriptor):
            argmax = self.greedy(self.fused_lm_head, hidden, step.inputs["num_valid"])
            found.write_argmax((step.inputs["block"], step.inputs["at"]), *argmax)
        elif self.softcap_lm_head is not None and not self.allowed_special and only_renoise(step):
            self._sample_fused_renoise(self.softcap_lm_head, step, hidden, found)
        else:
            for start in range(0, rows, LOGITS_CHUNK_ROWS):
                self._sample_logits(step, slice(start, min(start + LOGITS_CHUNK_ROWS, rows)), hidden, found)
        return found

    def greedy(self, head: LMHead, hidden: torch.Tensor, num_valid: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the argmax token, int64 [rows], and its probability [rows], computed by the fused kernel.

        Args:
            head: `fused_lm_head`.
            hidden: [rows, hidden].
            num_valid: int32 [1], number of rows before the padding.
        """
        mask, last = self.mask_id, self.max_token_id
        return head.argmax(
            hidden, mask_id=mask, max_token_id=last, allowed_ids=self.allowed_special, num_valid=num_valid
        )

    def full_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns logits [rows, vocab], gathered from all ranks: forbidden ids are -inf, nothing else is changed."""
        logits = self.logits_ops.all_gather(self.lm_head(hidden))
        self._mask_forbidden(logits, DEFAULT_LOGITS_OPS)
        return logits

    def _mask_forbidden(self, logits: torch.Tensor, logits_ops: LogitsOps) -> None:
        logits_ops.mask_forbidden(
            logits, mask_id=self.mask_id, max_token_id=self.max_token_id, allowed_special_ids=self.allowed_special
        )

    def _sample_fused_renoise(
        self, head: SoftcapLMHead, step: SamplingStep, hidden: torch.Tensor, found: Candidates
    ) -> None:
        """Writes the results of the fused kernel, chunk by chunk of the sampled rows."""
        assert head.kernels.softmax_stats is not None
        (group,) = step.groups
        uniform = None
        if step.uniform is not None:
            uniform = torch.full((len(hidden),), -1.0, dtype=torch.float64, device=hidden.device)
            uniform[group.random_rows] = step.uniform
        for start in range(0, len(hidden), LOGITS_CHUNK_ROWS):
            part = slice(start, start + LOGITS_CHUNK_ROWS)
            request = StatsRequest(
                temperature=group.algorithm.temperature(step.view(group, part)),
                uniform=None if uniform is None else uniform[part],
                cap=head.cap, mask_id=self.mask_id, max_token_id=self.max_token_id,
                probs=None if step.self_conditioning is None else hidden.dtype,
            )  # fmt: skip
            index, stats = step.index(part), head.kernels.softmax_stats(head.uncapped(hidden[part]), request)
            found.tokens[index], found.confidence[index] = stats.token, stats.conf
            found.stats[LogitStat.ENTROPY][index] = stats.entropy
            if found.argmax is not None:
                found.argmax[index] = stats.argmax
            if step.self_conditioning is not None and stats.probs is not None:
                assert self.self_conditioning_fn is not None
                step.self_conditioning[index] = self.self_conditioning_fn(stats.probs, stats.divisor)

    def _sample_logits(self, step: SamplingStep, part: slice, hidden: torch.Tensor, found: Candidates) -> None:
        """Samples a chunk of the sampled rows, with all groups' changes of the logits."""
        index = step.index(part)
        logits = self.lm_head(hidden[part])
        self._mask_forbidden(logits, self.logits_ops)
        if step.descriptor.has_logits_processors:
            apply_logits_processors(logits, step.inputs, *index, self.logits_ops)
        for group in step.groups:
            span = group.rows_in(part)
            if span is not None:
                self._process_group(step, group, span.rows, logits[span.part], found)
        best = self.logits_ops.greedy(logits)
        found.write_argmax(index, best.token, best.confidence)
        self._sample_top_k_top_p(step, part, logits, found)

    def _process_group(
        self, step: SamplingStep, group: AlgorithmGroup, rows: slice, logits: torch.Tensor, found: Candidates
    ) -> None:
        """Changes the logits of a group's rows in place, and writes the statistics of their distribution."""
        required, index, own = group.required_stats, step.index(rows), group.block_in_group[rows]
        if required & LogitStat.SUPPRESS_EOS:
            self._suppress_eos(group, logits, own)
        if required & LogitStat.TOKEN_PROB:
            group.write_token_prob(logits, index, step.inputs["block_tokens"], found.stats[LogitStat.TOKEN_PROB])
        if required & LogitStat.PROCESS_LOGITS:
            group.algorithm.process_logits(logits, step.view(group, rows))
        conditioning = step.self_conditioning if required & LogitStat.SELF_CONDITIONING else None
        stats = [stat for stat in self.logit_stats if stat & required]
        for start in range(0, len(logits) if stats or conditioning is not None else 0, SAMPLING_CHUNK_ROWS):
            chunk = slice(start, start + SAMPLING_CHUNK_ROWS)
            at = index[0][chunk], index[1][chunk]
            for stat in stats:
                found.stats[stat][at] = self.logit_stats[stat](logits[chunk])
            if conditioning is not None:
                assert self.self_conditioning_fn is not None
                conditioning[at] = self.self_conditioning_fn(self.logits_ops.softmax(logits[chunk]), None)
        if group.top_k is not None:
            group.write_top_k(logits, (own, index[1]))

    def _suppress_eos(self, group: AlgorithmGroup, logits: torch.Tensor, own: torch.Tensor) -> None:
        """Sets the logits of end-of-sequence ids to -inf in place, for requests that suppress them by logits.

        Args:
            own: int64 [rows], block of each row within the group.
        """
        suppressed = group.params[own, group.algorithm.columns[SUPPRESS_EOS.name]] == _SUPPRESS_BY_LOGITS
        logits[:, self.eos_columns] = logits[:, self.eos_columns].masked_fill(suppressed[:, None], -math.inf)

    def _sample_top_k_top_p(self, step: SamplingStep, part: slice, logits: torch.Tensor, found: Candidates) -> None:
        """Replaces the argmax by a random sample for the rows of a chunk whose requests have a temperature.

        It uses the kernel of ``kernels.topk_topp_sampling``, if there is one and no statistic needs the probabilities.
        """
        if step.uniform is None:
            return
        inputs = step.inputs
        num_random_before = 0  # random rows of the previous groups
        for group in step.groups:
            descriptor = group.descriptor
            span = group.rows_in(part, descriptor.num_random) if descriptor.num_random else None
            first = (
                group.first + descriptor.rows - descriptor.num_random - num_random_before
            )  # row n of the chunk has its params at n - first
            num_random_before += descriptor.num_random
            if span is None:
                continue
            first_filtered = group.first + descriptor.rows - descriptor.num_filtered
            begin, end = span.rows.start, span.rows.stop
            if self.sample_kernel is not None and not any(stat & group.required_stats for stat in self.prob_stats):
                index, chunk = step.index(span.rows), slice(begin - first, end - first)
                found.tokens[index], found.confidence[index] = self.sample_kernel(
                    logits[span.part], inputs["sampling_params"][chunk], step.uniform[chunk],
                    num_unfiltered=min(max(first_filtered - begin, 0), end - begin),
                )  # fmt: skip
                continue
            for start in range(begin, end, SAMPLING_CHUNK_ROWS):
                chunk = slice(start, min(start + SAMPLING_CHUNK_ROWS, end))
                params = inputs["sampling_params"][chunk.start - first : chunk.stop - first]
                probs = self.logits_ops.filtered_probs(
                    logits[chunk.start - part.start : chunk.stop - part.start],
                    params,
                    num_unfiltered=min(max(first_filtered - chunk.start, 0), chunk.stop - chunk.start),
                )
                picked = self.logits_ops.multinomial(probs, step.uniform[chunk.start - first : chunk.stop - first])
                index = step.index(chunk)
                found.tokens[index], found.confidence[index] = picked.token, picked.confidence
                for stat, compute in self.prob_stats.items():
                    if stat in found.stats:
                        found.stats[stat][index] = compute(probs)


@dataclass(frozen=True)
class FullLogits:
    """Computes logits from the hidden states of a step.

    Args:
        final_norm: ``Model.final_hidden_states``.
        hidden_states: [rows, hidden] of the step, as ``Model.forward`` returns them.
        notify_ranks: called with the rows before each computation, so that other ranks do the same. None: no others.
        batch_invariant: compute rows of each request separately, as GEMM results may depend on the number of rows.
    """

    candidates: CandidateSampler
    final_norm: Callable[[torch.Tensor], torch.Tensor]
    hidden_states: torch.Tensor
    notify_ranks: Callable[[np.ndarray], None] | None = None
    batch_invariant: bool = False

    @property
    def vocab_parallel(self) -> bool:
        """Whether the vocabulary is sharded over ranks."""
        return self.candidates.logits_ops.is_sharded

    @property
    def max_rows(self) -> int:
        """Maximum number of rows per call."""
        return GATHERED_ROWS if self.vocab_parallel else LOGITS_CHUNK_ROWS

    def rows(self, rows: np.ndarray) -> torch.Tensor:
        """Returns logits [n, vocab] of `rows` [n], at most `max_rows`: forbidden ids are -inf, all else unchanged."""
        if self.notify_ranks is not None:
            self.notify_ranks(rows)
        index = torch.from_numpy(rows).to(self.hidden_states.device, non_blocking=True)  # no wait for earlier launches
        return self.candidates.full_logits(self.final_norm(self.hidden_states[index]))
