"""Interface of unmasking algorithms, and the fields and functions that several of them use.

See docs/research/decoding-rules.md#unmasking-algorithms."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import torch

from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS, LogitsOps, TopTokens
from runtime.errors import ConfigError
from runtime.plugins import Registry
from runtime.request.field_spec import Field, Value, fraction_field

if TYPE_CHECKING:
    from runtime.request.engine_messages import EngineInfo

# The first columns of every parameter row: the sampling parameters, which do not depend on the algorithm.
TEMPERATURE, TOP_P, TOP_K, MIN_P = range(4)
_SAMPLING_COLUMNS = ("temperature", "top_p", "top_k", "min_p")
NO_FILTERS = (1.0, 1.0, 0.0, 0.0)  # values of these columns: sampled from the unfiltered distribution

# The sampler implements this field. An algorithm only has to declare it.
SUPPRESS_EOS = Field(
    name="suppress_eos", kind="choice", choices=("none", "confidence", "logits"), default="none", neutral="none",
    help="confidence: end-of-sequence candidates rank last and pass no threshold; logits: they are never sampled",
)  # fmt: skip

# The sampler implements this field too, for algorithms that require LogitStat.TOP_K.
TOKEN_MERGE_TOP_K = Field(
    name="token_merge_top_k", kind="integer", default=1, low=1, high=64, help="most probable tokens in a soft embedding"
)


CACHE_SIZE = 256  # most requests use the defaults


class LogitStat(enum.IntFlag):
    """Statistics of the logits that an algorithm requires, in addition to the candidates and their confidence."""

    NONE = 0
    TOKEN_PROB = enum.auto()  # probability of the current token of each position
    MARGIN = enum.auto()  # difference of the two largest probabilities of the distribution of the candidate
    ENTROPY = enum.auto()  # entropy of the distribution of the candidate, in nats
    PROCESS_LOGITS = enum.auto()  # calls `UnmaskingAlgorithm.process_logits` before candidates are computed
    SUPPRESS_EOS = enum.auto()  # the field SUPPRESS_EOS is not "none"
    ARGMAX = enum.auto()  # the most probable token, even if the candidate was sampled
    SELF_CONDITIONING = enum.auto()  # keeps the distribution on the device for the next step; lost on preemption
    TOP_K = enum.auto()  # the TOKEN_MERGE_TOP_K most probable tokens and their probabilities


@dataclass(frozen=True)
class EditTokens:
    """Ids of the model's edit tokens, which no output contains (docs/research/decoding-rules.md#insert-and-delete)."""

    delete: int
    split: int

    @classmethod
    def of(cls, info: EngineInfo) -> EditTokens | None:
        """Returns those of the served model; None if it has none."""
        if info.delete_token_id is None or info.split_token_id is None:
            return None
        return cls(info.delete_token_id, info.split_token_id)


@dataclass(frozen=True)
class SpeedAccuracyKnob:
    """The field of an algorithm that trades accuracy for speed.

    Attributes:
        values: values that show the tradeoff, from accurate to fast. Like the default of the field, they are in blocks
            if the field is `per_block`.
    """

    field: Field
    values: tuple[float, ...]

    def values_for(self, block_size: int) -> tuple[float, ...]:
        """Returns the values for blocks of `block_size` tokens, without duplicates."""
        if not self.field.per_block:
            return self.values
        return tuple(dict.fromkeys(max(int(self.field.low), int(value * block_size)) for value in self.values))


