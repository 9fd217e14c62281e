"""Interface of unmasking algorithms (docs/decoding-rules.md#unmasking-algorithms): inputs and decisions as tensors."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeVar

import torch

from runtime.algorithms.logits_ops import WHOLE, Vocabulary
from runtime.algorithms.sampling import Top
from runtime.errors import ConfigError
from runtime.request.field_spec import Field, Value

# The first columns of every parameter row: how a candidate is drawn, whatever the rule.
TEMPERATURE, TOP_P, TOP_K, MIN_P = range(4)
_COMMON = ("temperature", "top_p", "top_k", "min_p")
FREE = (1.0, 1.0, 0.0, 0.0)  # drawn, under no limit

# The head knows this field, so that a rule has no more to do for it than to declare it.
SUPPRESS_EOS = Field(
    name="suppress_eos", kind="choice", choices=("none", "confidence", "logits"), default="none", neutral="none",
    help="confidence: positions that choose an end of sequence come last and pass no threshold; logits: none does",
)  # fmt: skip

# And so this one, where Stat.TOP is asked for.
MERGED = Field(
    name="token_merge_top_k", kind="integer", default=1, low=1, high=64, help="likeliest tokens that are mixed"
)


class Stat(enum.IntFlag):
    """What a rule wants of the head beside each position's candidate and its confidence."""

    NONE = 0
    CURRENT = enum.auto()  # the probability of a position's own token
    MARGIN = enum.auto()  # the likeliest token's lead, of the distribution that the candidate was taken from
    ENTROPY = enum.auto()  # that distribution's, in nats
    ADJUST = enum.auto()  # the rule changes the logits first (`Rule.adjust`)
    SUPPRESS = enum.auto()  # SUPPRESS_EOS is not "none"
    BEST = enum.auto()  # the likeliest token, whatever was drawn
    SIGNAL = enum.auto()  # nothing: the model's own next step is told of the distribution, which no preemption outlives
    TOP = enum.auto()  # the MERGED likeliest tokens and their probabilities, whatever was drawn


@dataclass(frozen=True)
class Orders:
    """Edit tokens of a model, which no answer contains (docs/decoding-rules.md#insert-and-delete)."""

    delete: int
    split: int


@dataclass(frozen=True)
class Tradeoff:
    """By which of its fields a rule trades accuracy for speed, and values of it that show how, from careful to fast.

    Like its default they are in blocks where the field is `per_block`.
    """

    field: Field
    values: tuple[float, ...]

    def served(self, block_size: int) -> tuple[float, ...]:
        """The values where blocks are of `block_size` tokens; those that come to the same are there once."""
        if not self.field.per_block:
            return self.values
        return tuple(dict.fromkeys(max(int(self.field.low), int(value * block_size)) for value in self.values))


@dataclass(frozen=True)
class BlockBatch:
    """`n` ACTIVE blocks of `B` positions that share a rule, as they were before this forward.

    `choice` and `conf` hold this step's candidate and its probability where a position was sampled; elsewhere the
    current token and -inf. A statistic that no block's rule asked for is None. A candidate that SUPPRESS_EOS holds back
    has the least finite confidence and margin and the largest finite entropy.
    """

    tokens: torch.Tensor  # int64 [n, B]
    masked: torch.Tensor  # bool [n, B]
    filled: torch.Tensor  # bool [n, B]; neither masked nor filled: fixed
    choice: torch.Tensor  # int64 [n, B]
    conf: torch.Tensor  # float [n, B]
    remasked: torch.Tensor  # bool [n, B], positions masked again once already
    may_force: torch.Tensor  # bool [n]
    advanced: torch.Tensor  # int64 [n], earlier steps in which the block might force
    initial_masks: torch.Tensor  # int64 [n]
    given_steps: torch.Tensor  # int64 [n], the block's share of a total; 0: `shared.STEPS` counts
    post_edit_steps: torch.Tensor  # int64 [n], earlier steps that began with no mask
    params: torch.Tensor  # float64 [n, len(columns)], constant over a request's life
    columns: Mapping[str, int]  # of `params`, by the fields' names
    current: torch.Tensor | None = None  # float [n, B], Stat.CURRENT; 1.0 where a position was not sampled
    margin: torch.Tensor | None = None  # float [n, B], Stat.MARGIN; -inf there
    entropy: torch.Tensor | None = None  # float [n, B], Stat.ENTROPY; inf there
    best: torch.Tensor | None = None  # int64 [n, B], Stat.BEST; the current token there
    noise: torch.Tensor | None = None  # int64 [n, B], of a noisy rule: ids drawn uniformly from the vocabulary
    top: Top | None = None  # [n, B, most of MERGED], Stat.TOP; probabilities 0 there, and past a block's own MERGED
    kept: torch.Tensor | None = None  # float64 [n, B, records, len(Rule.keeps)], to be written in place

    def value(self, name: str) -> torch.Tensor:
        """[n]: the blocks' values of a field. KeyError for a field that the rule does not declare."""
        return self.params[:, self.columns[name]]

    def param(self, name: str) -> torch.Tensor:
        """[n, 1]: `value`, to compare with [n, B]."""
        return self.value(name)[:, None]

    def capped(self) -> torch.Tensor:
        """bool [n, 1]: this step fills what is still masked, by `shared.MAX_STEPS`."""
        return (self.may_force & (self.advanced + 1 >= self.value("max_steps_per_block")))[:, None]


