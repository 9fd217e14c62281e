"""From hidden states to what the rules decide with: the one place that makes and reads logits (decoding.md 1, 3.1).

Gathers the sampled rows, bans what may not be predicted, lets rules adjust, takes the likeliest token or draws one, and
computes the statistics that the rules of the step asked for, for their rows and no others.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator

import numpy as np
import torch

from runtime.engine.groups import Group, Place, make_group
from runtime.layers.head import PlainHead
from runtime.samplers import choose
from runtime.samplers.base import (
    SUPPRESS_EOS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    BlockBatch,
    Orders,
    Rule,
    Stat,
    rules_under,
)
from runtime.state.plan import BlockPlan
from runtime.state.request import FILLED, MASKED

# Rows of logits at a time: bounds the head's memory (a vocabulary of 157k in float32 is 0.6 GB a thousand rows).
HEAD_ROWS = 2048
# Of those, how many draw at a time: top-k and top-p sort the vocabulary and sum it in float64, eight times the logits.
DRAW_ROWS = 256

# What each statistic is called in a BlockBatch, and what stands where a position was not sampled.
STATS = {Stat.CURRENT: ("current", 1.0), Stat.MARGIN: ("margin", -math.inf), Stat.ENTROPY: ("entropy", math.inf)}
# How those are computed that describe the distribution which a candidate is taken from.
SHAPES = {Stat.MARGIN: choose.margin, Stat.ENTROPY: choose.entropy}

_LATE, _NEVER = (SUPPRESS_EOS.choices.index(word) for word in ("confidence", "logits"))

Stats = dict[Stat, torch.Tensor]  # [n, B] of each that is wanted


class Head:
    """Args:
    logits: [rows, hidden] -> [rows, vocab]; a plain head that has a direct way is asked for the likeliest tokens where
        nobody wants more. mask_id, max_token_id: see EngineInfo. eos_ids: int64 [ids], theirs.
    orders: what the model orders edits with; it may choose them though they lie above the largest id.
    soften: see ``SelfConditioned``, of a model that is.
    """

    def __init__(
        self,
        logits: Callable[[torch.Tensor], torch.Tensor],
        *,
        mask_id: int | None,
        max_token_id: int,
        eos_ids: torch.Tensor,
        orders: Orders | None = None,
        soften: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self.logits = logits
        self.plain = logits if isinstance(logits, PlainHead) and logits.direct else None
        self.soften = soften
        self.mask_id = mask_id
        self.max_token_id = max_token_id
        self.eos_ids = eos_ids
        self.rules = rules_under(orders)
        ids = () if orders is None else (orders.delete, orders.split)
        self.spared = [token for token in ids if token > max_token_id]

    def groups(
        self,
        plan: BlockPlan,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        state: torch.Tensor,
        signal: torch.Tensor | None = None,
    ) -> Iterator[tuple[Rule, torch.Tensor | None, BlockBatch]]:
        """Of each rule of the plan: the rule, its blocks' numbers (None: all blocks), and what it decides with.

        Args:
            hidden: [rows, hidden] of the step's rows. tokens, state: the plan's, on the device.
            signal: [n, B, hidden], to be written where a rule asks for it.
        """
        device = hidden.device

        def put(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(array).to(device, non_blocking=True)

        masked, filled = state == MASKED, state == FILLED
        advanced = put(plan.advanced)
        kind = hidden.dtype if hidden.dtype == torch.float64 else torch.float32
        groups = [make_group(self.rules(g.rule), tokens, g, kind, put) for g in plan.groups]
        choice = tokens.clone()
        conf = torch.full(choice.shape, float("-inf"), dtype=kind, device=device)
        wanted = Stat(functools.reduce(operator.or_, (group.wants for group in groups)))
        stats = {stat: torch.full_like(conf, none) for stat, (_, none) in STATS.items() if stat & wanted}
        drawing = None if plan.drawing is None else (put(plan.drawing.limits), put(plan.drawing.uniform))
        likeliest = tokens.clone() if Stat.BEST & wanted else None
        vocab = 0

        block, offset = np.nonzero(plan.sampled)
        rows, block_of, at = put(plan.rows[block] + offset), put(block), put(offset)
        bare = drawing is None and plan.noise is None and not wanted & ~Stat.BEST
        if self.plain is not None and bare:
            token, conf[block_of, at] = self.plain.likeliest(
                hidden[rows], mask_id=self.mask_id, max_token_id=self.max_token_id, spared=self.spared
            )
            choice[block_of, at] = token
            if likeliest is not None:
                likeliest[block_of, at] = token
            rows = rows[:0]
        for start in range(0, len(rows), HEAD_ROWS):
            part = slice(start, start + HEAD_ROWS)
            here = (block_of[part], at[part])
            logits = self.logits(hidden[rows[part]])
            vocab = logits.shape[1]
            choose.ban(logits, mask_id=self.mask_id, max_token_id=self.max_token_id, spared=self.spared)
            for group in groups:
                if group.wants & Stat.SUPPRESS:
                    self._ban_eos(group, logits, here)
                if group.wants & Stat.CURRENT:
                    group.current(logits, here, tokens, stats[Stat.CURRENT])
                if group.wants & Stat.ADJUST:
                    group.adjust(logits, here, tokens, masked, advanced)
                _describe(group, logits, here, stats)
                if group.wants & Stat.SIGNAL and signal is not None:
                    assert self.soften is not None
                    _soften(group, logits, here, self.soften, signal)
                if group.top is not None:
                    group.likeliest(logits, here)
            best = choose.greedy(logits)
            choice[here], conf[here] = best.token, best.conf
            if likeliest is not None:
                likeliest[here] = best.token
            if drawing is not None:
                _draw(logits, here, masked, *drawing, choice, conf, stats)

        noise = None if plan.noise is None else (put(plan.noise) * vocab).long()
        whole = {
            "tokens": tokens,
            "masked": masked,
            "filled": filled,
            "choice": choice,
            "conf": conf,
            "remasked": torch.zeros_like(masked) if plan.remasked is None else put(plan.remasked),
            "may_force": put(plan.may_force),
            "advanced": advanced,
            "initial_masks": put(plan.initial_masks),
            "given_steps": put(plan.given_steps),
            "post_edit_steps": put(plan.post_edit_steps),
        }
        for group in groups:
            some = whole | {STATS[stat][0]: tensor for stat, tensor in stats.items() if stat & group.wants}
            if likeliest is not None and group.wants & Stat.BEST:
                some["best"] = likeliest
            if noise is not None and group.rule.noisy:
                some["noise"] = noise
            if group.members is not None:
                some = {name: tensor[group.members] for name, tensor in some.items()}
            if group.wants & Stat.SUPPRESS:
                some |= self._held_back(group, some)
            blocks = BlockBatch(params=group.params, columns=group.rule.columns, kept=group.kept, top=group.top, **some)
            yield group.rule, group.members, blocks

    def _ban_eos(self, group: Group, logits: torch.Tensor, here: Place) -> None:
        """In place: an end of sequence is not predicted where the request says so."""
        mine = group.rows(here[0])
        never = group.params[group.own(here[0][mine]), group.rule.columns[SUPPRESS_EOS.name]] == _NEVER
        where = never.nonzero()[:, 0] if isinstance(mine, slice) else mine[never]
        logits[where[:, None], self.eos_ids] = -math.inf

    def _held_back(self, group: Group, some: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The confidence and the like where candidates that end the sequence come last (`shared.late`)."""
        is_eos = torch.isin(some["choice"], self.eos_ids) & (some["conf"] > -math.inf)
        late = is_eos & (group.params[:, group.rule.columns[SUPPRESS_EOS.name]] == _LATE)[:, None]
        least = torch.finfo(some["conf"].dtype).min
        ends = {"conf": least, "margin": least, "entropy": -least}
        return {name: some[name].masked_fill(late, end) for name, end in ends.items() if name in some}