@dataclass(frozen=True)
class BlockBatch:
    """`n` open blocks of `B` positions that use the same algorithm, in their state before this forward pass.

    Positions that were not sampled have their current token as candidate and -inf as confidence. A statistic that no
    block requires is None. A candidate that SUPPRESS_EOS suppresses has the lowest finite confidence and margin, and
    the highest finite entropy.
    """

    tokens: torch.Tensor  # int64 [n, B]
    masked: torch.Tensor  # bool [n, B]
    unmasked: torch.Tensor  # bool [n, B]; positions that are neither masked nor unmasked are FIXED
    candidates: torch.Tensor  # int64 [n, B]
    confidence: torch.Tensor  # float [n, B], probability of the candidate
    remasked: torch.Tensor  # bool [n, B], positions that were remasked in an earlier step
    must_advance: torch.Tensor  # bool [n], the step must unmask a position: by force if none passes the threshold
    num_steps: torch.Tensor  # int64 [n], earlier steps with `must_advance`
    initial_masks: torch.Tensor  # int64 [n]
    step_budget: torch.Tensor  # int64 [n], steps of the block out of a total; 0: the field STEPS applies
    post_edit_steps: torch.Tensor  # int64 [n], earlier steps that began without masks
    params: torch.Tensor  # float64 [n, len(columns)], constant for the lifetime of a request
    columns: Mapping[str, int]  # column of `params` for each field name
    token_prob: torch.Tensor | None = None  # float [n, B], LogitStat.TOKEN_PROB; 1.0 where not sampled
    margin: torch.Tensor | None = None  # float [n, B], LogitStat.MARGIN; -inf where not sampled
    entropy: torch.Tensor | None = None  # float [n, B], LogitStat.ENTROPY; inf where not sampled
    argmax: torch.Tensor | None = None  # int64 [n, B], LogitStat.ARGMAX; the current token where not sampled
    noise_tokens: torch.Tensor | None = None  # int64 [n, B], uniformly random ids, if the algorithm has `uniform_noise`
    # [n, B, largest TOKEN_MERGE_TOP_K], LogitStat.TOP_K; probability 0 where not sampled, and past the block's value
    top_k: TopTokens | None = None
    history: torch.Tensor | None = None  # float64 [n, B, records, len(history_fields)], updated in place

    def value(self, name: str) -> torch.Tensor:
        """Returns the value of a field for each block, [n]. KeyError if the algorithm does not declare the field."""
        return self.params[:, self.columns[name]]

    def param(self, name: str) -> torch.Tensor:
        """Returns `value` as [n, 1], for comparisons with [n, B]."""
        return self.value(name)[:, None]

    def at_step_limit(self) -> torch.Tensor:
        """Returns a bool [n, 1]: this step has to unmask all masked positions, because of MAX_STEPS."""
        return (self.must_advance & (self.num_steps + 1 >= self.value("max_steps_per_block")))[:, None]


@dataclass(frozen=True)
class SampledRows:
    """The sampled positions of `n` blocks that use the same algorithm: input of `process_logits`."""

    tokens: torch.Tensor  # int64 [n, B]
    masked: torch.Tensor  # bool [n, B]
    block: torch.Tensor  # int64 [rows], index of the block of each row
    offset: torch.Tensor  # int64 [rows], position of each row in its block
    num_steps: torch.Tensor  # int64 [rows], as in BlockBatch, of the block of each row
    params: torch.Tensor  # float64 [rows, len(columns)]
    columns: Mapping[str, int]
    history: torch.Tensor | None  # as in BlockBatch
    graph_safe: bool = False  # launch the same kernels for any content, without host synchronization
    logits_ops: LogitsOps = DEFAULT_LOGITS_OPS  # operations on the logits, which may be sharded over the vocabulary

    def value(self, name: str) -> torch.Tensor:
        """Returns the value of a field of the algorithm for each row, [rows]."""
        return self.params[:, self.columns[name]]


@dataclass(frozen=True)
class BlockUpdate:
    """The content of the blocks after this step, and what changed.

    All positions that are not FIXED may change. The algorithm may also move tokens to other positions.
    """

    tokens: torch.Tensor  # int64 [n, B]
    masked: torch.Tensor  # bool [n, B]
    forced: torch.Tensor  # bool [n], no position passed the threshold, and the best one was unmasked
    edited: torch.Tensor  # bool [n, B], unmasked positions before the step that were replaced, deleted or split
    remasked: torch.Tensor  # bool [n, B], unmasked positions that were masked again
    finished: torch.Tensor  # bool [n], steps of the block no longer change its tokens
    soft_tokens: TopTokens | None = None  # [n, B, count], of the soft embeddings of unmasked positions


class SoftEmbeddingParams(NamedTuple):
    """Parameters of docs/research/decoding-rules.md#soft-embeddings, see ``runtime.layers.embedding``."""

    smooth: bool  # add the mixture to the token's embedding. False: the mask's embedding gets the remaining probability
    weight: float  # factor of the mixture if `smooth`
    renormalize: bool  # otherwise: scale the mixture to the mean norm of the mixed embeddings


