"""Sampler output of a step, copied to the host in one transfer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runtime.algorithms.base import BlockUpdate
from runtime.engine.step_plan import FIXED, MASKED, BlockResults, Bools, DenoiseBlocks, Ints, SoftTokens
from runtime.worker.input_batch import SampleDescriptor

SamplerOutput = dict[str, torch.Tensor]
HostOutput = Mapping[str, npt.NDArray[np.generic]]  # a SamplerOutput on the host
# Rows of the array `numbers` [len(COUNTERS), n] of an output, by their names in BlockResults.
COUNTERS = ("masks", "num_updated", "edits", "remasks", "first_masked", "first_eos", "forced", "finished")


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


def to_block_results(shape: SampleDescriptor, output: HostOutput, members: list[Ints]) -> BlockResults:
    """Returns the results of the plan's blocks, which precede the padding.

    Tokens and state are views, valid until the next step.

    Args:
        members: indices of the blocks of each algorithm.
    """
    n = sum(map(len, members))
    numbers = output["numbers"][:, :n].tolist()
    history: dict[int, npt.NDArray[np.float64]] = {}
    soft_tokens: dict[int, SoftTokens] = {}
    for i, (group, mine) in enumerate(zip(shape.groups, members, strict=True)):
        if group.history_len:
            histories = output[f"history{i}"]
            history |= zip(
                mine.tolist(),
                histories.copy() if group.static_history else map(nonzero_records, histories),
                strict=False,
            )
        if f"ids{i}" in output:
            pairs = zip(output[f"ids{i}"].copy(), output[f"probs{i}"].copy(), strict=True)
            soft_tokens |= zip(mine.tolist(), pairs, strict=False)
    return BlockResults(
        tokens=output["tokens"][:n],  # type: ignore[arg-type]  # each is of the type that it was made of
        state=output["state"][:n],  # type: ignore[arg-type]
        remasked=_remasked(output, n),
        history=history,
        soft_tokens=soft_tokens,
        uniform_noise=shape.uniform_noise,
        **dict(zip(COUNTERS, numbers, strict=True)),
    )


def next_tokens(plan: DenoiseBlocks, output: HostOutput) -> Ints:
    """Returns the tokens [n, B] of the plan's blocks after the step."""
    blocks, size = plan.tokens.shape  # without padding
    return output["tokens"][:blocks, :size]  # type: ignore[return-value]


def all_blocks_continue(output: HostOutput, blocks: int, *, uniform_noise: bool) -> bool:
    """Whether all of the plan's blocks continue (``BlockResults.continuing``)."""
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
    """Concatenates the results of several plans."""
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
    """Joins the decisions of several algorithms, each for its own blocks (None: all). It has no `mixture`."""
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