@dataclass(frozen=True)
class Rows:
    """Sampled positions of `n` blocks that share a rule, as `Rule.adjust` sees them."""

    tokens: torch.Tensor  # int64 [n, B]
    masked: torch.Tensor  # bool [n, B]
    block: torch.Tensor  # int64 [rows], each row's block
    at: torch.Tensor  # int64 [rows], its offset there
    advanced: torch.Tensor  # int64 [rows], as in BlockBatch, of each row's block
    params: torch.Tensor  # float64 [rows, len(columns)]
    columns: Mapping[str, int]
    kept: torch.Tensor | None  # as in BlockBatch
    fixed: bool = False  # what is launched may not depend on any content, nor may the host be told of it
    vocabulary: Vocabulary = WHOLE  # of the logits: processes may share it

    def value(self, name: str) -> torch.Tensor:
        """[rows]: each row's value of a field of the rule."""
        return self.params[:, self.columns[name]]


@dataclass(frozen=True)
class Decision:
    """What a rule decided: the blocks' content after this step, and what was done to them. That may be anything where
    positions are not fixed: what stood at one may stand at another, or nowhere."""

    tokens: torch.Tensor  # int64 [n, B]
    masked: torch.Tensor  # bool [n, B]
    forced: torch.Tensor  # bool [n], nothing passed the threshold and the best was taken
    edited: (
        torch.Tensor
    )  # bool [n, B], FILLED positions, as they were before the step, that were replaced, deleted or split
    remasked: torch.Tensor  # bool [n, B], FILLED positions that were masked again
    ended: torch.Tensor  # bool [n], the content will not change any more
    mixture: Top | None = None  # [n, B, count], of which FILLED positions' embeddings are made until the blocks settle


class Merge(NamedTuple):
    """Parameters of docs/decoding-rules.md#soft-embeddings, computed by ``runtime.layers.embedding``."""

    smooth: bool  # added to the token's own, instead of to the mask's for what the tokens leave of 1
    weight: float  # what they are multiplied by then
    renormalize: bool  # else: brought to the length that the mixed ones have on average


