"""Groups the sampled blocks by unmasking algorithm, and turns the decisions of the algorithms into results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runtime.algorithms.base import (
    SUPPRESS_EOS,
    TEMPERATURE,
    BlockBatch,
    BlockUpdate,
    LogitStat,
    UnmaskingAlgorithm,
    algorithms_with_edit_tokens,
)
from runtime.kernels.ops import select_kernels
from runtime.kernels.uniform_numbers import DRAW, RENOISE
from runtime.scheduling.step_plan import (
    BLOCK_NUMBERS,
    COUNTERS,
    FIXED,
    MASKED,
    UNMASKED,
    BlockResults,
    Bools,
    DenoiseBlocks,
    Ints,
    SampledBlocks,
    SoftTokens,
)
from runtime.worker.candidates import (
    STATS,
    AlgorithmGroup,
    Candidates,
    CandidateSampler,
    SamplerConfig,
    SamplingStep,
    SelfConditioningFn,
    Tensors,
    make_groups,
)
from runtime.worker.input_batch import SampleDescriptor

SamplerOutput = dict[str, torch.Tensor]
HostOutput = Mapping[str, npt.NDArray[np.generic]]  # a SamplerOutput on the host

FINISHED, FIRST_MASKED, FIRST_EOS = map(COUNTERS.index, ("finished", "first_masked", "first_eos"))
_SUPPRESS_BY_CONFIDENCE = SUPPRESS_EOS.choices.index("confidence")


class Sampler:
    """Computes the inputs of the unmasking algorithms of a step.

    Args:
        lm_head, self_conditioning_fn: see ``CandidateSampler``.
        device: that of the hidden states.
    """

    def __init__(
        self, lm_head: Callable[[torch.Tensor], torch.Tensor], config: SamplerConfig,
        device: torch.device | str = "cpu", self_conditioning_fn: SelfConditioningFn | None = None,
    ) -> None:  # fmt: skip
        self.candidates = CandidateSampler(lm_head, config, device, self_conditioning_fn)
        self.eos_ids = self.candidates.eos_ids
        self.get_algorithm = algorithms_with_edit_tokens(config.edit_tokens)
        self.vocab_size = config.vocab_size
        self.uniform_numbers = select_kernels(torch.device(device), torch.float32).uniform_numbers

    def is_batch_invariant(self, blocks: DenoiseBlocks) -> bool:
        """Whether results of a block do not depend on the other blocks of the batch, given batch-invariant kernels.

        This holds for the fused argmax: its GEMM and its sums are our own kernels, and algorithms only compare.
        """
        if self.candidates.fused_lm_head is None or blocks.uniform_noise or blocks.logits_processors is not None:
            return False
        if any(group.required_stats & ~LogitStat.ARGMAX for group in blocks.groups):
            return False
        if blocks.sampling_params is None:
            return True
        has_temperature = blocks.sampling_params[:, TEMPERATURE] > 0
        return not (has_temperature[:, None] & blocks.sampled & (blocks.state == MASKED)).any()

    def block_batches(
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
            inputs, self_conditioning, graph_safe: see ``SamplingStep``.
            hidden: [rows, hidden], hidden states of the sampled positions in their order.
        """
        state = inputs["block_state"]
        dtype = hidden.dtype if hidden.dtype == torch.float64 else torch.float32
        groups = make_groups(descriptor, inputs, dtype, self.candidates.logits_ops)
        uniform = None
        if descriptor.num_random:
            block, at = (torch.cat([inputs[name][each.random_rows] for each in groups]) for name in ("block", "at"))
            uniform = self.uniform_numbers(inputs["draws"], block, at, DRAW)
        step = SamplingStep(descriptor, inputs, groups, state == MASKED, dtype, uniform, self_conditioning, graph_safe)
        found = self.candidates.sample(step, hidden)
        arrays = {
            "tokens": inputs["block_tokens"],
            "masked": step.masked,
            "unmasked": state == UNMASKED,
            "candidates": found.tokens,
            "confidence": found.confidence,
            "remasked": inputs["remasked"],
            **dict(zip(BLOCK_NUMBERS, inputs["numbers"].unbind(1), strict=True)),
        }
        arrays["must_advance"] = arrays["must_advance"] > 0
        if descriptor.uniform_noise:
            arrays["noise_tokens"] = self.noise(inputs["draws"], descriptor.size, RENOISE)
        for group in groups:
            yield group.algorithm, group.members, self._block_batch(group, arrays, found)

    def noise(self, draws: torch.Tensor, size: int, stream: int) -> torch.Tensor:
        """Returns a random token for each of the first `size` positions of blocks, int64 [n, size].

        Args:
            draws, stream: see ``kernels.uniform_numbers``.
        """
        every = torch.arange(len(draws) * size, device=draws.device)
        numbers = self.uniform_numbers(draws, every // size, every % size, stream)
        return (numbers * self.vocab_size).long().view(-1, size)

    def _block_batch(self, group: AlgorithmGroup, arrays: Tensors, found: Candidates) -> BlockBatch:
        """Returns the inputs of a group's algorithm, from the `arrays` of all blocks."""
        required = group.required_stats
        mine = {**arrays, **{STATS[stat][0]: tensor for stat, tensor in found.stats.items() if stat & required}}
        if not group.algorithm.uniform_noise:
            mine.pop("noise_tokens", None)
        if found.argmax is not None and required & LogitStat.ARGMAX:
            mine["argmax"] = found.argmax
        if group.members is not None:
            mine = {name: tensor[group.members] for name, tensor in mine.items()}
        if required & LogitStat.SUPPRESS_EOS:
            mine |= self._suppress_eos_confidence(group, mine)
        return BlockBatch(
            params=group.params, columns=group.algorithm.columns, history=group.history, top_k=group.top_k, **mine
        )

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


def sampled_blocks(output: HostOutput) -> SampledBlocks:
    """Returns the content of the step's blocks as views, with the padding behind them."""
    numbers = output["numbers"]
    return SampledBlocks(output["tokens"], output["state"], numbers[FIRST_MASKED], numbers[FIRST_EOS])  # type: ignore[arg-type]


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
        **dict(zip(COUNTERS, numbers, strict=True)),
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
        soft_tokens=numbered("soft_tokens"),
        **{name: listed(name) for name in COUNTERS},  # type: ignore[arg-type]
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
