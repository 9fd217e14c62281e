"""Samples candidates from hidden states: logits, argmax or sampling with temperature, top-k, top-p and min-p.

`Sampler` computes the logits of the sampled rows, masks forbidden ids, applies logits processors and the changes of the
algorithms, and computes the inputs of the unmasking algorithms. It computes statistics only for the rows of algorithms
that require them. The order of the operations is that of docs/research/decoding-rules.md#logits, the result that of
docs/research/decoding-rules.md#candidates-and-confidence.

Top-k and top-p are in ``kernels.topk_topp_sampling``, in torch and as a kernel. ``Sampler.sample_top_k_top_p`` chooses
between them. `logprobs.py` and `constrained_decoding.py` read logits of `FullLogits`.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runtime.algorithms.base import (
    SUPPRESS_EOS,
    TEMPERATURE,
    TOKEN_MERGE_TOP_K,
    BlockBatch,
    BlockUpdate,
    EditTokens,
    LogitStat,
    SampledRows,
    UnmaskingAlgorithm,
    algorithms_with_edit_tokens,
)
from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS, LogitsOps, TopTokens
from runtime.kernels.fused_softmax_stats import SoftmaxStats, StatsRequest
from runtime.kernels.ops import KernelSet
from runtime.layers.lm_head import LMHead, SoftcapLMHead
from runtime.scheduling.step_plan import FIXED, MASKED, UNMASKED, BlockResults, Bools, DenoiseBlocks, Ints, SoftTokens
from runtime.worker.input_batch import AlgorithmDescriptor, SampleDescriptor
from runtime.worker.logits_processors import apply_logits_processors

RowIndex = tuple[torch.Tensor, torch.Tensor]  # int64 [rows] each: block of a row, and its offset in the block
Tensors = Mapping[str, torch.Tensor]  # the arrays of ``worker.input_batch`` on the device
SamplerOutput = dict[str, torch.Tensor]
HostOutput = Mapping[str, npt.NDArray[np.generic]]  # a SamplerOutput on the host

# Rows of the array `numbers` [len(COUNTERS), n] of an output, by their names in BlockResults.
COUNTERS = ("masks", "num_updated", "edits", "remasks", "first_masked", "first_eos", "forced", "finished")
# Rows of logits per chunk. It bounds the memory: 1000 rows of a vocabulary of 157k in float32 take 0.6 GB.
LOGITS_CHUNK_ROWS = 2048
# Rows sampled per chunk: top-k and top-p sort the vocabulary and sum it in float64, which takes eight times the logits.
SAMPLING_CHUNK_ROWS = 256

# The field of BlockBatch for each statistic, and its value at positions that were not sampled.
STATS = {
    LogitStat.TOKEN_PROB: ("token_prob", 1.0),
    LogitStat.MARGIN: ("margin", -math.inf),
    LogitStat.ENTROPY: ("entropy", math.inf),
}

_SUPPRESS_BY_CONFIDENCE, _SUPPRESS_BY_LOGITS = (SUPPRESS_EOS.choices.index(word) for word in ("confidence", "logits"))

Stats = dict[LogitStat, torch.Tensor]  # [n, B] for each required statistic
SelfConditioningFn = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]  # see ``SelfConditioned``
RENOISE_REQUIRED = LogitStat.PROCESS_LOGITS | LogitStat.ENTROPY
RENOISE_SUPPORTED = RENOISE_REQUIRED | LogitStat.ARGMAX | LogitStat.SELF_CONDITIONING
GATHERED_ROWS = 256  # rows gathered per chunk: a vocabulary of 157k in float32 takes 0.16 GB, briefly three times


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

    def view(
        self, own: RowIndex, tokens: torch.Tensor, masked: torch.Tensor, num_steps: torch.Tensor, *, graph_safe: bool
    ) -> SampledRows:
        """Returns rows of the group as input of `process_logits`; `own` indexes blocks within the group."""
        if self.members is not None:
            tokens, masked, num_steps = tokens[self.members], masked[self.members], num_steps[self.members]
        block, at = own
        params, columns = self.params[block], self.algorithm.columns
        return SampledRows(
            tokens, masked, block, at, num_steps[block], params, columns, self.history, graph_safe, self.logits_ops
        )  # fmt: skip

    def write_top_k(self, logits: torch.Tensor, own: RowIndex) -> None:
        """Writes the most probable tokens at the positions `own` into `top_k`, up to the number that each request
        mixes; the probability of the others is 0."""
        assert self.top_k is not None
        block, at = own
        found = self.logits_ops.top_tokens(logits, self.top_k.ids.shape[2])
        count = self.params[block, self.algorithm.columns[TOKEN_MERGE_TOP_K.name]]
        beyond = torch.arange(self.top_k.ids.shape[2], device=block.device) >= count[:, None]
        self.top_k.ids[block, at], self.top_k.probs[block, at] = found.ids, found.probs.masked_fill(beyond, 0)


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


@dataclass(frozen=True)
class SamplerConfig:
    """Properties of the model and of the server on which sampling depends.

    Attributes:
        block_size: positions per block.
        mask_id, max_token_id, eos_ids: see EngineInfo.
        edit_tokens: the model's edit tokens, delete and split. They may be predicted even if above `max_token_id`.
        max_num_reqs: number of self-conditioning slots, one per running request.
        batch_invariant: the bits of a request do not depend on the other requests of the batch.
        logits_ops: operations on logits, which may be sharded over the vocabulary.
    """

    block_size: int
    mask_id: int | None
    max_token_id: int
    eos_ids: tuple[int, ...]
    edit_tokens: EditTokens | None = None
    max_num_reqs: int = 0
    batch_invariant: bool = False
    logits_ops: LogitsOps = DEFAULT_LOGITS_OPS


class Sampler:
    """Computes candidates, confidence and statistics of the sampled positions.

    Args:
        lm_head: [rows, hidden] -> [rows, vocab]. If it has a fused argmax kernel, the sampler uses it
            where the argmax suffices.
        device: that of the hidden states.
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
        self.get_algorithm = algorithms_with_edit_tokens(config.edit_tokens)
        ids = () if config.edit_tokens is None else (config.edit_tokens.delete, config.edit_tokens.split)
        self.allowed_special = [token for token in ids if token > config.max_token_id]

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

    def is_batch_invariant(self, blocks: DenoiseBlocks) -> bool:
        """Whether results of a block do not depend on the other blocks of the batch, given batch-invariant kernels.

        This holds for the fused argmax: its GEMM and its sums are our own kernels, and algorithms only compare.
        """
        if self.fused_lm_head is None or blocks.noise_uniforms is not None or blocks.logits_processors is not None:
            return False
        if any(group.required_stats & ~LogitStat.ARGMAX for group in blocks.groups):
            return False
        if blocks.sampling is None:
            return True
        has_temperature = blocks.sampling.params[:, TEMPERATURE] > 0
        return not (has_temperature[:, None] & blocks.sampled & (blocks.state == MASKED)).any()

    def block_batches(  # noqa: C901 - all steps of sampling, whose order matters, in one place
        self,
        descriptor: SampleDescriptor,
        inputs: Tensors,
        hidden: torch.Tensor,
        self_conditioning: torch.Tensor | None = None,
        *,
        graph_safe: bool = False,
    ) -> Iterator[tuple[UnmaskingAlgorithm, torch.Tensor | None, BlockBatch]]:
        """Yields each unmasking algorithm of the step, its blocks (None: all blocks), and its inputs.

        Args:
            inputs: see ``worker.input_batch``.
            hidden: [rows, hidden], hidden states of the sampled positions in their order.
            self_conditioning: [n, B, hidden], written for algorithms that require ``LogitStat.SELF_CONDITIONING``.
            graph_safe: launch the same kernels for any content, without host synchronization.
        """
        tokens, state = inputs["block_tokens"], inputs["block_state"]
        masked, unmasked = state == MASKED, state == UNMASKED
        num_steps = inputs["num_advance_steps"]
        dtype = hidden.dtype if hidden.dtype == torch.float64 else torch.float32
        groups = make_groups(descriptor, inputs, dtype, self.logits_ops)
        candidate = tokens.clone()
        confidence = torch.full(candidate.shape, float("-inf"), dtype=dtype, device=hidden.device)
        required = LogitStat(functools.reduce(operator.or_, (group.required_stats for group in groups)))
        stats = {stat: torch.full_like(confidence, none) for stat, (_, none) in STATS.items() if stat & required}
        argmax = tokens.clone() if LogitStat.ARGMAX & required else None
        vocab = 0

        block_of, at = inputs["block"], inputs["at"]
        fused = self.fused_lm_head if needs_only_argmax(descriptor) else None
        if fused is not None and descriptor.rows:
            token, confidence[block_of, at] = self.greedy(fused, hidden, inputs["num_valid"])
            candidate[block_of, at] = token
            if argmax is not None:
                argmax[block_of, at] = token
        softcapped = self.softcap_lm_head if not self.allowed_special and only_renoise(descriptor, groups) else None
        if softcapped is not None:
            vocab = softcapped.weight.shape[0]
            for index, found in self._fused_renoise_stats(
                softcapped, groups[0], hidden, inputs, (tokens, masked, num_steps),
                returns_probs=self_conditioning is not None, graph_safe=graph_safe,
            ):  # fmt: skip
                candidate[index] = found.token
                confidence[index] = found.conf
                stats[LogitStat.ENTROPY][index] = found.entropy
                if argmax is not None:
                    argmax[index] = found.argmax
                if self_conditioning is not None and found.probs is not None:
                    assert self.self_conditioning_fn is not None
                    self_conditioning[index] = self.self_conditioning_fn(found.probs, found.divisor)
        for start in range(0, descriptor.rows if fused is None and softcapped is None else 0, LOGITS_CHUNK_ROWS):
            part = slice(start, min(start + LOGITS_CHUNK_ROWS, descriptor.rows))
            index = (block_of[part], at[part])
            logits = self.lm_head(hidden[part])
            vocab = self.logits_ops.vocab_size(logits)
            self.logits_ops.mask_forbidden(
                logits, mask_id=self.mask_id, max_token_id=self.max_token_id, allowed_special_ids=self.allowed_special
            )
            if descriptor.has_logits_processors:
                apply_logits_processors(logits, inputs, *index, self.logits_ops)
            for group in groups:
                span = group.rows_in(part)
                if span is None:
                    continue
                group_logits, group_index = logits[span.part], (block_of[span.rows], at[span.rows])
                index_in_group = (group.block_in_group[span.rows], group_index[1])
                if group.required_stats & LogitStat.SUPPRESS_EOS:
                    self._suppress_eos_logits(group, group_logits, index_in_group)
                if group.required_stats & LogitStat.TOKEN_PROB:
                    group.write_token_prob(group_logits, group_index, tokens, stats[LogitStat.TOKEN_PROB])
                if group.required_stats & LogitStat.PROCESS_LOGITS:
                    group.algorithm.process_logits(
                        group_logits, group.view(index_in_group, tokens, masked, num_steps, graph_safe=graph_safe)
                    )
                self._distribution_stats(group, group_logits, group_index, stats)
                if group.required_stats & LogitStat.SELF_CONDITIONING and self_conditioning is not None:
                    assert self.self_conditioning_fn is not None
                    self._write_self_conditioning(
                        group_logits, group_index, self.self_conditioning_fn, self_conditioning
                    )
                if group.top_k is not None:
                    group.write_top_k(group_logits, index_in_group)
            best = self.logits_ops.greedy(logits)
            candidate[index], confidence[index] = best.token, best.confidence
            if argmax is not None:
                argmax[index] = best.token
            self.sample_top_k_top_p(groups, part, logits, inputs, candidate, confidence, stats)

        arrays = {
            "tokens": tokens,
            "masked": masked,
            "unmasked": unmasked,
            "candidates": candidate,
            "confidence": confidence,
            "remasked": inputs["remasked"] if descriptor.remasked else torch.zeros_like(masked),
            "must_advance": inputs["must_advance"],
            "num_steps": num_steps,
            "initial_masks": inputs["initial_masks"],
            "step_budget": inputs["step_budget"],
            "post_edit_steps": inputs["post_edit_steps"],
        }
        noise = (inputs["noise_uniforms"] * vocab).long() if descriptor.uniform_noise else None
        for group in groups:
            group_arrays = arrays | {
                STATS[stat][0]: tensor for stat, tensor in stats.items() if stat & group.required_stats
            }
            if argmax is not None and group.required_stats & LogitStat.ARGMAX:
                group_arrays["argmax"] = argmax
            if noise is not None and group.algorithm.uniform_noise:
                group_arrays["noise_tokens"] = noise
            if group.members is not None:
                group_arrays = {name: tensor[group.members] for name, tensor in group_arrays.items()}
            if group.required_stats & LogitStat.SUPPRESS_EOS:
                group_arrays |= self._suppress_eos_confidence(group, group_arrays)
            blocks = BlockBatch(
                params=group.params,
                columns=group.algorithm.columns,
                history=group.history,
                top_k=group.top_k,
                **group_arrays,
            )
            yield group.algorithm, group.members, blocks

    def _fused_renoise_stats(
        self, head: SoftcapLMHead, group: AlgorithmGroup, hidden: torch.Tensor, inputs: Tensors,
        block_state: tuple[torch.Tensor, torch.Tensor, torch.Tensor], *, returns_probs: bool, graph_safe: bool,
    ) -> Iterator[tuple[RowIndex, SoftmaxStats]]:  # fmt: skip
        """Yields the positions and the results of the fused kernel for each chunk of sampled rows.

        Args:
            hidden: [rows, hidden] of all sampled rows.
            block_state: tokens [n, B], masked positions [n, B] and number of steps [n] of all blocks.
            returns_probs: return the probabilities too, for self-conditioning.
        """
        assert head.kernels.softmax_stats is not None
        block, at = inputs["block"], inputs["at"]
        uniform = None
        if group.descriptor.num_random:  # the last rows
            uniform = torch.full((len(hidden),), -1.0, dtype=torch.float64, device=hidden.device)
            uniform[len(hidden) - group.descriptor.num_random :] = inputs["uniform"]
        for start in range(0, len(hidden), LOGITS_CHUNK_ROWS):
            part = slice(start, start + LOGITS_CHUNK_ROWS)
            rows: SampledRows = group.view((group.block_in_group[part], at[part]), *block_state, graph_safe=graph_safe)
            request = StatsRequest(
                temperature=group.algorithm.temperature(rows), uniform=None if uniform is None else uniform[part],
                cap=head.cap, mask_id=self.mask_id, max_token_id=self.max_token_id,
                probs=hidden.dtype if returns_probs else None,
            )  # fmt: skip
            yield (block[part], at[part]), head.kernels.softmax_stats(head.uncapped(hidden[part]), request)

    def full_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns logits [rows, vocab], gathered from all ranks: forbidden ids are -inf, nothing else is changed."""
        logits = self.logits_ops.all_gather(self.lm_head(hidden))
        DEFAULT_LOGITS_OPS.mask_forbidden(
            logits, mask_id=self.mask_id, max_token_id=self.max_token_id, allowed_special_ids=self.allowed_special
        )
        return logits

    def _suppress_eos_logits(self, group: AlgorithmGroup, logits: torch.Tensor, index_in_group: RowIndex) -> None:
        """Sets the logits of end-of-sequence ids to -inf in place, for requests that suppress them by logits."""
        suppressed = group.params[index_in_group[0], group.algorithm.columns[SUPPRESS_EOS.name]] == _SUPPRESS_BY_LOGITS
        logits[:, self.eos_columns] = logits[:, self.eos_columns].masked_fill(suppressed[:, None], -math.inf)

    def _suppress_eos_confidence(
        self, group: AlgorithmGroup, arrays: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Returns statistics in which suppressed end-of-sequence candidates rank last (``algorithms.base``)."""
        is_eos = (arrays["candidates"][:, :, None] == self.eos_ids).any(2) & (arrays["confidence"] > -math.inf)
        suppressed = (
            is_eos & (group.params[:, group.algorithm.columns[SUPPRESS_EOS.name]] == _SUPPRESS_BY_CONFIDENCE)[:, None]
        )
        lowest = torch.finfo(arrays["confidence"].dtype).min
        ends = {"confidence": lowest, "margin": lowest, "entropy": -lowest}
        return {name: arrays[name].masked_fill(suppressed, end) for name, end in ends.items() if name in arrays}

    def sample_top_k_top_p(
        self, groups: list[AlgorithmGroup], part: slice, logits: torch.Tensor, inputs: Tensors, candidate: torch.Tensor,
        confidence: torch.Tensor, stats: Stats,
    ) -> None:  # fmt: skip
        """Replaces the argmax by a random sample for the rows of a chunk whose requests have a temperature.

        It uses the kernel of ``kernels.topk_topp_sampling``, if there is one and no statistic needs the probabilities.
        """
        num_random_before = 0  # random rows of the previous groups
        for group in groups:
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
                index, chunk = (inputs["block"][span.rows], inputs["at"][span.rows]), slice(begin - first, end - first)
                candidate[index], confidence[index] = self.sample_kernel(
                    logits[span.part], inputs["sampling_params"][chunk], inputs["uniform"][chunk],
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
                picked = self.logits_ops.multinomial(probs, inputs["uniform"][chunk.start - first : chunk.stop - first])
                index = inputs["block"][chunk], inputs["at"][chunk]
                candidate[index], confidence[index] = picked.token, picked.confidence
                for stat, compute in self.prob_stats.items():
                    if stat in stats:
                        stats[stat][index] = compute(probs)

    def _distribution_stats(self, group: AlgorithmGroup, logits: torch.Tensor, index: RowIndex, stats: Stats) -> None:
        """Writes statistics of the unfiltered distribution at the positions `index` of the group."""
        for stat in (stat for stat in self.logit_stats if stat & group.required_stats):
            for start in range(0, len(logits), SAMPLING_CHUNK_ROWS):
                chunk = slice(start, start + SAMPLING_CHUNK_ROWS)
                stats[stat][index[0][chunk], index[1][chunk]] = self.logit_stats[stat](logits[chunk])

    def _write_self_conditioning(
        self, logits: torch.Tensor, index: RowIndex, fn: SelfConditioningFn, out: torch.Tensor
    ) -> None:
        """Writes the self-conditioning of the unfiltered distribution at the positions `index` into `out`."""
        for start in range(0, len(logits), SAMPLING_CHUNK_ROWS):
            chunk = slice(start, start + SAMPLING_CHUNK_ROWS)
            out[index[0][chunk], index[1][chunk]] = fn(self.logits_ops.softmax(logits[chunk]), None)


def make_sampler_output(
    tokens: torch.Tensor,
    before: torch.Tensor,
    decided: list[tuple[torch.Tensor | None, BlockUpdate]],
    *,
    mask_id: int | None,
    eos_ids: torch.Tensor,
) -> SamplerOutput:
    """Returns the output for all blocks, and the soft tokens of each algorithm that has them.

    Args:
        tokens, before: int64 and int8 [n, B], content and state before the step.
        decided: blocks (None: all) and decision of each algorithm.
        mask_id: written to MASKED positions. None: leave their tokens.
        eos_ids: int64 [ids].
    """
    decision = _join_decisions(decided, len(tokens))
    size, masked = before.shape[1], decision.masked
    open_ = before != FIXED
    filled = open_ & ~masked
    state = open_.to(torch.int8) + filled
    is_eos = (decision.tokens[:, :, None] == eos_ids).any(2) & filled
    updated = filled & ((before == MASKED) | (decision.tokens != tokens))
    at = torch.arange(size, device=before.device)
    numbers = torch.cat(  # few launches, as they determine the time of a small step
        [
            torch.stack([masked, updated, decision.edited, decision.remasked]).sum(2),
            torch.where(torch.stack([masked, is_eos]), at, size).amin(2),
            torch.stack([decision.forced, decision.finished]).long(),
        ]
    )
    after = decision.tokens
    if mask_id is not None:
        after = torch.where(decision.masked, mask_id, after)
    found = {"numbers": numbers, "tokens": after, "state": state, "remasked": decision.remasked}
    for i, (_, each) in enumerate(decided):
        if each.soft_tokens is not None:
            found[f"ids{i}"], found[f"probs{i}"] = each.soft_tokens.ids, each.soft_tokens.probs.double()
    return found


def to_block_results(descriptor: SampleDescriptor, output: HostOutput, members: list[Ints]) -> BlockResults:
    """Returns the results of the step's blocks, which precede the padding.

    Tokens and state are views, valid until the next step.

    Args:
        members: indices of the blocks of each algorithm.
    """
    n = sum(map(len, members))
    numbers = output["numbers"][:, :n].tolist()
    history: dict[int, npt.NDArray[np.float64]] = {}
    soft_tokens: dict[int, SoftTokens] = {}
    for i, (group, mine) in enumerate(zip(descriptor.groups, members, strict=True)):
        if group.history_len:
            histories = output[f"history{i}"]
            records = histories.copy() if group.algorithm.static_history else map(nonzero_records, histories)
            history |= zip(mine.tolist(), records, strict=False)
        if f"ids{i}" in output:
            pairs = zip(output[f"ids{i}"].copy(), output[f"probs{i}"].copy(), strict=True)
            soft_tokens |= zip(mine.tolist(), pairs, strict=False)
    return BlockResults(
        tokens=output["tokens"][:n],  # type: ignore[arg-type]  # HostOutput does not state the dtype of each array
        state=output["state"][:n],  # type: ignore[arg-type]
        remasked=_remasked(output, n),
        history=history,
        soft_tokens=soft_tokens,
        uniform_noise=descriptor.uniform_noise,
        **dict(zip(COUNTERS, numbers, strict=True)),
    )


def next_tokens(blocks: DenoiseBlocks, output: HostOutput) -> Ints:
    """Returns the tokens [n, B] of the blocks after the step."""
    n, size = blocks.tokens.shape  # without padding
    return output["tokens"][:n, :size]  # type: ignore[return-value]


def all_blocks_continue(output: HostOutput, blocks: int, *, uniform_noise: bool) -> bool:
    """Whether all blocks of the step continue (``BlockResults.continuing``)."""
    size, counters = output["tokens"].shape[1], dict(zip(COUNTERS, output["numbers"][:, :blocks], strict=True))
    return not counters["finished"].any() and (
        uniform_noise or bool(counters["masks"].all() and counters["first_eos"].min() >= size)
    )


def _remasked(output: HostOutput, n: int) -> Bools:
    """Returns the remasked positions [n, B]; all False if the output has none."""
    if "remasked" in output:
        return output["remasked"][:n].copy()  # type: ignore[return-value]
    return np.zeros((n, output["tokens"].shape[1]), dtype=np.bool_)


def concat_results(parts: list[BlockResults]) -> BlockResults:
    """Concatenates the results of several `DenoiseBlocks`."""
    if len(parts) == 1:
        return parts[0]
    size = max(part.tokens.shape[1] for part in parts)
    firsts = np.cumsum([0, *(len(part.tokens) for part in parts)]).tolist()

    def padded(name: str) -> npt.NDArray[Any]:
        arrays = [getattr(part, name) for part in parts]
        return np.concatenate([np.pad(array, ((0, 0), (0, size - array.shape[1]))) for array in arrays])

    def listed(name: str) -> list[Any]:
        return [value for part in parts for value in getattr(part, name)]

    def numbered(name: str) -> dict[int, Any]:
        found = zip(firsts, (getattr(part, name) for part in parts), strict=False)
        return {first + number: value for first, part in found for number, value in part.items()}

    return BlockResults(
        tokens=padded("tokens"), state=padded("state"), remasked=padded("remasked"), history=numbered("history"),
        soft_tokens=numbered("soft_tokens"), logprobs={}, uniform_noise=parts[0].uniform_noise,
        **{name: listed(name) for name in COUNTERS},
    )  # fmt: skip


def nonzero_records(history: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Returns `history` [B, records, fields] without records that are 0 at all positions."""
    return history[:, history.any(axis=(0, 2))]


def _join_decisions(decided: list[tuple[torch.Tensor | None, BlockUpdate]], blocks: int) -> BlockUpdate:
    """Joins the decisions of several algorithms, each for its own blocks (None: all), without `soft_tokens`."""
    members, decision = decided[0]
    if members is None:
        return decision

    def join(name: str) -> torch.Tensor:
        first: torch.Tensor = getattr(decision, name)
        joined = first.new_zeros((blocks, *first.shape[1:]))
        for members, part in decided:
            joined[members] = getattr(part, name)
        return joined

    names = [name for name in BlockUpdate.__dataclass_fields__ if name != "soft_tokens"]
    return BlockUpdate(**{name: join(name) for name in names})  # type: ignore[arg-type]


def only_renoise(descriptor: SampleDescriptor, groups: list[AlgorithmGroup]) -> bool:
    """Whether all blocks use one uniform-noise algorithm that requires only what the fused kernel computes."""
    (group, *others) = groups
    required = group.required_stats
    fits = (
        group.algorithm.uniform_noise
        and required & RENOISE_REQUIRED == RENOISE_REQUIRED
        and not required & ~RENOISE_SUPPORTED
    )
    return fits and not others and not group.descriptor.num_filtered and descriptor.rows > 0


@dataclass(frozen=True)
class FullLogits:
    """Computes logits from the hidden states of a step.

    Args:
        final_norm: ``Model.final_hidden_states``.
        hidden_states: [rows, hidden] of the step, as ``Model.forward`` returns them.
        notify_ranks: called with the rows before each computation, so that other ranks do the same. None: no others.
        batch_invariant: compute rows of each request separately, as GEMM results may depend on the number of rows.
    """

    sampler: Sampler
    final_norm: Callable[[torch.Tensor], torch.Tensor]
    hidden_states: torch.Tensor
    notify_ranks: Callable[[np.ndarray], None] | None = None
    batch_invariant: bool = False

    @property
    def vocab_parallel(self) -> bool:
        """Whether the vocabulary is sharded over ranks."""
        return self.sampler.logits_ops.is_sharded

    @property
    def max_rows(self) -> int:
        """Maximum number of rows per call."""
        return GATHERED_ROWS if self.vocab_parallel else LOGITS_CHUNK_ROWS

    def rows(self, rows: np.ndarray) -> torch.Tensor:
        """Returns logits [n, vocab] of `rows` [n], at most `max_rows`: forbidden ids are -inf, all else unchanged."""
        if self.notify_ranks is not None:
            self.notify_ranks(rows)
        index = torch.from_numpy(rows).to(self.hidden_states.device)
        return self.sampler.full_logits(self.final_norm(self.hidden_states[index]))
