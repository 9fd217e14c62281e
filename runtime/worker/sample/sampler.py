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
    Orders,
    Rule,
    Stat,
    rules_under,
)
from runtime.algorithms.logits_ops import WHOLE, Vocabulary
from runtime.engine.request import FILLED, MASKED
from runtime.engine.step_plan import BlockPlan
from runtime.kernels.ops import Kernels
from runtime.layers.lm_head import CappedHead, PlainHead
from runtime.worker.input_batch import SampleShape, sample_inputs
from runtime.worker.sample.algorithm_groups import Given, Group, Place, make_groups
from runtime.worker.sample.fused_renoise import described, noise_alone
from runtime.worker.sample.logits_processors import shape_logits

# Rows of logits at a time: bounds the head's memory (a vocabulary of 157k in float32 is 0.6 GB a thousand rows).
HEAD_ROWS = 2048
# Of those, how many draw at a time: top-k and top-p sort the vocabulary and sum it in float64, eight times the logits.
DRAW_ROWS = 256

# What each statistic is called in a BlockBatch, and what stands where a position was not sampled.
STATS = {Stat.CURRENT: ("current", 1.0), Stat.MARGIN: ("margin", -math.inf), Stat.ENTROPY: ("entropy", math.inf)}

_LATE, _NEVER = (SUPPRESS_EOS.choices.index(word) for word in ("confidence", "logits"))

Stats = dict[Stat, torch.Tensor]  # [n, B] of each that is wanted
Soften = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]  # see ``SelfConditioned``


def bare(shape: SampleShape) -> bool:
    """Whether nobody wants more of the logits than which is the largest, and its probability."""
    more = any(group.wants & ~Stat.BEST for group in shape.groups)
    return not (shape.drawn or shape.noise or shape.shaped or more)


