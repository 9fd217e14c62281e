"""Computes the inputs of unmasking algorithms from hidden states; no other module computes or reads logits.

It gathers the sampled rows, masks forbidden ids, applies the changes of the algorithms, and takes the argmax or draws.
It computes statistics only for the rows of algorithms that requested them. The order of the operations is that of
docs/decoding-rules.md#logits, the result that of docs/decoding-rules.md#candidates-and-confidence.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator

import torch

from runtime.algorithms import sampling
from runtime.algorithms.base import (
    MIN_P,
    SUPPRESS_EOS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    BlockBatch,
    EditTokens,
    LogitStat,
    UnmaskingAlgorithm,
    algorithms_with_edit_tokens,
)
from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS, LogitsOps
from runtime.engine.logits_processors import apply_logits_processors
from runtime.engine.step_plan import MASKED, UNMASKED, DenoiseBlocks
from runtime.kernels.ops import KernelSet
from runtime.layers.lm_head import LMHead, SoftcapLMHead
from runtime.worker.input_batch import SampleDescriptor, sample_inputs
from runtime.worker.sample.algorithm_groups import AlgorithmGroup, RowIndex, Tensors, make_groups
from runtime.worker.sample.fused_renoise import fused_renoise_stats, only_renoise

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


def needs_only_argmax(shape: SampleDescriptor) -> bool:
    """Whether the step needs only the argmax of each row and its probability."""
    more = any(group.required_stats & ~LogitStat.ARGMAX for group in shape.groups)
    return not (shape.num_sampled or shape.uniform_noise or shape.has_logits_processors or more)


class Sampler:
    """Computes candidates, confidence and statistics of the sampled positions.

    Args:
        logits: the lm_head, [rows, hidden] -> [rows, vocab]. If it has a fused argmax kernel, the sampler uses it
            where the argmax suffices.
        mask_id, max_token_id: see EngineInfo.
        eos_ids: int64 [ids], end-of-sequence ids.
        edit_tokens: the model's tokens that order edits. They may be predicted even if above `max_token_id`.
        self_conditioning_fn: see ``SelfConditioned``; None for models without self-conditioning.
        logits_ops: operations on logits, which may be sharded over the vocabulary.
    """

    def __init__(
        self,
        logits: Callable[[torch.Tensor], torch.Tensor],
        *,
        mask_id: int | None,
        max_token_id: int,
        eos_ids: torch.Tensor,
        edit_tokens: EditTokens | None = None,
        self_conditioning_fn: SelfConditioningFn | None = None,
        logits_ops: LogitsOps = DEFAULT_LOGITS_OPS,
    ) -> None:
        self.logits = logits
        self.logits_ops = logits_ops
        # prob_stats: from the filtered probabilities that candidates are drawn from; logit_stats: from logits
        self.prob_stats = {LogitStat.MARGIN: logits_ops.margin, LogitStat.ENTROPY: logits_ops.entropy}
        self.logit_stats = {
            LogitStat.MARGIN: logits_ops.margin_from_logits,
            LogitStat.ENTROPY: logits_ops.entropy_from_logits,
        }
        self.fused_lm_head = logits if isinstance(logits, LMHead) and logits.fused_argmax else None
        self.softcap_lm_head = None  # only without vocabulary sharding: its kernel needs the full vocabulary
        if isinstance(logits, SoftcapLMHead) and logits.kernels.softmax_stats is not None and not logits_ops.is_sharded:
            self.softcap_lm_head = logits
        kernels: KernelSet | None = getattr(logits, "kernels", None)
        self.sample_kernel = None if kernels is None or logits_ops.is_sharded else kernels.topk_topp_sample
        self.self_conditioning_fn = self_conditioning_fn
        self.mask_id = mask_id
        self.max_token_id = max_token_id
        self.eos_ids = eos_ids
        self.eos_columns = logits_ops.local_columns(eos_ids)
        self.get_algorithm = algorithms_with_edit_tokens(edit_tokens)
        ids = () if edit_tokens is None else (edit_tokens.delete, edit_tokens.split)
        self.allowed_special = [token for token in ids if token > max_token_id]

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

    def is_batch_invariant(self, shape: SampleDescriptor) -> bool:
        """Whether results of a block do not depend on the other blocks of the batch, given batch-invariant kernels.

        This holds for the fused argmax: its GEMM and its sums are our own kernels, and algorithms only compare.
        """
        return self.fused_lm_head is not None and needs_only_argmax(shape)

    def sample_plan(
        self,
        plan: DenoiseBlocks,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        state: torch.Tensor,
        self_conditioning: torch.Tensor | None = None,
    ) -> Iterator[tuple[UnmaskingAlgorithm, torch.Tensor | None, BlockBatch]]:
        """Runs `sample` for a plan. `tokens` and `state`: those of the plan, on the device."""
        shape, arrays = sample_inputs(plan, self.get_algorithm)
        inputs = {name: torch.from_numpy(array).to(hidden.device) for name, array in arrays.items()}
        inputs |= {"block_tokens": tokens, "block_state": state}
        return self.sample(shape, inputs, hidden[inputs["rows"]], self_conditioning)

    def sample(  # noqa: C901 - all steps of sampling, whose order matters, in one place
        self,
        shape: SampleDescriptor,
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
        num_steps = inputs["num_steps_forcing"]
        dtype = hidden.dtype if hidden.dtype == torch.float64 else torch.float32
        algorithms = [self.get_algorithm(group.algorithm) for group in shape.groups]
        groups = make_groups(algorithms, shape.groups, inputs, shape.size, dtype, self.logits_ops)
        candidate = tokens.clone()
        confidence = torch.full(candidate.shape, float("-inf"), dtype=dtype, device=hidden.device)
        required = LogitStat(functools.reduce(operator.or_, (group.required_stats for group in groups)))
        stats = {stat: torch.full_like(confidence, none) for stat, (_, none) in STATS.items() if stat & required}
        argmax = tokens.clone() if LogitStat.ARGMAX & required else None
        vocab = 0

        block_of, at = inputs["block"], inputs["at"]
        fused = self.fused_lm_head if needs_only_argmax(shape) else None
        if fused is not None and shape.rows:
            token, confidence[block_of, at] = self.greedy(fused, hidden, inputs["num_valid"])
            candidate[block_of, at] = token
            if argmax is not None:
                argmax[block_of, at] = token
        softcapped = self.softcap_lm_head if not self.allowed_special and only_renoise(shape, groups) else None
        if softcapped is not None:
            vocab = softcapped.weight.shape[0]
            for index, found in fused_renoise_stats(
                softcapped, groups[0], hidden, inputs, (tokens, masked, num_steps), max_rows=LOGITS_CHUNK_ROWS,
                mask_id=self.mask_id, max_token_id=self.max_token_id, returns_probs=self_conditioning is not None,
                graph_safe=graph_safe,
            ):  # fmt: skip
                candidate[index], confidence[index], stats[LogitStat.ENTROPY][index] = (
                    found.token,
                    found.conf,
                    found.entropy,
                )
                if argmax is not None:
                    argmax[index] = found.argmax
                if self_conditioning is not None and found.probs is not None:
                    assert self.self_conditioning_fn is not None
                    self_conditioning[index] = self.self_conditioning_fn(found.probs, found.divisor)
        for start in range(0, shape.rows if fused is None and softcapped is None else 0, LOGITS_CHUNK_ROWS):
            part = slice(start, min(start + LOGITS_CHUNK_ROWS, shape.rows))
            index = (block_of[part], at[part])
            logits = self.logits(hidden[part])
            vocab = self.logits_ops.vocab_size(logits)
            self.logits_ops.mask_forbidden(
                logits, mask_id=self.mask_id, max_token_id=self.max_token_id, allowed_special_ids=self.allowed_special
            )
            if shape.has_logits_processors:
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
            self._sample_candidates(groups, part, logits, inputs, candidate, confidence, stats)

        arrays = {
            "tokens": tokens,
            "masked": masked,
            "unmasked": unmasked,
            "candidates": candidate,
            "confidence": confidence,
            "remasked": inputs["remasked"] if shape.remasked else torch.zeros_like(masked),
            "may_force": inputs["may_force"],
            "num_steps": num_steps,
            "initial_masks": inputs["initial_masks"],
            "step_budget": inputs["step_budget"],
            "post_edit_steps": inputs["post_edit_steps"],
        }
        noise = (inputs["noise_uniforms"] * vocab).long() if shape.uniform_noise else None
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

    def full_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns logits [rows, vocab], gathered from all ranks: forbidden ids are -inf, nothing else is changed."""
        logits = self.logits_ops.all_gather(self.logits(hidden))
        sampling.mask_forbidden(
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
        """Returns statistics in which suppressed end-of-sequence candidates rank last (``algorithms.common``)."""
        is_eos = (arrays["candidates"][:, :, None] == self.eos_ids).any(2) & (arrays["confidence"] > -math.inf)
        suppressed = (
            is_eos & (group.params[:, group.algorithm.columns[SUPPRESS_EOS.name]] == _SUPPRESS_BY_CONFIDENCE)[:, None]
        )
        lowest = torch.finfo(arrays["confidence"].dtype).min
        ends = {"confidence": lowest, "margin": lowest, "entropy": -lowest}
        return {name: arrays[name].masked_fill(suppressed, end) for name, end in ends.items() if name in arrays}

    def _sample_candidates(
        self, groups: list[AlgorithmGroup], part: slice, logits: torch.Tensor, inputs: Tensors, candidate: torch.Tensor,
        confidence: torch.Tensor, stats: Stats,
    ) -> None:  # fmt: skip
        """Replaces the argmax by a random sample for the rows of a chunk whose requests have a temperature."""
        num_sampled_before = 0  # in the previous groups
        for group in groups:
            shape = group.shape
            span = group.rows_in(part, shape.num_sampled) if shape.num_sampled else None
            first = (
                group.first + shape.rows - shape.num_sampled - num_sampled_before
            )  # row n of the chunk has its limits at n - first
            num_sampled_before += shape.num_sampled
            if span is None:
                continue
            first_filtered, begin, end = group.first + shape.rows - shape.num_filtered, span.rows.start, span.rows.stop
            if self.sample_kernel is not None and not any(stat & group.required_stats for stat in self.prob_stats):
                index, chunk = (inputs["block"][span.rows], inputs["at"][span.rows]), slice(begin - first, end - first)
                candidate[index], confidence[index] = self.sample_kernel(
                    logits[span.part], inputs["limits"][chunk], inputs["uniform"][chunk],
                    free=min(max(first_filtered - begin, 0), end - begin),
                )  # fmt: skip
                continue
            for start in range(begin, end, SAMPLING_CHUNK_ROWS):
                chunk = slice(start, min(start + SAMPLING_CHUNK_ROWS, end))
                limits = inputs["limits"][chunk.start - first : chunk.stop - first]
                probs = self.logits_ops.filtered_probs(
                    logits[chunk.start - part.start : chunk.stop - part.start],
                    temperature=limits[:, TEMPERATURE],
                    top_k=limits[:, TOP_K].long(),
                    top_p=limits[:, TOP_P],
                    min_p=limits[:, MIN_P],
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