class UnmaskingAlgorithm:
    """An unmasking algorithm: it decides which positions of a block are unmasked. Instances have no state.

    Attributes:
        key: value of ``decoding.algorithm``.
        fields: fields that a request may set. Fields of several algorithms are in `runtime/algorithms/base.py`.
        speed_accuracy_knob: the field that ``python -m runtime.bench sweep`` varies. None: it measures the defaults.
        modes: values of some fields for each mode. Without modes, the ``mode`` of a request is rejected.
        edits: it changes unmasked positions, so a block without masks is not finished
            (docs/research/decoding-rules.md#algorithm-edit). The family must support it.
        supports_grammar: its threshold also applies to constrained decoding, which unmasks from left to right
            (``runtime.worker.constrained_decoding``).
        reorders_tokens: tokens may move to other positions.
        uniform_noise: it denoises noise instead of masks, for strategies that have `uniform_noise` too. All positions
            of an open block are MASKED before each step, and those that stay masked get new noise. `process_logits`
            only divides the logits by `temperature`.
        strategies: the strategies that this algorithm works with. They work with no other algorithm. (): all strategies
            without an algorithm of their own.
        history_fields: names of the values that it records per position in each step. `BlockBatch.history` has all
            records of a block. The last one is new and 0; if it is still 0 after the step, it is dropped.
        static_history: there is one record per position, which each step overwrites.
        fused_threshold: the fields of the threshold and of the step limit, if ``kernels.unmask`` computes the algorithm
            for requests that require no statistics. None: no fused kernel.
    """

    key: ClassVar[str]
    fields: ClassVar[tuple[Field, ...]] = ()
    speed_accuracy_knob: ClassVar[SpeedAccuracyKnob | None] = None
    modes: ClassVar[dict[str, dict[str, Value]]] = {}
    edits: ClassVar[bool] = False
    supports_grammar: ClassVar[bool] = False
    reorders_tokens: ClassVar[bool] = False
    uniform_noise: ClassVar[bool] = False
    strategies: ClassVar[tuple[str, ...]] = ()
    history_fields: ClassVar[tuple[str, ...]] = ()
    static_history: ClassVar[bool] = False
    fused_threshold: ClassVar[tuple[Field, Field] | None] = None

    def __init__(self) -> None:
        names = (*_SAMPLING_COLUMNS, *(field.name for field in self.fields))
        self.columns = {name: i for i, name in enumerate(names)}

    def param_row(self, values: Mapping[str, Value]) -> list[float]:
        """Returns the request's values of `fields` in the order of the columns. A choice is its index in `choices`."""
        return [
            float(field.choices.index(str(values[field.name])) if field.choices else values[field.name])
            for field in self.fields
        ]

    def algorithm_stats(self, values: Mapping[str, Value]) -> LogitStat:
        """Returns the statistics that `decide` reads for a request with these values."""
        return LogitStat.NONE

    def required_stats(self, values: Mapping[str, Value]) -> LogitStat:
        """Returns all statistics that the sampler computes for a request with these values."""
        suppresses = values.get(SUPPRESS_EOS.name, SUPPRESS_EOS.default) != SUPPRESS_EOS.default
        return self.algorithm_stats(values) | (LogitStat.SUPPRESS_EOS if suppresses else LogitStat.NONE)

    def may_revise(self, values: Mapping[str, Value]) -> bool:
        """Returns whether unmasked positions may change. They are then sampled too, and text is sent per block."""
        return self.edits

    def soft_embedding_params(self, values: Mapping[str, Value]) -> SoftEmbeddingParams | None:
        """Returns how embeddings are computed from `BlockUpdate.soft_tokens`, for algorithms that return it."""
        return None

    def process_logits(self, logits: torch.Tensor, rows: SampledRows) -> None:
        """Changes `logits` in place before candidates are computed, if LogitStat.PROCESS_LOGITS is required.

        Operations across the vocabulary have to use `rows.logits_ops`, because the logits may be sharded.

        Args:
            logits: [rows, vocab], or this rank's shard of the vocabulary.
        """

    def temperature(self, rows: SampledRows) -> torch.Tensor:
        """Returns the divisor of the logits, [rows]. Only for algorithms with `uniform_noise`."""
        raise NotImplementedError

    def decide(self, blocks: BlockBatch) -> BlockUpdate:
        """Returns the content of the blocks after this step."""
        raise NotImplementedError


A = TypeVar("A", bound=type[UnmaskingAlgorithm])
V = TypeVar("V", bound=Callable[[EditTokens], UnmaskingAlgorithm])
_ALGORITHMS: Registry[UnmaskingAlgorithm] = Registry("unmasking algorithm")
_INDEL_VARIANTS: Registry[Callable[[EditTokens], UnmaskingAlgorithm]] = Registry("variant for edit tokens of")


