"""Interface of model families and models to the engine, and of checkpoint tensors to parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch

from runtime.errors import ConfigError
from runtime.kernels.forward_batch import ForwardBatch
from runtime.layers.kv_pool import KVPool, KVShape
from runtime.layers.layer_factory import LayerFactory
from runtime.models.config_reader import ConfigReader, canonical
from runtime.parameters.sharding import Index, VocabShard
from runtime.plugins import Registry
from runtime.request.field_spec import Value


@dataclass(frozen=True)
class WeightTarget:
    """The destination of a checkpoint tensor.

    Attributes:
        param: parameter of the model.
        index: the slice of the parameter; () for all of it.
        transform: function of the tensor, and of those of `combine_with`, that returns the parameter's values; None for
            the tensor itself.
        combine_with: canonical names and shapes of further tensors, unquantized, that only `transform` uses.
    """

    param: str
    index: Index = ()
    transform: Callable[..., torch.Tensor] | None = None
    combine_with: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Fused:
    """A tensor that a checkpoint may hold instead of several.

    Attributes:
        slot: its target.
        parts: canonical names of the tensors that it replaces, with the index of each in this tensor.
    """

    slot: WeightTarget
    parts: Mapping[str, Index]


@dataclass(frozen=True)
class WeightMap:
    """The tensors of a family.

    Attributes:
        slots: all tensors that a checkpoint must hold, by canonical name, except those of `combine_with`.
        rename: name in a file -> canonical name.
        skip: whether a tensor, by canonical name, is known and not needed.
        fused: tensors that replace their parts in `slots` if a checkpoint holds them, by canonical name.
        copies: a file may hold a tensor under several names with one canonical name, if the copies are equal.
    """

    slots: dict[str, WeightTarget]
    rename: Callable[[str], str] = field(default=lambda name: name)
    skip: Callable[[str], bool] = field(default=lambda name: False)
    fused: dict[str, Fused] = field(default_factory=dict)
    copies: bool = False

    @property
    def combine_with(self) -> dict[str, tuple[int, ...]]:
        """All tensors that only a transform uses, with their shapes."""
        return {name: shape for slot in self.slots.values() for name, shape in slot.combine_with.items()}

    def of(self, names: Collection[str]) -> WeightMap:
        """Returns the map of a checkpoint that holds tensors of these canonical names.

        Raises:
            ConfigError: it holds the same weights fused in two ways.
        """
        used = {name: fused for name, fused in self.fused.items() if name in names}
        sources: dict[str, str] = {}
        for name, fused in used.items():
            for part in fused.parts:
                if sources.setdefault(part, name) != name:
                    raise ConfigError(
                        f"tensors {sources[part]!r} and {name!r} hold the same weights; remove one of them"
                    )
        slots = {name: slot for name, slot in self.slots.items() if name not in sources}
        return replace(self, slots=slots | {name: fused.slot for name, fused in used.items()}, fused={})


Arch = TypeVar("Arch")  # a family's frozen dataclass of its config.json


class Model(Protocol):
    """A built model."""

    kv_shapes: tuple[KVShape, ...]  # K/V shape of each layer
    vocab_shard: VocabShard | None  # this rank's part of the vocabulary; None if it is not sharded

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the embeddings [rows, hidden] of int64 ids [rows], the input of `forward`."""
        ...

    def forward(self, x: torch.Tensor, batch: ForwardBatch, pool: KVPool) -> torch.Tensor:
        """Runs the layers on embeddings `x` [rows, hidden] and stores the rows' K/V in `pool`.

        Returns:
            [rows, hidden], the input of `final_hidden_states`.
        """
        ...

    def final_hidden_states(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Returns hidden states after the final norm, [n, hidden], for some rows of the result of `forward`.

        It may also run the operations of the last layer after attention. They are independent per row, so they run only
        for rows whose logits are needed.
        """
        ...

    def lm_head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns logits [n, vocab] of `hidden` [n, hidden], float32 (float64 for a float64 model).

        With tensor parallelism, they are the logits of the local ids.
        """
        ...


@runtime_checkable
class SelfConditioned(Protocol):
    """A model that conditions editable rows on their last step (``ForwardBatch.self_conditioning``)."""

    self_conditioning_size: int

    def compute_self_conditioning(self, probs: torch.Tensor, divisor: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the self-conditioning of the next step for these distributions, [n, self_conditioning_size].

        Args:
            probs: [n, vocab], the distributions, times `divisor` if it is not None.
            divisor: [n], see ``kernels.fused_softmax_stats.SoftmaxStats``.
        """
        ...


@dataclass(frozen=True)
class ModelInfo:
    """Properties of a model that the engine needs. Only the family reads config.json."""

    vocab_size: int
    max_positions: int  # limit of the checkpoint
    block_size: int  # default of --block-size
    mask_id: int | None  # None: not in config.json
    eos_ids: tuple[int, ...]  # those of config.json
    max_model_len: int | None = None  # length that the model was trained for, if not `max_positions`
    bos_id: int | None = None  # prepended to prompts that are text
    block_multiple: int = 1  # block sizes are multiples of it
    # edit tokens, which no answer contains: docs/research/decoding-rules.md#insert-and-delete
    delete_id: int | None = None
    split_id: int | None = None
    shift: bool = False  # the logits of position i are those of row i-1, not of row i


@dataclass(frozen=True, kw_only=True)
class ModelFamily(Generic[Arch]):
    """A family of checkpoints: how to recognize, build and decode them (docs/models/index.md).

    Attributes:
        detect: whether a config.json belongs to this family.
        architectures: architecture names that only this family uses. With another family's model type they are
            ambiguous and refused.
        parse: config.json -> the family's frozen architecture dataclass; raises ConfigError that names the field.
        facts: architecture -> the ``ModelInfo`` for the engine.
        make: (architecture, factory) -> the module with uninitialized parameters.
        weights: architecture -> the ``WeightMap`` of checkpoint tensors (runtime/models/base.py).
        turn_end_tokens, mask_tokens: looked up in the tokenizer by their text.
        tokenizer_bos: plain prompts begin with the tokenizer's bos_token; the bos_token_id of config.json is wrong.
        mask_hint: what is known of the mask of a family without `mask_id`, for the error message that asks for it.
        mask_id, eos_ids: ids of the published checkpoints, for checkpoints whose files name none.
        block_size_in_name: the end of a repository's name may have the block size, such as ``-b32``.
        strategy_in_name: word of a repository's name -> its strategy, if config.json does not tell how the model was
            trained. Without it, the first of `strategies` is the default.
        masks: editable positions hold the mask; otherwise they hold noise, and there is no mask.
        generation: defaults of decoding fields, also from generation_config.json, or raises ConfigError. Those of
            published.toml precede them.
        template_variables: variables of the chat template that requests may override.
        tool_calls, reasoning: formats of tool calls and reasoning (``runtime.parsers``); "" for no reasoning.
        needs_edit: aliases that require --sampling-mode edit.
        same_config_as: key of the family that recognizes this family's config.json; it is selected by name only.
    """

    key: str
    aliases: tuple[str, ...] = ()
    detect: Callable[[Mapping[str, Any]], bool]
    parse: Callable[[Mapping[str, Any]], Arch]
    facts: Callable[[Arch], ModelInfo]
    make: Callable[[Arch, LayerFactory], Model]
    weights: Callable[[Arch], WeightMap]
    strategies: tuple[str, ...]
    architectures: tuple[str, ...] = ()
    sampling_modes: tuple[str, ...] = ("naive",)
    turn_end_tokens: tuple[str, ...] = ()
    mask_tokens: tuple[str, ...] = ()
    mask_hint: str = ""
    tokenizer_bos: bool = False
    mask_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    block_size_in_name: bool = False
    strategy_in_name: Mapping[str, str] = field(default_factory=dict)
    masks: bool = True
    generation: Callable[[Mapping[str, Any]], Mapping[str, Value]] = lambda config: {}
    template_variables: Mapping[str, bool] = field(default_factory=dict)
    tool_calls: str = "hermes"
    reasoning: str = ""
    needs_edit: frozenset[str] = field(default_factory=frozenset)
    same_config_as: str = ""


_FAMILIES: Registry[ModelFamily[Any]] = Registry("model family")


def register_family(family: ModelFamily[Arch]) -> ModelFamily[Arch]:
    """Registers and returns the family; its `parse` accepts the field names of transformers 4 and 5."""
    parse = family.parse
    family = replace(family, parse=lambda config: parse(canonical(config)))
    for key in (family.key, *family.aliases):
        _FAMILIES.add(key, family)
    return family


def families() -> list[str]:
    return sorted(_FAMILIES)


def architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the `architectures` of config.json; raises ConfigError if it is not a list of names."""
    return ConfigReader(config).strings("architectures")


def detects(model_type: str | None, *names: str) -> Callable[[Mapping[str, Any]], bool]:
    """Returns a `detect` for families that share their model type with others; None for any model type.

    Args:
        names: architectures of the family.
    """

    def detect(config: Mapping[str, Any]) -> bool:
        return model_type in (None, config.get("model_type")) and not set(names).isdisjoint(architectures(config))

    return detect


def resolve_family(name: str | None, config: Mapping[str, Any]) -> ModelFamily[Any]:
    """Returns the family called `name`, or without a name the only family that recognizes `config`.

    Raises:
        ConfigError: `name` is not known, or `config` is recognized by another family, by none or by several.
    """
    by_key = {family.key: family for family in _FAMILIES.values()}
    if name is not None:
        if name not in _FAMILIES:
            raise ConfigError(
                f"--model-name {name!r} is not a known family; known: {', '.join(families())}; load another one with "
                "--plugin"
            )
        return _check_recognized(name, config, by_key)
    named = set(architectures(config))
    found = {key for key, family in by_key.items() if family.detect(config)}
    claimed = found | {key for key, family in by_key.items() if named.intersection(family.architectures)}
    description = f"config.json's model_type {config.get('model_type')!r} with architectures {sorted(named)}"
    if not claimed:
        raise ConfigError(
            f"{description} belongs to no known family; known: {', '.join(families())}; name one with --model-name, or "
            "load another one with --plugin"
        )
    if len(claimed) > 1:
        raise ConfigError(
            f"{description} is ambiguous: it could be {' or '.join(sorted(claimed))}; name the family with --model-name"
        )
    return by_key[claimed.pop()]


def _check_recognized(name: str, config: Mapping[str, Any], by_key: Mapping[str, ModelFamily[Any]]) -> ModelFamily[Any]:
    """Returns the family called `name`. Raises ConfigError if only other families recognize `config`."""
    family = _FAMILIES[name]
    found = sorted(key for key, other in by_key.items() if other.detect(config))
    if found and family.key not in found and family.same_config_as not in found:
        raise ConfigError(
            f"--model-name {name!r}: config.json's model_type {config.get('model_type')!r} is that of the family "
            f"{' or '.join(found)}; leave --model-name out, or give the checkpoint of a {name} model with --model"
        )
    return family
