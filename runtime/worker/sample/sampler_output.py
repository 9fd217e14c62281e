"""What the device says of a step's blocks: named arrays of sizes that follow from the shape, read in one transfer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from runtime.algorithms.base import BlockUpdate
from runtime.engine.request import FIXED, MASKED
from runtime.engine.step_plan import BlockResults, Bools, DenoiseBlocks, Ints, SoftTokens
from runtime.worker.input_batch import SampleDescriptor

Outcome = dict[str, torch.Tensor]
Told = Mapping[str, npt.NDArray[np.generic]]  # the same on the host
# an outcome's `numbers` [len(NAMES), n], as BlockResults calls them
NAMES = ("masks", "num_updated", "edits", "remasks", "first_masked", "first_eos", "forced", "finished")


def outcome(
    tokens: torch.Tensor,
    before: torch.Tensor,
    decided: list[tuple[torch.Tensor | None, BlockUpdate]],
    *,
    mask_id: int | None,
    eos_ids: torch.Tensor,
) -> Outcome:
    """What the strategies need to know of all blocks, and of each rule's own what it mixes.

    Args:
        tokens, before: the positions' content and state before the step. decided: each rule's blocks (None: all) and
            what it decided.
    """
    decision = _joined(decided, len(tokens))
    size, masked = before.shape[1], decision.masked
    open_ = before != FIXED
    filled = open_ & ~masked
    state = open_.to(torch.int8) + filled  # FIXED, MASKED and UNMASKED are 0, 1 and 2
    is_eos = (decision.tokens[:, :, None] == eos_ids).any(2) & filled
    written = filled & ((before == MASKED) | (decision.tokens != tokens))
    at = torch.arange(size, device=before.device)
    numbers = torch.cat(  # few launches of many numbers each: they are what a small step's time goes into
        [
            torch.stack([masked, written, decision.edited, decision.remasked]).sum(2),
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


def results(shape: SampleDescriptor, told: Told, members: list[Ints]) -> BlockResults:
    """What an outcome says of the plan's own blocks, the first of the shape's; tokens and state are read before the
    next step. `members`: each rule's, of the plan's own."""
    n = sum(map(len, members))
    numbers = told["numbers"][:, :n].tolist()
    kept: dict[int, npt.NDArray[np.float64]] = {}
    mixtures: dict[int, SoftTokens] = {}
    for i, (group, mine) in enumerate(zip(shape.groups, members, strict=True)):
        if group.history_len:
            every = told[f"history{i}"]
            kept |= zip(mine.tolist(), every.copy() if group.static_history else map(used, every), strict=False)
        if f"ids{i}" in told:
            pairs = zip(told[f"ids{i}"].copy(), told[f"probs{i}"].copy(), strict=True)
            mixtures |= zip(mine.tolist(), pairs, strict=False)
    return BlockResults(
        tokens=told["tokens"][:n],  # type: ignore[arg-type]  # each is of the type that it was made of
        state=told["state"][:n],  # type: ignore[arg-type]
        remasked=_remasked(told, n),
        history=kept,
        soft_tokens=mixtures,
        uniform_noise=shape.uniform_noise,
        **dict(zip(NAMES, numbers, strict=True)),
    )


def tokens_after(plan: DenoiseBlocks, told: Told) -> Ints:
    """[n, B]: of the plan's own blocks, after the step."""
    blocks, size = plan.tokens.shape  # less than what a step is filled up to
    return told["tokens"][:blocks, :size]  # type: ignore[return-value]


def all_go_on(told: Told, blocks: int, *, noisy: bool) -> bool:
    """Whether each of the plan's own blocks does (``BlockResults.calm``)."""
    size, of = told["tokens"].shape[1], dict(zip(NAMES, told["numbers"][:, :blocks], strict=True))
    return not of["finished"].any() and (noisy or bool(of["masks"].all() and of["first_eos"].min() >= size))


def _remasked(told: Told, n: int) -> Bools:
    """Of an outcome that says nothing of it none is."""
    if "remasked" in told:
        return told["remasked"][:n].copy()  # type: ignore[return-value]
    return np.zeros((n, told["tokens"].shape[1]), dtype=np.bool_)


def end_to_end(parts: list[BlockResults]) -> BlockResults:
    """The results of several plans as those of one."""
    if len(parts) == 1:
        return parts[0]
    size = max(part.tokens.shape[1] for part in parts)
    firsts = np.cumsum([0, *(len(part.tokens) for part in parts)]).tolist()

    def beside(name: str) -> npt.NDArray[Any]:
        arrays = [getattr(part, name) for part in parts]
        return np.concatenate([np.pad(array, ((0, 0), (0, size - array.shape[1]))) for array in arrays])

    def listed(name: str) -> list[Any]:
        return [value for part in parts for value in getattr(part, name)]

    def numbered(name: str) -> dict[int, Any]:
        found = zip(firsts, (getattr(part, name) for part in parts), strict=False)
        return {first + number: value for first, part in found for number, value in part.items()}

    return BlockResults(
        tokens=beside("tokens"), state=beside("state"), remasked=beside("remasked"), history=numbered("history"),
        soft_tokens=numbered("soft_tokens"), logprobs={}, uniform_noise=parts[0].uniform_noise,
        **{name: listed(name) for name in NAMES},
    )  # fmt: skip


def used(kept: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """[B, records, numbers] without the records that say nothing of any position."""
    return kept[:, kept.any(axis=(0, 2))]


def _joined(decided: list[tuple[torch.Tensor | None, BlockUpdate]], blocks: int) -> BlockUpdate:
    """The decisions of several rules, each about its own blocks (None: all), as one about all of them, but for
    `mixture`, which some may not have."""
    members, decision = decided[0]
    if members is None:
        return decision

    def join(name: str) -> torch.Tensor:
        first: torch.Tensor = getattr(decision, name)
        whole = first.new_zeros((blocks, *first.shape[1:]))
        for members, part in decided:
            whole[members] = getattr(part, name)
        return whole

    names = [name for name in BlockUpdate.__dataclass_fields__ if name != "soft_tokens"]
    return BlockUpdate(**{name: join(name) for name in names})  # type: ignore[arg-type]