class Head:
    """Args:
    logits: [rows, hidden] -> [rows, vocab]; a plain head that has a direct way is asked for the likeliest tokens where
        nobody wants more. mask_id, max_token_id: see EngineInfo. eos_ids: int64 [ids], theirs.
    orders: what the model orders edits with; it may choose them though they lie above the largest id.
    soften: see ``SelfConditioned``, of a model that is. vocabulary: of the logits.
    """

    def __init__(
        self,
        logits: Callable[[torch.Tensor], torch.Tensor],
        *,
        mask_id: int | None,
        max_token_id: int,
        eos_ids: torch.Tensor,
        orders: Orders | None = None,
        soften: Soften | None = None,
        vocabulary: Vocabulary = WHOLE,
    ) -> None:
        self.logits = logits
        self.vocabulary = vocabulary
        # how those are computed that describe the distribution which a candidate is taken from, and that of logits
        self.shapes = {Stat.MARGIN: vocabulary.margin, Stat.ENTROPY: vocabulary.entropy}
        self.shapes_of = {Stat.MARGIN: vocabulary.margin_of, Stat.ENTROPY: vocabulary.entropy_of}
        self.plain = logits if isinstance(logits, PlainHead) and logits.direct else None
        self.capped = None  # its kernels see all of a vocabulary
        if isinstance(logits, CappedHead) and logits.kernels.describe is not None and not vocabulary.shared:
            self.capped = logits
        kernels: Kernels | None = getattr(logits, "kernels", None)
        self.draw = None if kernels is None or vocabulary.shared else kernels.draw
        self.soften = soften
        self.mask_id = mask_id
        self.max_token_id = max_token_id
        self.eos_ids = eos_ids
        self.eos_columns = vocabulary.columns(eos_ids)
        self.rules = rules_under(orders)
        ids = () if orders is None else (orders.delete, orders.split)
        self.spared = [token for token in ids if token > max_token_id]

    def likeliest(self, head: PlainHead, hidden: torch.Tensor, live: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[rows, hidden] -> token int64 [rows] and its probability [rows], of the head that is `plain`."""
        mask, last = self.mask_id, self.max_token_id
        return head.likeliest(hidden, mask_id=mask, max_token_id=last, spared=self.spared, live=live)

    def together(self, shape: SampleShape) -> bool:
        """Whether a block's results have the same bits whatever blocks are beside it: products and sums are kernels'
        own, and rules compare. Of deterministic kernels."""
        return self.plain is not None and bare(shape)

    def groups(
        self,
        plan: BlockPlan,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        state: torch.Tensor,
        signal: torch.Tensor | None = None,
    ) -> Iterator[tuple[Rule, torch.Tensor | None, BlockBatch]]:
        """`decide_on` a plan. tokens, state: the plan's, on the device."""
        shape, arrays = sample_inputs(plan, self.rules)
        given = {name: torch.from_numpy(array).to(hidden.device) for name, array in arrays.items()}
        given |= {"block_tokens": tokens, "block_state": state}
        return self.decide_on(shape, given, hidden[given["rows"]], signal)

    def decide_on(  # noqa: C901 - all steps of sampling, whose order matters, in one place
        self,
        shape: SampleShape,
        given: Given,
        hidden: torch.Tensor,
        signal: torch.Tensor | None = None,
        *,
        fixed: bool = False,
    ) -> Iterator[tuple[Rule, torch.Tensor | None, BlockBatch]]:
        """Of each rule of the step: the rule, its blocks' numbers (None: all blocks), and what it decides with.

        Args:
            hidden: [n, hidden] of the sampled positions, in their order. given: see ``worker.input_batch``.
            signal: [n, B, hidden], to be written where a rule asks for it.
            fixed: launch the same whatever the contents, and ask the host nothing.
        """
        tokens, state = given["block_tokens"], given["block_state"]
        masked, filled = state == MASKED, state == FILLED
        advanced = given["advanced"]
        kind = hidden.dtype if hidden.dtype == torch.float64 else torch.float32
        rules = [self.rules(group.rule) for group in shape.groups]
        groups = make_groups(rules, shape.groups, given, shape.size, kind, self.vocabulary)
        choice = tokens.clone()
        conf = torch.full(choice.shape, float("-inf"), dtype=kind, device=hidden.device)
        wanted = Stat(functools.reduce(operator.or_, (group.wants for group in groups)))
        stats = {stat: torch.full_like(conf, none) for stat, (_, none) in STATS.items() if stat & wanted}
        likeliest = tokens.clone() if Stat.BEST & wanted else None
        vocab = 0

        block_of, at = given["block"], given["at"]
        direct = self.plain if bare(shape) else None
        if direct is not None and shape.rows:
            token, conf[block_of, at] = self.likeliest(direct, hidden, given["live"])
            choice[block_of, at] = token
            if likeliest is not None:
                likeliest[block_of, at] = token
        capped = self.capped if not self.spared and noise_alone(shape, groups) else None
        if capped is not None:
            vocab = capped.weight.shape[0]
            for here, found in described(
                capped, groups[0], hidden, given, (tokens, masked, advanced), most=HEAD_ROWS, mask_id=self.mask_id,
                max_token_id=self.max_token_id, softens=signal is not None, fixed=fixed,
            ):  # fmt: skip
                choice[here], conf[here], stats[Stat.ENTROPY][here] = found.token, found.conf, found.entropy
                if likeliest is not None:
                    likeliest[here] = found.best
                if signal is not None and found.probs is not None:
                    assert self.soften is not None
                    signal[here] = self.soften(found.probs, found.divisor)
        for start in range(0, shape.rows if direct is None and capped is None else 0, HEAD_ROWS):
            part = slice(start, min(start + HEAD_ROWS, shape.rows))
            here = (block_of[part], at[part])
            logits = self.logits(hidden[part])
            vocab = self.vocabulary.size(logits)
            self.vocabulary.ban(logits, mask_id=self.mask_id, max_token_id=self.max_token_id, spared=self.spared)
            if shape.shaped:
                shape_logits(logits, given, *here, self.vocabulary)
            for group in groups:
                span = group.within(part)
                if span is None:
                    continue
                mine, place = logits[span.part], (block_of[span.rows], at[span.rows])
                own = (group.own[span.rows], place[1])
                if group.wants & Stat.SUPPRESS:
                    self._ban_eos(group, mine, own)
                if group.wants & Stat.CURRENT:
                    group.current(mine, place, tokens, stats[Stat.CURRENT])
                if group.wants & Stat.ADJUST:
                    group.rule.adjust(mine, group.seen(own, tokens, masked, advanced, fixed=fixed))
                self._describe(group, mine, place, stats)
                if group.wants & Stat.SIGNAL and signal is not None:
                    assert self.soften is not None
                    self._soften(mine, place, self.soften, signal)
                if group.top is not None:
                    group.likeliest(mine, own)
            best = self.vocabulary.greedy(logits)
            choice[here], conf[here] = best.token, best.conf
            if likeliest is not None:
                likeliest[here] = best.token
            self._draw(groups, part, logits, given, choice, conf, stats)

        whole = {
            "tokens": tokens,
            "masked": masked,
            "filled": filled,
            "choice": choice,
            "conf": conf,
            "remasked": given["remasked"] if shape.remasked else torch.zeros_like(masked),
            "may_force": given["may_force"],
            "advanced": advanced,
            "initial_masks": given["initial_masks"],
            "given_steps": given["given_steps"],
            "post_edit_steps": given["post_edit_steps"],
        }
        noise = (given["noise"] * vocab).long() if shape.noise else None
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

    def raw(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, vocab], all of it everywhere: what may not be predicted is -inf, nothing else is changed."""
        logits = self.vocabulary.every(self.logits(hidden))
        sampling.ban(logits, mask_id=self.mask_id, max_token_id=self.max_token_id, spared=self.spared)
        return logits

    def _ban_eos(self, group: Group, logits: torch.Tensor, own: Place) -> None:
        """In place: an end of sequence is not predicted where the request says so."""
        never = group.params[own[0], group.rule.columns[SUPPRESS_EOS.name]] == _NEVER
        logits[:, self.eos_columns] = logits[:, self.eos_columns].masked_fill(never[:, None], -math.inf)

    def _held_back(self, group: Group, some: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The confidence and the like where candidates that end the sequence come last (`shared.late`)."""
        is_eos = (some["choice"][:, :, None] == self.eos_ids).any(2) & (some["conf"] > -math.inf)
        late = is_eos & (group.params[:, group.rule.columns[SUPPRESS_EOS.name]] == _LATE)[:, None]
        least = torch.finfo(some["conf"].dtype).min
        ends = {"conf": least, "margin": least, "entropy": -least}
        return {name: some[name].masked_fill(late, end) for name, end in ends.items() if name in some}

    def _draw(
        self, groups: list[Group], part: slice, logits: torch.Tensor, given: Given, choice: torch.Tensor,
        conf: torch.Tensor, stats: Stats,
    ) -> None:  # fmt: skip
        """Those rows of a part of the sampled ones that draw do so instead of taking the likeliest."""
        before = 0  # rows that draw, of the groups before
        for group in groups:
            shape = group.shape
            span = group.within(part, shape.drawn) if shape.drawn else None
            first = group.first + shape.rows - shape.drawn - before  # what is given of the row at n is at n - first
            before += shape.drawn
            if span is None:
                continue
            limited, begin, end = group.first + shape.rows - shape.limited, span.rows.start, span.rows.stop
            if self.draw is not None and not any(stat & group.wants for stat in self.shapes):
                here, some = (given["block"][span.rows], given["at"][span.rows]), slice(begin - first, end - first)
                choice[here], conf[here] = self.draw(
                    logits[span.part], given["limits"][some], given["uniform"][some],
                    free=min(max(limited - begin, 0), end - begin),
                )  # fmt: skip
                continue
            for start in range(begin, end, DRAW_ROWS):
                some = slice(start, min(start + DRAW_ROWS, end))
                limits = given["limits"][some.start - first : some.stop - first]
                probs = self.vocabulary.distribution(
                    logits[some.start - part.start : some.stop - part.start],
                    temperature=limits[:, TEMPERATURE],
                    top_k=limits[:, TOP_K].long(),
                    top_p=limits[:, TOP_P],
                    min_p=limits[:, MIN_P],
                    free=min(max(limited - some.start, 0), some.stop - some.start),
                )
                picked = self.vocabulary.pick(probs, given["uniform"][some.start - first : some.stop - first])
                here = given["block"][some], given["at"][some]
                choice[here], conf[here] = picked.token, picked.conf
                for stat, shape_of in self.shapes.items():
                    if stat in stats:
                        stats[stat][here] = shape_of(probs)

    def _describe(self, group: Group, logits: torch.Tensor, here: Place, stats: Stats) -> None:
        """The shape of the distribution at each of some of the group's positions, as if none drew."""
        for stat in (stat for stat in self.shapes_of if stat & group.wants):
            for start in range(0, len(logits), DRAW_ROWS):
                some = slice(start, start + DRAW_ROWS)
                stats[stat][here[0][some], here[1][some]] = self.shapes_of[stat](logits[some])

    def _soften(self, logits: torch.Tensor, here: Place, soften: Soften, signal: torch.Tensor) -> None:
        """What the model makes of the distribution at each of some positions, as if none drew."""
        for start in range(0, len(logits), DRAW_ROWS):
            some = slice(start, start + DRAW_ROWS)
            signal[here[0][some], here[1][some]] = soften(self.vocabulary.softmax(logits[some]), None)
