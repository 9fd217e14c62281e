"""Executes a StepPlan: the forward, the head for the rows that are sampled, each rule's decision. Knows no request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from runtime.engine.plan import BlockPlan, BlockResults, StepPlan
from runtime.engine.request import FILLED, FIXED, MASKED
from runtime.kernels.batch import ForwardBatch
from runtime.layers.kv_pool import KVPool
from runtime.models.base import Model
from runtime.samplers import choose
from runtime.samplers.base import BlockBatch, Decision, Param, Rule, get_rule

# Rows of logits at a time: bounds the head's memory (a vocabulary of 157k in float32 is 0.6 GB a thousand rows).
HEAD_ROWS = 2048
# Of those, how many draw at a time: top-k and top-p sort the vocabulary and sum it in float64, eight times the logits.
DRAW_ROWS = 256


class Runner(Protocol):
    """What the engine needs of a runner; the host benchmark puts one without a model here."""

    def run(self, plan: StepPlan) -> BlockResults | None:
        """Results of the plan's sampled blocks, None if it sampled none."""
        ...


class ModelRunner:
    """Args:
    model: a family's model. pool: where its keys and values lie, on the same device.
    mask_id, max_token_id, eos_ids: see EngineInfo.
    """

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        *,
        block_size: int,
        mask_id: int,
        max_token_id: int,
        eos_ids: tuple[int, ...],
        rules: Callable[[str], Rule] = get_rule,
    ) -> None:
        self.model = model
        self.pool = pool
        self.device = pool.device
        self.block_size = block_size
        self.mask_id = mask_id
        self.max_token_id = max_token_id
        self.eos_ids = torch.tensor(eos_ids, device=self.device)
        self.rules = rules

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
            tiles=self._put(plan.tiles),
            page_table=self._put(plan.page_table),
            page_size=self.pool.page_size,
            tile_rows=int(plan.tiles[:, 2].max()),
            reach=int(plan.positions.max()) + 1,
        )

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> BlockResults | None:
        batch = self.batch(plan)
        hidden = self.model.forward(self.model.embed(batch.tokens), batch, self.pool)
        if plan.blocks is None:
            return None
        return self._sample(plan.blocks, hidden)

    def _sample(self, plan: BlockPlan, hidden: torch.Tensor) -> BlockResults:
        blocks = self._candidates(plan, hidden)
        tokens, masked = blocks.tokens.clone(), blocks.masked.clone()
        edited, remasked = torch.zeros_like(masked), torch.zeros_like(masked)
        forced, ended = torch.zeros_like(blocks.may_force), torch.zeros_like(blocks.may_force)
        for rule, members in plan.groups:
            whole = len(members) == len(plan.rows)
            where: Any = slice(None) if whole else self._put(members)
            decision = self.rules(rule)(blocks if whole else _take(blocks, where))
            tokens[where], masked[where] = decision.tokens, decision.masked
            edited[where], remasked[where] = decision.edited, decision.remasked
            forced[where], ended[where] = decision.forced, decision.ended
        decision = Decision(tokens, masked, forced, edited, remasked, ended)
        return self._results(blocks, decision)

    def _candidates(self, plan: BlockPlan, hidden: torch.Tensor) -> BlockBatch:
        """Every sampled position's token and probability, as [n, B] tensors."""
        block, offset = np.nonzero(plan.sampled)
        rows, block_of, at = self._put(plan.rows[block] + offset), self._put(block), self._put(offset)
        tokens, state, params = self._put(plan.tokens), self._put(plan.state), self._put(plan.params)
        masked, filled = state == MASKED, state == FILLED
        uniform = None if plan.uniform is None else self._put(plan.uniform)
        wants_current = bool((plan.params[:, Param.REMASK] > 0).any())
        wants_penalty = bool((plan.params[:, Param.PENALTY] > 0).any())

        choice = tokens.clone()
        kind = hidden.dtype if hidden.dtype == torch.float64 else torch.float32
        conf = torch.full(choice.shape, float("-inf"), dtype=kind, device=self.device)
        current = torch.ones(choice.shape, dtype=kind, device=self.device)
        for start in range(0, len(rows), HEAD_ROWS):
            part = slice(start, start + HEAD_ROWS)
            here = (block_of[part], at[part])
            logits = self.model.head(hidden[rows[part]])
            choose.ban(logits, mask_id=self.mask_id, max_token_id=self.max_token_id)
            if wants_current:
                current[here] = choose.probability(logits, tokens[here].clamp(max=logits.shape[1] - 1))
            if wants_penalty:
                _penalise(logits, block_of[part], at[part], tokens, masked, params[:, Param.PENALTY])
            best = choose.greedy(logits)
            choice[here], conf[here] = best.token, best.conf
            if uniform is not None:
                self._draw(logits, here, masked, params, uniform, choice, conf)
        return BlockBatch(
            tokens=tokens,
            masked=masked,
            filled=filled,
            choice=choice,
            conf=conf,
            current=current,
            remasked=torch.zeros_like(masked) if plan.remasked is None else self._put(plan.remasked),
            may_force=self._put(plan.may_force),
            advanced=self._put(plan.advanced),
            initial_masks=self._put(plan.initial_masks),
            post_edit_steps=self._put(plan.post_edit_steps),
            params=params,
        )

    def _draw(
        self,
        logits: torch.Tensor,
        here: tuple[torch.Tensor, torch.Tensor],
        masked: torch.Tensor,
        params: torch.Tensor,
        uniform: torch.Tensor,
        choice: torch.Tensor,
        conf: torch.Tensor,
    ) -> None:
        """Masked positions of requests with a temperature draw instead of taking the likeliest."""
        draws = (masked[here] & (params[here[0], Param.TEMPERATURE] > 0)).nonzero()[:, 0]
        for drawn in torch.split(draws, DRAW_ROWS):
            block, at = here[0][drawn], here[1][drawn]
            mine = params[block]
            picked = choose.draw(
                logits[drawn],
                temperature=mine[:, Param.TEMPERATURE],
                top_k=mine[:, Param.TOP_K].long(),
                top_p=mine[:, Param.TOP_P],
                uniform=uniform[block, at],
            )
            choice[block, at], conf[block, at] = picked.token, picked.conf

    def _results(self, before: BlockBatch, decision: Decision) -> BlockResults:
        """What the strategies need to know, in one transfer of numbers a block and one of each array."""
        size = before.tokens.shape[1]
        fixed = ~(before.masked | before.filled)
        state = torch.where(fixed, FIXED, torch.where(decision.masked, MASKED, FILLED)).to(torch.int8)
        is_eos = (decision.tokens[:, :, None] == self.eos_ids).any(2) & (state == FILLED)
        accepted = before.masked & ~decision.masked
        written = accepted | decision.edited | decision.remasked
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
        return BlockResults(
            tokens=torch.where(decision.masked, self.mask_id, decision.tokens).cpu().numpy(),
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
        )


def _first(flags: torch.Tensor, none: int) -> torch.Tensor:
    """[n]: offset of each row's first True, `none` where there is none."""
    return torch.where(flags.any(1), flags.int().argmax(1), none)


def _penalise(
    logits: torch.Tensor,
    block: torch.Tensor,
    at: torch.Tensor,
    tokens: torch.Tensor,
    masked: torch.Tensor,
    penalty: torch.Tensor,
) -> None:
    """In place: rows but a block's first lose `penalty` on the token before them, unless that is masked (3.2)."""
    previous = (at - 1).clamp(min=0)
    applies = (at > 0) & ~masked[block, previous] & (penalty[block] > 0)
    rows = applies.nonzero()[:, 0]
    ids = tokens[block[rows], previous[rows]]
    logits[rows, ids] -= penalty[block[rows]].to(logits.dtype)


def _take(blocks: BlockBatch, members: torch.Tensor) -> BlockBatch:
    return BlockBatch(**{name: getattr(blocks, name)[members] for name in BlockBatch.__dataclass_fields__})
