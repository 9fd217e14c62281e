"""What a model family gives the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch

from runtime.errors import ConfigError
from runtime.kernels.forward_batch import ForwardBatch
from runtime.layers.kv_pool import KVPool, KVShape
from runtime.layers.layer_factory import Build
from runtime.layers.sharding import Ids
from runtime.models.config_reader import Fields
from runtime.models.spellings import canonical
from runtime.models.weight_map import WeightMap
from runtime.request.field_spec import Value

Arch = TypeVar("Arch")  # a family's own frozen dataclass of what its config.json says


class Model(Protocol):
    """A built model."""

    kv_shapes: tuple[KVShape, ...]  # what each layer stores

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """int64 ids [rows] -> [rows, hidden], what `forward` starts from."""
        ...

    def forward(self, x: torch.Tensor, batch: ForwardBatch, pool: KVPool) -> torch.Tensor:
        """What `finish` starts from, [rows, hidden], from the rows' embeddings `x` [rows, hidden]. The rows' K/V goes
        into `pool`."""
        ...

    def finish(self, left: torch.Tensor) -> torch.Tensor:
        """Hidden states after the final norm, [n, hidden], from some rows of what `forward` left [n, hidden]: what each
        row computes by itself after the last attention, which is only worth it for rows whose logits somebody wants."""
        ...

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, hidden] -> [n, vocab], float32 (float64 where the model is float64): never rounded below that. Of a model
        that processes share, those ids that are here (`HasIds`)."""
        ...


@runtime_checkable
class HasIds(Protocol):
    """A model that may be shared by processes. None: it is not, and all ids are here."""

    ids: Ids | None


@runtime_checkable
class SelfConditioned(Protocol):
    """A model whose open rows are told of their last step (``ForwardBatch.signal``)."""

    signal_width: int

    def soften(self, probs: torch.Tensor, divisor: torch.Tensor | None = None) -> torch.Tensor:
        """[n, vocab] -> [n, signal_width]: the signal of a step with these distributions, or with what is
        `divisor` [n] times them (``kernels.fused_softmax_stats.Described``)."""
        ...


@dataclass(frozen=True)
class Facts:
    """What others than the model itself have to know of it. Its family says so; nobody else reads config.json."""

    vocab_size: int
    max_positions: int  # the checkpoint's own limit
    block_size: int  # unless the server sets one
    mask_id: int | None  # None: config.json names none
    eos_ids: tuple[int, ...]  # those that config.json names
    max_model_len: int | None = None  # default of --max-model-len, where that is another than most families'
    bos_id: int | None = None  # begins every prompt that is given as plain text
    block_multiple: int = 1  # blocks are whole multiples of it: rows of one compute with each other
    # edit tokens, which no answer contains: docs/decoding-rules.md#insert-and-delete
    delete_id: int | None = None
    split_id: int | None = None
    shift: bool = False  # the logits of position i are those of row i-1, not of row i


@dataclass(frozen=True)
class Family(Generic[Arch]):
    """One family of checkpoints: how it is recognised, built and decoded (models.md).

    `detect` says whether a config.json is one of this family, and `architectures` are the names under the file's field
    of that name which are this family's alone: one of them beside another family's model type is ambiguous, and
    refused. `parse` turns config.json into the family's own frozen architecture dataclass, or raises ConfigError
    naming the field; `facts(arch)` is what the rest of the engine asks about it. `make(arch, build)` returns the module
    with unfilled parameters; `weights(arch)` is the ``WeightMap`` of where each tensor of a checkpoint goes
    (runtime/models/weight_map.py). `turn_end_tokens` and `mask_tokens` are looked up in the tokenizer by their text;
    `mask_id` and `eos_ids` are the published checkpoints' ids, for one whose files name none. `masks`: what is open is
    masked; else it is noise, and there is no mask. `generation` reads the defaults of decoding fields that the family's
    generation_config.json names, or raises ConfigError. `tool_calls` and `reasoning` name the formats in which its
    models write calls of tools and reasoning (``runtime.parsers``); "": they mark no reasoning.
    """

    key: str
    aliases: tuple[str, ...]
    detect: Callable[[Mapping[str, Any]], bool]
    parse: Callable[[Mapping[str, Any]], Arch]
    facts: Callable[[Arch], Facts]
    make: Callable[[Arch, Build], Model]
    weights: Callable[[Arch], WeightMap]
    strategies: tuple[str, ...]
    architectures: tuple[str, ...] = ()
    sampling_modes: tuple[str, ...] = ("naive",)
    accept_threshold: float = 0.9
    turn_end_tokens: tuple[str, ...] = ()
    mask_tokens: tuple[str, ...] = ()
    mask_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    masks: bool = True
    generation: Callable[[Mapping[str, Any]], Mapping[str, Value]] = lambda config: {}
    tool_calls: str = "hermes"
    reasoning: str = ""
    needs_edit: frozenset[str] = field(default_factory=frozenset)  # aliases that require --sampling-mode edit


_FAMILIES: dict[str, Family[Any]] = {}


def register_family(family: Family[Arch]) -> Family[Arch]:
    """Registers the family; its `parse` then accepts the field names of transformers 4 and 5. Returns it."""
    parse = family.parse
    family = replace(family, parse=lambda config: parse(canonical(config)))
    for key in (family.key, *family.aliases):
        if key in _FAMILIES:
            raise ValueError(f"model family {key!r} is registered twice")
        _FAMILIES[key] = family
    return family


def families() -> list[str]:
    return sorted(_FAMILIES)


def architectures(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The names in config.json's `architectures`; ConfigError if it holds anything else."""
    return Fields(config).texts("architectures")


def resolve_family(name: str | None, config: Mapping[str, Any]) -> Family[Any]:
    """The family called `name`, or, without one, the only family that recognises `config`."""
    if name is not None:
        if name not in _FAMILIES:
            raise ConfigError(f"--model-name {name!r} is not a known family; known: {', '.join(families())}")
        return _FAMILIES[name]
    named = set(architectures(config))
    every = {family.key: family for family in _FAMILIES.values()}
    found = {key for key, family in every.items() if family.detect(config)}
    claimed = found | {key for key, family in every.items() if named.intersection(family.architectures)}
    says = f"config.json's model_type {config.get('model_type')!r} with architectures {sorted(named)}"
    if not claimed:
        raise ConfigError(
            f"{says} belongs to no known family; known: {', '.join(families())} (name one with --model-name)"
        )
    if len(claimed) > 1 or not found:
        raise ConfigError(
            f"{says} is ambiguous: it could be {' or '.join(sorted(claimed))}; name the family with --model-name"
        )
    return every[found.pop()]
