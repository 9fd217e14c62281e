"""What is decided about a model before its weights are read: family, block size, strategy and defaults."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from runtime.config import EngineConfig
from runtime.distributed.process_group import TensorParallelGroup
from runtime.engine.fit import PAGE_SIZE, SHORTEST, DeviceMemory, Sizing
from runtime.engine.request_defaults import CheckpointDefaults
from runtime.errors import ConfigError
from runtime.models.base import ModelFamily, ModelInfo, resolve_family
from runtime.models.block_size import BlockSize, resolve_block_size
from runtime.models.look_alikes import check_look_alikes
from runtime.models.published import published_defaults
from runtime.quantization.checkpoint.scheme import one_rank_reason, quantization_of
from runtime.scheduling.strategy import DecodingContext, Strategy
from runtime.strategies.registry import make_strategy, strategies_supporting
from runtime.weights.checkpoint import Checkpoint
from runtime.weights.repository import repository_names
from runtime.weights.weight_formats import stored_formats


@dataclass(frozen=True)
class ModelPlan:
    """What flags, config.json and the name of the repository decide about a model.

    Attributes:
        arch: result of ``family.parse``.
        length_source: where `context.max_model_len` is from, as text.
        is_default_length: --max-model-len is not set, so that memory may lower the length.
        strategy_key: key of the strategy, as in --decoding-strategy.
    """

    family: ModelFamily[Any]
    arch: Any
    facts: ModelInfo
    defaults: CheckpointDefaults
    block_size: BlockSize
    context: DecodingContext
    length_source: str
    is_default_length: bool
    strategy_key: str
    strategy: Strategy
    page_size: int

    def with_length(self, length: int, source: str) -> ModelPlan:
        """Returns the plan with a length below the checkpoint's own. `source`: where it is from."""
        context, source = replace(self.context, max_model_len=length), _below(self.facts, source)
        strategy = make_strategy(self.strategy_key, _supported(self.family), context)
        return replace(self, context=context, length_source=source, strategy=strategy)

    def fitted(
        self, sizing: Sizing, device: DeviceMemory | None, *, with_step: bool = False
    ) -> tuple[ModelPlan, Sizing]:
        """Returns plan and sizing with the largest default length for which there is memory, at least `SHORTEST`.

        Args:
            sizing: result of `sizing`.
            device, with_step: see `Sizing.longest`.
        """
        own, pages = self.context.max_model_len, sizing.config.num_pages
        length = sizing.longest(device, with_step=with_step) if self.is_default_length else own
        source = f"the longest request {f'that --num-pages {pages} holds' if pages else 'for which there is memory'}"
        if length < SHORTEST:
            length, source = min(SHORTEST, own), "the shortest default, as memory may not suffice for more"
        if length == own:
            return self, sizing
        plan = self.with_length(length, source)
        return plan, replace(sizing, max_model_len=length, strategy=plan.strategy)

    def sizing(
        self, config: EngineConfig, checkpoint: Checkpoint, dtype: torch.dtype, group: TensorParallelGroup
    ) -> Sizing:
        """Returns what determines the memory of the model."""
        return Sizing(
            config=config,
            family=self.family,
            arch=self.arch,
            vocab_size=self.facts.vocab_size,
            strategy=self.strategy,
            max_model_len=self.context.max_model_len,
            dtype=dtype,
            quantization=quantization_of(checkpoint.config, config.quantization),
            formats=stored_formats(checkpoint, self.family, self.arch),
            group=group,
            shardable=not one_rank_reason(checkpoint.config),
        )


def resolve_dtype(config: EngineConfig, device: str) -> torch.dtype:
    """Returns the dtype of --dtype, else the default of a device, "cuda" or "cpu"."""
    dtype: torch.dtype = getattr(torch, config.dtype or ("bfloat16" if device == "cuda" else "float32"))
    return dtype


