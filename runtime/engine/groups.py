"""A rule of the step and its blocks: which of the sampled rows are its own, and what it does with and learns of their
logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from runtime.samplers import choose
from runtime.samplers.base import MERGED, Rows, Rule, Stat
from runtime.state.plan import RulePlan

Place = tuple[torch.Tensor, torch.Tensor]  # block and offset of each row


@dataclass(frozen=True)
class Group:
    """A rule and its blocks: `members` of the plan's, None for all of them, each row of `params` one of them."""

    rule: Rule
    members: torch.Tensor | None
    local: torch.Tensor | None  # [n]: each block's place among the members, -1 if it is none
    params: torch.Tensor
    wants: Stat
    kept: torch.Tensor | None
    top: choose.Top | None  # [its blocks, B, count], to be written

    def rows(self, block: torch.Tensor) -> torch.Tensor | slice:
        """Which of some rows are its own, by their blocks."""
        return slice(None) if self.local is None else (self.local[block] >= 0).nonzero()[:, 0]

    def own(self, block: torch.Tensor) -> torch.Tensor:
        """The numbers of blocks of the plan, which are its own, among its own."""
        return block if self.local is None else self.local[block]

    def current(self, logits: torch.Tensor, here: Place, tokens: torch.Tensor, current: torch.Tensor) -> None:
        """Writes the plain probability of the token at each of the group's positions."""
        mine = self.rows(here[0])
        place = here[0][mine], here[1][mine]
        current[place] = choose.probability(logits[mine], tokens[place].clamp(max=logits.shape[1] - 1))

    def adjust(
        self, logits: torch.Tensor, here: Place, tokens: torch.Tensor, masked: torch.Tensor, advanced: torch.Tensor
    ) -> None:
        """In place: the rule's own changes to the logits of its rows."""
        mine = self.rows(here[0])
        block, at = self.own(here[0][mine]), here[1][mine]
        if self.members is not None:
            tokens, masked, advanced = tokens[self.members], masked[self.members], advanced[self.members]
        some = logits[mine]  # of all rows a view, of some a copy
        params, columns = self.params[block], self.rule.columns
        self.rule.adjust(some, Rows(tokens, masked, block, at, advanced[block], params, columns, self.kept))
        if self.local is not None:
            logits[mine] = some

    def likeliest(self, logits: torch.Tensor, here: Place) -> None:
        """Writes into `top` the likeliest tokens at each of the group's positions, as many as its request mixes."""
        assert self.top is not None
        mine = self.rows(here[0])
        block, at = self.own(here[0][mine]), here[1][mine]
        found = choose.top(logits[mine], self.top.ids.shape[2])
        own = self.params[block, self.rule.columns[MERGED.name]]
        beyond = torch.arange(self.top.ids.shape[2], device=block.device) >= own[:, None]
        self.top.ids[block, at], self.top.probs[block, at] = found.ids, found.probs.masked_fill(beyond, 0)


def make_group(
    rule: Rule, tokens: torch.Tensor, plan: RulePlan, kind: torch.dtype, put: Callable[[np.ndarray], torch.Tensor]
) -> Group:
    """The group of a plan's rule, on the device.

    Args:
        tokens: int64 [n, B] of all the plan's blocks, on the device. kind: float dtype of the probabilities. put: from
            the host to the device.
    """
    params, wants = put(plan.params), Stat(plan.wants)
    kept = None if plan.kept is None else put(plan.kept)
    top = None
    if wants & Stat.TOP and MERGED.name in rule.columns:
        count = int(plan.params[:, rule.columns[MERGED.name]].max())
        ids = tokens.new_zeros((len(plan.members), tokens.shape[1], count))
        top = choose.Top(ids, torch.zeros_like(ids, dtype=kind))
    if len(plan.members) == len(tokens):
        return Group(rule, None, None, params, wants, kept, top)
    members = put(plan.members)
    local = torch.full((len(tokens),), -1, dtype=torch.int64, device=members.device)
    local[members] = torch.arange(len(members), device=members.device)
    return Group(rule, members, local, params, wants, kept, top)
