"""Executes a StepPlan: the forward, the head for the rows that are sampled, each rule's decision. Knows no request."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from runtime.engine.head import Head
from runtime.kernels.batch import ForwardBatch
from runtime.layers.embedding import merged
from runtime.layers.kv_pool import KVPool
from runtime.models.base import Model, SelfConditioned
from runtime.samplers.base import Decision, Orders
from runtime.state.plan import BlockPlan, BlockResults, MergedRows, Mixture, StepPlan
from runtime.state.request import FILLED, FIXED, MASKED


class Runner(Protocol):
    """What the engine needs of a runner; the host benchmark puts one without a model here."""

    def run(self, plan: StepPlan) -> BlockResults | None:
        """Results of the plan's sampled blocks, None if it sampled none."""
        ...


class ModelRunner:
    """Args:
    model: a family's model. pool: where its keys and values lie, on the same device.
    mask_id, max_token_id, eos_ids: see EngineInfo. orders: what the model orders edits with.
    places: most requests that hold pages at a time; for each, a model that conditions itself is told of its last step.
    """

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        *,
        block_size: int,
        mask_id: int | None,
        max_token_id: int,
        eos_ids: tuple[int, ...],
        orders: Orders | None = None,
        places: int = 0,
    ) -> None:
        self.model = model
        self.pool = pool
        self.device = pool.device
        self.block_size = block_size
        self.mask_id = mask_id
        self.eos_ids = torch.tensor(eos_ids, dtype=torch.int64, device=self.device)
        told = model if isinstance(model, SelfConditioned) else None
        self.signal: torch.Tensor | None = None  # [places, block, width], of the last step of whoever has the place
        if told is not None:
            self.signal = torch.zeros(places, block_size, told.signal_width, dtype=pool.dtype, device=self.device)
        self.head = Head(
            model.head, mask_id=mask_id, max_token_id=max_token_id, eos_ids=self.eos_ids, orders=orders,
            soften=None if told is None else told.soften,
        )  # fmt: skip

    def _put(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def batch(self, plan: StepPlan) -> ForwardBatch:
        """The plan's rows on the device."""
        return ForwardBatch(
            tokens=self._put(plan.tokens),
            positions=self._put(plan.positions),
            slots=self._put(plan.slots),
            visible_end=self._put(plan.visible_end),
            window_origin=self._put(plan.window_origin),
            open=self._put(plan.open),
            tiles=self._put(plan.tiles),
            page_table=self._put(plan.page_table),
            page_size=self.pool.page_size,
            tile_rows=int(plan.tiles[:, 2].max()),
            reach=int(plan.positions.max()) + 1,
            signal=None if self.signal is None else self._told(self.signal, plan),
        )

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> BlockResults | None:
        batch = self.batch(plan)
        x = self.model.embed(batch.tokens)
        if plan.merged is not None:
            self._merge(x, plan.merged)
        hidden = self.model.forward(x, batch, self.pool)
        if plan.blocks is None:
            return None
        return self._sample(plan.blocks, hidden)

    def _told(self, signal: torch.Tensor, plan: StepPlan) -> torch.Tensor | None:
        """[rows, width]: of `signal`, what open rows are told of their blocks' last steps; None if there were none."""
        blocks = plan.blocks
        if blocks is None or blocks.place is None or not blocks.advanced.any():
            return None
        later = np.flatnonzero(blocks.advanced)
        rows = blocks.rows[later, None] + np.arange(self.block_size)
        told = signal.new_zeros(len(plan.tokens), signal.shape[2])
        told[self._put(rows)] = signal[self._put(blocks.place[later])]
        return told

    def _merge(self, x: torch.Tensor, plan: MergedRows) -> None:
        """In place: the plan's rows of `x` [rows, hidden]."""
        assert self.mask_id is not None  # of what is FILLED instead of masked
        rows, (smooth, weight, renormalize) = self._put(plan.rows), self._put(plan.how).unbind(1)
        x[rows] = merged(
            self.model.embed, x[rows], self._put(plan.ids), self._put(plan.probs), self.mask_id,
            smooth=smooth > 0, weight=weight, renormalize=renormalize > 0,
        )  # fmt: skip

    def _sample(self, plan: BlockPlan, hidden: torch.Tensor) -> BlockResults:
        tokens, state = self._put(plan.tokens), self._put(plan.state)
        signal: torch.Tensor | None = None  # [n, block, width]
        if self.signal is not None and plan.place is not None:
            signal = self.signal.new_zeros(len(plan.place), *self.signal.shape[1:])
        decided: list[tuple[torch.Tensor | None, Decision]] = []
        kept: dict[int, np.ndarray] = {}
        mixtures: dict[int, Mixture] = {}
        for i, (rule, members, blocks) in enumerate(self.head.groups(plan, hidden, tokens, state, signal)):
            decision = rule.decide(blocks)
            decided.append((members, decision))
            numbers = plan.groups[i].members.tolist()
            if blocks.kept is not None:
                kept |= zip(numbers, map(_used, blocks.kept.cpu().numpy()), strict=True)
            if decision.mixture is not None:
                found = decision.mixture.ids.cpu().numpy(), decision.mixture.probs.double().cpu().numpy()
                mixtures |= zip(numbers, zip(*found, strict=True), strict=True)
        if self.signal is not None and plan.place is not None and signal is not None:
            self.signal[self._put(plan.place)] = signal
        return self._results(tokens, state, _joined(decided, len(tokens)), kept, mixtures)

    def _results(
        self,
        tokens: torch.Tensor,
        before: torch.Tensor,
        decision: Decision,
        kept: dict[int, np.ndarray],
        mixtures: dict[int, Mixture],
    ) -> BlockResults:
        """What the strategies need to know, in one transfer of numbers a block and one of each array. `tokens`,
        `before`: the positions' content and state before the step."""
        size = before.shape[1]
        state = torch.where(before == FIXED, FIXED, torch.where(decision.masked, MASKED, FILLED)).to(torch.int8)
        is_eos = (decision.tokens[:, :, None] == self.eos_ids).any(2) & (state == FILLED)
        written = (state == FILLED) & ((before == MASKED) | (decision.tokens != tokens))
        numbers = torch.stack(
            [
                decision.masked.sum(1),
                _first(decision.masked, size),
                _first(is_eos, size),
                written.sum(1),
                decision.edited.sum(1),
                decision.remasked.sum(1),
                decision.forced.long(),
                decision.ended.long(),
            ]
        ).tolist()
        tokens = decision.tokens
        if self.mask_id is not None:
            tokens = torch.where(decision.masked, self.mask_id, tokens)
        return BlockResults(
            tokens=tokens.cpu().numpy(),
            state=state.cpu().numpy(),
            remasked=decision.remasked.cpu().numpy(),
            masks=numbers[0],
            first_masked=numbers[1],
            first_eos=numbers[2],
            written=numbers[3],
            edits=numbers[4],
            remasks=numbers[5],
            forced=numbers[6],
            ended=numbers[7],
            kept=kept,
            mixtures=mixtures,
        )


def _used(kept: np.ndarray) -> np.ndarray:
    """[B, records, numbers] without the records that say nothing of any position."""
    return kept[:, kept.any(axis=(0, 2))]


def _first(flags: torch.Tensor, none: int) -> torch.Tensor:
    """[n]: offset of each row's first True, `none` where there is none."""
    return torch.where(flags.any(1), flags.int().argmax(1), none)


def _joined(decided: list[tuple[torch.Tensor | None, Decision]], blocks: int) -> Decision:
    """The decisions of several rules, each about its own blocks (None: all), as one about all of them, but for
    `mixture`, which some may not have."""
    members, decision = decided[0]
    if members is None:
        return decision

    def join(name: str) -> torch.Tensor:
        first: torch.Tensor = getattr(decision, name)
        whole = first.new_empty((blocks, *first.shape[1:]))
        for members, part in decided:
            whole[members] = getattr(part, name)
        return whole

    names = [name for name in Decision.__dataclass_fields__ if name != "mixture"]
    return Decision(**{name: join(name) for name in names})  # type: ignore[arg-type]