def plan_model(config: EngineConfig, checkpoint: Checkpoint) -> ModelPlan:
    """Returns the plan of a model. Raises ConfigError if a flag or the checkpoint is not supported."""
    names = (*filter(None, [config.model_name]), *repository_names(config.model, checkpoint.path, checkpoint.config))
    check_look_alikes(checkpoint.config, names, config.sampling_mode)
    family = resolve_family(config.model_name, checkpoint.config)
    ranks = config.tensor_parallel_size
    if ranks > 1 and (reason := one_rank_reason(checkpoint.config)):
        raise ConfigError(
            f"--tensor-parallel-size {ranks}: {reason}, which is supported on one rank only; leave it out"
        )
    arch = family.parse(checkpoint.config)
    facts = family.facts(arch)
    block_size = resolve_block_size(config.block_size, family, facts, checkpoint.config, names)
    key = resolve_strategy_key(config.decoding_strategy, family, names)
    context, source = _context(config, facts, block_size.tokens)
    strategy = make_strategy(key, _supported(family), context)
    surplus, own = strategy.max_rows() - config.max_num_batched_tokens, context.max_model_len
    if config.max_model_len is None and strategy.requires_full_prompt and surplus > 0:
        context = replace(context, max_model_len=max(own - surplus, min(SHORTEST, own)))
        source = _below(facts, f"the most that --max-num-batched-tokens {config.max_num_batched_tokens} allows")
        strategy = make_strategy(key, _supported(family), context)
    _check_rows(config, context, strategy)
    return ModelPlan(
        family=family,
        arch=arch,
        facts=facts,
        defaults=CheckpointDefaults(published_defaults(family.key, names), checkpoint.generation_config),
        block_size=block_size,
        context=context,
        length_source=source,
        is_default_length=config.max_model_len is None,
        strategy_key=key,
        strategy=strategy,
        page_size=_page_size(config, facts, context.block_size, strategy),
    )


def resolve_strategy_key(flag: str | None, family: ModelFamily[Any], names: Sequence[str]) -> str:
    """Returns the strategy of the flag, else of the repository's name, else the first of the family.

    Args:
        flag: value of --decoding-strategy.
        names: names of the repository (``weights.repository``).

    Raises:
        ConfigError: the family has strategies by name, and no name tells which one this checkpoint needs.
    """
    if flag is not None or not family.strategy_in_name:
        return flag or family.strategies[0]
    for name in names:
        words = re.split(r"[^a-z0-9]+", name.rpartition("/")[2].lower())
        if len(found := {key for word, key in family.strategy_in_name.items() if word in words}) == 1:
            return found.pop()
    choices = " or ".join(f"{key} ({word})" for word, key in family.strategy_in_name.items())
    raise ConfigError(
        f"neither config.json nor the name of the checkpoint tells how this {family.key} model was trained; set "
        f"--decoding-strategy to {choices}"
    )


def own_length(facts: ModelInfo) -> int:
    """Returns the length that a checkpoint was trained for, in tokens."""
    return min(facts.max_model_len or facts.max_positions, facts.max_positions)


def _below(facts: ModelInfo, source: str) -> str:
    return f"{source} (the checkpoint's own length is {own_length(facts)})"


def _context(config: EngineConfig, facts: ModelInfo, block_size: int) -> tuple[DecodingContext, str]:
    """Returns the context, with the checkpoint's own length unless a flag sets another, and the length's source."""
    limit = facts.max_positions
    max_model_len = config.max_model_len or own_length(facts)
    if max_model_len > limit:
        raise ConfigError(f"--max-model-len {max_model_len} is more than the checkpoint's limit of {limit} positions")
    context = DecodingContext(
        block_size=block_size,
        buffer_size=config.buffer_size,
        prefix_caching=not config.disable_prefix_caching,
        max_model_len=max_model_len,
        shift=facts.shift,
        vocab_size=facts.vocab_size,
    )
    return context, "the checkpoint's own" if config.max_model_len is None else "from --max-model-len"


def _supported(family: ModelFamily[Any]) -> tuple[str, ...]:
    return family.strategies + strategies_supporting(family.key)


def _check_rows(config: EngineConfig, context: DecodingContext, strategy: Strategy) -> None:
    """Raises ConfigError if a step of one request may exceed --max-num-batched-tokens."""
    budget = config.max_num_batched_tokens
    if budget < strategy.max_rows():
        why = f"blocks of {context.block_size} and --buffer-size {strategy.buffer_size}"
        if strategy.requires_full_prompt:
            why += f" and, as prompts are not split, --max-model-len {context.max_model_len}"
        raise ConfigError(
            f"--max-num-batched-tokens: {budget} is less than the {strategy.max_rows()} rows that a step of one "
            f"request may take, with {why}"
        )


def _page_size(config: EngineConfig, facts: ModelInfo, block_size: int, strategy: Strategy) -> int:
    """Returns the tokens per page of the KV cache. Raises ConfigError if it does not fit the block size."""
    if block_size % facts.block_multiple:
        raise ConfigError(
            f"--block-size {block_size} is no multiple of {facts.block_multiple}, the positions that this checkpoint "
            "computes together"
        )
    page_size = config.page_size or PAGE_SIZE
    if not strategy.block_layout.from_prompt and page_size % block_size and block_size % page_size:
        default = "" if config.page_size else ", its default,"
        raise ConfigError(
            f"--page-size {page_size}{default} is neither a multiple nor a divisor of the block size {block_size}; set "
            f"one that is, such as {block_size}"
        )
    return page_size