def register_algorithm(algorithm: A) -> A:
    """Registers an algorithm under its `key`, the value of ``decoding.algorithm``.

    Raises:
        ValueError: the key is taken, a field has another kind in another algorithm, or the knob is not a field.
    """
    known = {field.name: field for other in _ALGORITHMS.values() for field in other.fields}
    for field in algorithm.fields:
        if known.get(field.name, field).kind != field.kind:
            raise ValueError(f"{algorithm.key}: field {field.name!r} is of another kind in another algorithm")
    knob = algorithm.speed_accuracy_knob
    if knob is not None and knob.field not in algorithm.fields:
        raise ValueError(f"{algorithm.key}: speed_accuracy_knob {knob.field.name!r} is not one of its fields")
    _ALGORITHMS.add(algorithm.key, algorithm())
    return algorithm


def register_indel_variant(key: str) -> Callable[[V], V]:
    """Registers the variant of the algorithm `key` for models with edit tokens (insertions and deletions)."""

    def add(make: V) -> V:
        _INDEL_VARIANTS.add(key, make)
        return make

    return add


def algorithm_keys() -> list[str]:
    """Returns the keys of all registered algorithms, sorted."""
    return sorted(_ALGORITHMS)


def algorithms_for(strategy: str) -> list[UnmaskingAlgorithm]:
    """Returns the algorithms that work with a strategy: its own, or all that name no strategy."""
    algorithms = [_ALGORITHMS[key] for key in algorithm_keys()]
    own = [algorithm for algorithm in algorithms if strategy in algorithm.strategies]
    return own or [algorithm for algorithm in algorithms if not algorithm.strategies]


def get_algorithm(key: str) -> UnmaskingAlgorithm:
    """Returns the algorithm `key`. Raises ConfigError if it is not registered."""
    if key not in _ALGORITHMS:
        raise ConfigError(f"unmasking algorithm {key!r} is not known; available: {', '.join(algorithm_keys())}")
    return _ALGORITHMS[key]


@lru_cache
def algorithms_with_edit_tokens(edit_tokens: EditTokens | None) -> Callable[[str], UnmaskingAlgorithm]:
    """Returns `get_algorithm` for a model with these edit tokens; None: the model has none.

    It returns the same objects for equal tokens and keys.
    """
    if edit_tokens is None:
        return get_algorithm
    variants = {key: make(edit_tokens) for key, make in _INDEL_VARIANTS.items()}
    return lambda key: variants[key] if key in variants else get_algorithm(key)


class ResolvedParams(NamedTuple):
    """Results of the methods of `UnmaskingAlgorithm` with these names."""

    required_stats: int
    may_revise: bool
    soft_embedding_params: SoftEmbeddingParams | None
    param_row: tuple[float, ...]


@lru_cache(maxsize=CACHE_SIZE)
def resolve_params(algorithm: UnmaskingAlgorithm, items: tuple[tuple[str, Value], ...]) -> ResolvedParams:
    """Returns the parameters for values of the fields of the algorithm and of the strategy, as pairs."""
    values = dict(items)
    return ResolvedParams(
        int(algorithm.required_stats(values)),
        algorithm.may_revise(values),
        algorithm.soft_embedding_params(values),
        tuple(algorithm.param_row(values)),
    )


ACCEPT = fraction_field("accept_threshold", 0.9, "confidence above which a masked position is unmasked")
THRESHOLD_KNOB = SpeedAccuracyKnob(ACCEPT, (0.99, 0.9, 0.8, 0.7, 0.6, 0.5, 0.3))
MAX_STEPS = Field(
    name="max_steps_per_block", kind="integer", default=2, per_block=True, low=1, high=2**31,
    help="steps after which all positions of a block are unmasked; default twice the block size",
)  # fmt: skip
COMMON = (MAX_STEPS, SUPPRESS_EOS)  # fields of every algorithm that unmasks
STEPS = Field(
    name="steps", kind="integer", default=1, per_block=True, low=1, high=2**31,
    help="steps per block; default one per position",
)  # fmt: skip
STEPS_KNOB = SpeedAccuracyKnob(STEPS, (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32))

REMAINDER = Field(
    name="step_remainder", kind="choice", choices=("first", "spread"), default="first", neutral="first",
    help="if the steps do not divide the masks of a block: the first steps unmask one position more, or steps that are "
    "spread evenly",
)  # fmt: skip
METRIC = Field(
    name="confidence_metric", kind="choice", choices=("max_prob", "margin", "neg_entropy"), default="max_prob",
    neutral="max_prob", help="order of positions: by the probability of the candidate, the margin to the second "
    "token, or the negative entropy; thresholds always apply to the probability",
)  # fmt: skip