def _describe(group: Group, logits: torch.Tensor, here: Place, stats: Stats) -> None:
    """The shape of the distribution at each of the group's positions, as if none drew."""
    shapes = {stat: shape for stat, shape in SHAPES.items() if stat & group.wants}
    if not shapes:
        return
    mine = group.rows(here[0])
    logits, block, at = logits[mine], here[0][mine], here[1][mine]
    for some in torch.split(torch.arange(len(logits), device=logits.device), DRAW_ROWS):
        probs = logits[some].softmax(dim=1)
        for stat, shape in shapes.items():
            stats[stat][block[some], at[some]] = shape(probs)


def _soften(
    group: Group,
    logits: torch.Tensor,
    here: Place,
    soften: Callable[[torch.Tensor], torch.Tensor],
    signal: torch.Tensor,
) -> None:
    """What the model makes of the distribution at each of the group's positions, as if none drew."""
    mine = group.rows(here[0])
    logits, block, at = logits[mine], here[0][mine], here[1][mine]
    for some in torch.split(torch.arange(len(logits), device=logits.device), DRAW_ROWS):
        signal[block[some], at[some]] = soften(logits[some].softmax(dim=1))


def _draw(
    logits: torch.Tensor,
    here: Place,
    masked: torch.Tensor,
    limits: torch.Tensor,
    uniform: torch.Tensor,
    choice: torch.Tensor,
    conf: torch.Tensor,
    stats: Stats,
) -> None:
    """Masked positions of requests with a temperature draw instead of taking the likeliest."""
    draws = (masked[here] & (limits[here[0], TEMPERATURE] > 0)).nonzero()[:, 0]
    for drawn in torch.split(draws, DRAW_ROWS):
        block, at = here[0][drawn], here[1][drawn]
        mine = limits[block]
        probs = choose.distribution(
            logits[drawn], temperature=mine[:, TEMPERATURE], top_k=mine[:, TOP_K].long(), top_p=mine[:, TOP_P]
        )
        picked = choose.pick(probs, uniform[block, at])
        choice[block, at], conf[block, at] = picked.token, picked.conf
        for stat, shape in SHAPES.items():
            if stat in stats:
                stats[stat][block, at] = shape(probs)