class Rule:
    """One acceptance rule; the object keeps nothing between calls.

    Attributes:
        key: what ``decoding.algorithm`` calls it.
        fields: what a request may set for it; those that several rules share stand in `runtime/algorithms/common.py`.
        tradeoff: the field that says how careful it is, for pictures of the rule (``python -m runtime.bench sweep``);
            None: they show it at its defaults.
        modes: each mode as values of some of the fields; without modes a request's ``mode`` is refused.
        edits: it changes FILLED positions, so a full block has not ended (docs/decoding-rules.md#algorithm-edit); the
            family must support it.
        walks: its threshold is the one by which an answer that keeps to a grammar is filled from the left
            (``runtime.worker.sample.constrained_decoding``).
        moves: what stands at a position may come to stand at another.
        noisy: it denoises noise instead of masks, for strategies that are noisy too. All of an open block is MASKED
            before each step; what the rule does not fill becomes noise again, and its `adjust` divides the logits by
            its `heat` and does no more.
        strategies: those that it goes with, which then go with no other rule; (): all that no rule names.
        keeps: what a record says, for a rule that remembers something of each position of a block from one step to
            the next. A block's records are `BlockBatch.kept`, the last of them new and all 0; what is still 0 there
            after the step is left out of the next one.
        once: it has one record a position, which it writes anew in each step, and none is new.
        plain: its threshold and its most steps, of a rule that fills, where it wants nothing of the head, as
            ``kernels.unmask`` does.
    """

    key: ClassVar[str]
    fields: ClassVar[tuple[Field, ...]] = ()
    tradeoff: ClassVar[Tradeoff | None] = None
    modes: ClassVar[dict[str, dict[str, Value]]] = {}
    edits: ClassVar[bool] = False
    walks: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    noisy: ClassVar[bool] = False
    strategies: ClassVar[tuple[str, ...]] = ()
    keeps: ClassVar[tuple[str, ...]] = ()
    once: ClassVar[bool] = False
    plain: ClassVar[tuple[Field, Field] | None] = None

    def __init__(self) -> None:
        self.columns = {name: i for i, name in enumerate((*_COMMON, *(field.name for field in self.fields)))}

    def row(self, values: Mapping[str, Value]) -> list[float]:
        """A request's values of the rule's own fields in their columns' order; a choice is its number, from 0."""
        return [
            float(field.choices.index(str(values[field.name])) if field.choices else values[field.name])
            for field in self.fields
        ]

    def wants(self, values: Mapping[str, Value]) -> Stat:
        """What `decide` reads of a request's blocks, beside choice and conf."""
        return Stat.NONE

    def asks(self, values: Mapping[str, Value]) -> Stat:
        """All that a request's blocks ask of the head."""
        suppresses = values.get(SUPPRESS_EOS.name, SUPPRESS_EOS.default) != SUPPRESS_EOS.default
        return self.wants(values) | (Stat.SUPPRESS if suppresses else Stat.NONE)

    def unstable(self, values: Mapping[str, Value]) -> bool:
        """Whether FILLED positions may still change: then they are sampled too, and text waits for the block's end."""
        return self.edits

    def merge(self, values: Mapping[str, Value]) -> Merge | None:
        """What becomes of `Decision.mixture`, for a rule that decides one."""
        return None

    def adjust(self, logits: torch.Tensor, rows: Rows) -> None:
        """Change `logits` [rows, vocab] in place, before anything is chosen; called where Stat.ADJUST was asked for.
        What looks at more than each logit alone goes through `rows.vocabulary`: some of it may be elsewhere."""

    def heat(self, rows: Rows) -> torch.Tensor:
        """[rows]: what a noisy rule divides logits by, the temperature with which rows that draw do so in it."""
        raise NotImplementedError

    def decide(self, blocks: BlockBatch) -> Decision:
        raise NotImplementedError


R = TypeVar("R", bound=type[Rule])
H = TypeVar("H", bound=Callable[[Orders], Rule])
_RULES: dict[str, Rule] = {}
_HEEDING: dict[str, Callable[[Orders], Rule]] = {}


def register_rule(rule: R) -> R:
    """Make a rule selectable as ``decoding.algorithm``. A field's name means the same kind of value in every rule."""
    if rule.key in _RULES:
        raise ValueError(f"acceptance rule {rule.key!r} is registered twice")
    known = {field.name: field for other in _RULES.values() for field in other.fields}
    for field in rule.fields:
        if known.get(field.name, field).kind != field.kind:
            raise ValueError(f"{rule.key}: field {field.name!r} is of another kind in another rule")
    if rule.tradeoff is not None and rule.tradeoff.field not in rule.fields:
        raise ValueError(f"{rule.key}: {rule.tradeoff.field.name!r}, by which it trades, is none of its fields")
    _RULES[rule.key] = rule()
    return rule


def register_heeding(key: str) -> Callable[[H], H]:
    """Make a rule stand in for the one called `key` where the model gives orders."""

    def add(make: H) -> H:
        if key in _HEEDING:
            raise ValueError(f"acceptance rule {key!r} heeds orders twice")
        _HEEDING[key] = make
        return make

    return add


def rules() -> list[str]:
    return sorted(_RULES)


def rules_of(strategy: str) -> list[Rule]:
    """Those that go with a strategy: its own, or all that are nobody's own."""
    every = [_RULES[key] for key in rules()]
    own = [rule for rule in every if strategy in rule.strategies]
    return own or [rule for rule in every if not rule.strategies]


def get_rule(key: str) -> Rule:
    if key not in _RULES:
        raise ConfigError(f"acceptance rule {key!r} is not known; known: {', '.join(rules())}")
    return _RULES[key]


def rules_under(orders: Orders | None) -> Callable[[str], Rule]:
    """`get_rule` for a model that gives `orders` (None: none), the same object for the same key each time."""
    if orders is None:
        return get_rule
    heeding = {key: make(orders) for key, make in _HEEDING.items()}
    return lambda key: heeding[key] if key in heeding else get_rule(key)