class RankedAlgorithm(UnmaskingAlgorithm):
    """An algorithm that ranks positions by the field METRIC, which is one of its fields."""

    def algorithm_stats(self, values: Mapping[str, Any]) -> LogitStat:
        return {"margin": LogitStat.MARGIN, "neg_entropy": LogitStat.ENTROPY}.get(values[METRIC.name], LogitStat.NONE)


def confidence_metric(blocks: BlockBatch) -> torch.Tensor:
    """Returns the value of each request's METRIC, float [n, B]. Positions are unmasked from the highest value down."""
    if METRIC.name not in blocks.columns:
        return blocks.confidence
    metric, scores = blocks.param(METRIC.name), blocks.confidence
    if blocks.margin is not None:
        scores = torch.where(metric == METRIC.choices.index("margin"), blocks.margin, scores)
    if blocks.entropy is not None:
        scores = torch.where(metric == METRIC.choices.index("neg_entropy"), -blocks.entropy, scores)
    return scores


def is_suppressed(blocks: BlockBatch) -> torch.Tensor:
    """Returns a bool [n, B]: SUPPRESS_EOS suppresses the candidate of the position."""
    return blocks.confidence == torch.finfo(blocks.confidence.dtype).min


def best_position(scores: torch.Tensor) -> torch.Tensor:
    """Returns a bool [n, B]: the position of the highest score of each block; of equal scores, the first."""
    return torch.nn.functional.one_hot(scores.argmax(dim=1), scores.shape[1]).bool()


def threshold_with_fallback(blocks: BlockBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Selects masked positions with a confidence above ACCEPT, with the fallback of `with_fallback`.

    Returns:
        accepted [n, B] and forced [n].
    """
    passed = blocks.masked & (blocks.confidence > blocks.param(ACCEPT.name))
    return with_fallback(blocks, passed, confidence_metric(blocks))


def with_fallback(blocks: BlockBatch, passed: torch.Tensor, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Adds the best position of blocks that must advance and where none passed, and all positions at the step limit.

    Args:
        passed: bool [n, B], positions that the algorithm selected.
        scores: float [n, B]; the best position has the highest score.

    Returns:
        accepted [n, B] and forced [n].
    """
    forced = blocks.must_advance & blocks.masked.any(1) & ~passed.any(1)
    best = best_position(scores.masked_fill(~blocks.masked, float("-inf")))
    return passed | (best & forced[:, None]) | (blocks.masked & blocks.at_step_limit()), forced


def unmask(blocks: BlockBatch, accepted: torch.Tensor, forced: torch.Tensor | None = None) -> BlockUpdate:
    """Returns the update that only unmasks `accepted` [n, B]. A block is finished when it has no masks."""
    masked = blocks.masked & ~accepted
    nothing = torch.zeros_like(accepted)
    return BlockUpdate(
        tokens=torch.where(accepted, blocks.candidates, blocks.tokens),
        masked=masked,
        forced=torch.zeros_like(blocks.must_advance) if forced is None else forced,
        edited=nothing,
        remasked=nothing,
        finished=~masked.any(1),
    )


def tokens_per_step(blocks: BlockBatch) -> torch.Tensor:
    """Returns the number of positions that this step unmasks, int64 [n]; 0 without `must_advance`.

    The masks of a block are divided evenly between its steps. The remainder goes to the first steps, or with REMAINDER
    "spread" the steps up to step i, from 1, of n unmask ceil(masks * i / n) positions.
    """
    masks = blocks.initial_masks
    steps = torch.where(blocks.step_budget > 0, blocks.step_budget, blocks.value(STEPS.name).long())
    steps = torch.minimum(steps, masks).clamp(min=1)
    count = masks // steps + (blocks.num_steps < masks % steps)
    if REMAINDER.name in blocks.columns:
        ends = [-(-masks * number // steps) for number in (blocks.num_steps, blocks.num_steps + 1)]
        count = torch.where(blocks.value(REMAINDER.name) == REMAINDER.choices.index("spread"), ends[1] - ends[0], count)
    return torch.where(blocks.must_advance, count, torch.zeros_like(count))


def score_order(scores: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    """Returns the index of each masked position in the order of descending scores, from 0.

    Of equal scores the lower position is first.

    Args:
        scores: float [n, B].
        masked: bool [n, B].

    Returns:
        int64 [n, B]; all other positions come last.
    """
    order = scores.masked_fill(~masked, float("-inf")).argsort(dim=1, descending=True, stable=True)
    ordinals = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, ordinals)
