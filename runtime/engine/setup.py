"""Loads an engine from a configuration: checkpoint, model, KV pool, and the limits for requests."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec
import torch
from torch import nn

from runtime.config import EngineConfig
from runtime.distributed.gpu import require_gpu
from runtime.distributed.process_group import SINGLE_RANK, TensorParallelGroup
from runtime.engine.engine import Engine
from runtime.engine.request_defaults import (
    CheckpointDefaults,
    read_edit_tokens,
    request_defaults,
    with_decoding_flag,
)
from runtime.engine.start_log import values_in_use
from runtime.errors import ConfigError
from runtime.kernels.compiler import KernelCompiler
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import Model, ModelFamily, ModelInfo, resolve_family
from runtime.models.block_size import resolve_block_size
from runtime.models.look_alikes import check_look_alikes
from runtime.models.published import published_defaults
from runtime.parameters.weight import named_weights
from runtime.quantization.checkpoint.scheme import quantization_of
from runtime.request.engine_messages import EngineInfo, StructuredLimits
from runtime.scheduling.lora_manager import make_lora_setup
from runtime.scheduling.strategy import DecodingContext, Strategy
from runtime.strategies.registry import make_strategy, strategies_supporting
from runtime.structured_output.grammar_cache import create_grammar_cache
from runtime.weights.checkpoint import Checkpoint, resolve_checkpoint
from runtime.weights.hub import Progress
from runtime.weights.loader import load_model
from runtime.weights.repository import repository_names
from runtime.weights.special_tokens import TokenIds, resolve_token_ids
from runtime.worker.memory import RankDevice, build_model_runner

log = logging.getLogger(__name__)

DEFAULT_MODEL_LEN = 4096


# Creates the model of a checkpoint and loads its weights.
LoadModel = Callable[[Checkpoint, ModelFamily[Any], Any, LayerFactory, Progress | None], Model]


def load_engine(
    config: EngineConfig,
    progress: Progress | None = None,
    load: LoadModel = load_model,
    group: TensorParallelGroup = SINGLE_RANK,
) -> Engine:
    """Loads the checkpoint and returns an engine.

    Args:
        load: creates the model; benchmarks use random weights.
        group: tensor parallel group. Each process loads its shard and runs the same steps (``runtime.distributed``).

    Raises:
        ConfigError: a flag or the checkpoint is not supported.
    """
    checkpoint = resolve_checkpoint(config.model, progress)
    names = (*filter(None, [config.model_name]), *repository_names(config.model, checkpoint.path, checkpoint.config))
    check_look_alikes(checkpoint.config, names, config.sampling_mode)
    family = resolve_family(config.model_name, checkpoint.config)
    device, dtype = _device(config), _dtype(config)
    arch = family.parse(checkpoint.config)
    facts = family.facts(arch)
    defaults = CheckpointDefaults(published_defaults(family.key, names), checkpoint.generation_config)
    block_size = resolve_block_size(config.block_size, family, facts, checkpoint.config, names)
    context = _context(config, facts, block_size.tokens)
    strategy_key = _strategy_key(config, family, names)
    strategy = _strategy(config, family, context, strategy_key)
    free_at_start = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    with contextlib.closing(KernelCompiler(device)) as compiler:
        if config.compile_mode is None:  # `build_model_runner` does not use the compiler with torch.compile
            compiler.start()
        ids = resolve_token_ids(
            checkpoint, family, facts, mask_token_id=config.mask_token_id, eos_token_ids=config.eos_token_ids,
            skip_tokenizer=config.skip_tokenizer,
        )  # fmt: skip
        rank = RankDevice(device, dtype, group, free_at_start, compiler)
        info = _info(config, _Source(checkpoint, family, facts, ids, defaults), context, strategy, strategy_key, rank)
        for line in values_in_use(info, block_size, defaults.published) if group.rank == 0 else ():
            log.info("%s", line)
        lora = make_lora_setup(config, checkpoint, family, arch, dtype, device)
        expert_parallel = config.expert_parallel_size > 1
        build = LayerFactory.create(
            device, dtype, config.attn_impl, info.quantization, lora.lora_config, deterministic=config.deterministic,
            group=group, expert_parallel=expert_parallel,
        )  # fmt: skip
        if lora.weight_transform is not None:
            load = partial(load_model, transform=lora.weight_transform)
        model = load(checkpoint, family, arch, build, progress)
        lora_manager = lora.load_adapters(model, build)
        if lora.lora_config is not None:
            slots, max_rank = lora.lora_config
            info = msgspec.structs.replace(
                info, max_loras=slots, max_lora_rank=max_rank, default_adapter=config.default_adapter
            )
        weights = named_weights(cast(nn.Module, model)).values()
        if progress is not None:
            loaded = sum(weight.nbytes for weight in weights)
            progress("warmup", loaded, loaded)  # completes the progress bar
        if expert_parallel and not any(weight.shard and weight.shard.dim == -3 for weight in weights):
            raise ConfigError(
                f"--expert-parallel-size {config.expert_parallel_size}: the model has no experts to distribute; "
                "leave it out"
            )
        runner, pages = build_model_runner(config, info, strategy, model, lora_manager, rank)
    info = msgspec.structs.replace(info, num_pages=pages)
    grammars = None if info.structured_output_error else create_grammar_cache(checkpoint.path, info)
    return Engine(info=info, runner=runner, strategy=strategy, lora_manager=lora_manager, grammars=grammars)


def _structured_output_unavailable_reason(config: EngineConfig, strategy: Strategy, key: str, ids: TokenIds) -> str:
    """Returns why structured output is not available; "" if it is."""
    if config.skip_tokenizer:
        return "no tokenizer is loaded"
    if not strategy.supports_grammar:
        return f"structured output is not supported by the {key} strategy"
    return "" if ids.eos else "the model has no end-of-sequence token"


def _strategy_key(config: EngineConfig, family: ModelFamily[Any], names: Sequence[str]) -> str:
    """Returns the strategy of the flag, else of the repository's name, else the first of the family.

    Raises:
        ConfigError: the family has strategies by name, and no name tells which one this checkpoint needs.
    """
    if config.decoding_strategy is not None or not family.strategy_in_name:
        return config.decoding_strategy or family.strategies[0]
    for name in names:
        words = re.split(r"[^a-z0-9]+", name.rpartition("/")[2].lower())
        if len(found := {key for word, key in family.strategy_in_name.items() if word in words}) == 1:
            return found.pop()
    choices = " or ".join(f"{key} ({word})" for word, key in family.strategy_in_name.items())
    raise ConfigError(
        f"neither config.json nor the name of the checkpoint tells how this {family.key} model was trained; set "
        f"--decoding-strategy to {choices}"
    )


def _context(config: EngineConfig, facts: ModelInfo, block_size: int) -> DecodingContext:
    limit = facts.max_positions
    max_model_len = config.max_model_len or min(facts.max_model_len or DEFAULT_MODEL_LEN, limit)
    if max_model_len > limit:
        raise ConfigError(f"--max-model-len {max_model_len} is more than the checkpoint's limit of {limit} positions")
    return DecodingContext(
        block_size=block_size,
        buffer_size=config.buffer_size,
        prefix_caching=not config.disable_prefix_caching,
        max_model_len=max_model_len,
        shift=facts.shift,
        vocab_size=facts.vocab_size,
    )


def _strategy(config: EngineConfig, family: ModelFamily[Any], context: DecodingContext, key: str) -> Strategy:
    supported = family.strategies + strategies_supporting(family.key)
    strategy = make_strategy(key, supported, context)
    budget = config.max_num_batched_tokens
    if budget < strategy.max_rows():
        why = f"blocks of {context.block_size} and --buffer-size {strategy.buffer_size}"
        if strategy.requires_full_prompt:
            why += f" and, as prompts are not split, --max-model-len {context.max_model_len}"
        raise ConfigError(
            f"--max-num-batched-tokens: {budget} is less than the {strategy.max_rows()} rows that a step of one "
            f"request may take, with {why}"
        )
    return strategy


def _device(config: EngineConfig) -> torch.device:
    name = config.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda":
        require_gpu("--device cuda")
    return torch.device(name)


def _dtype(config: EngineConfig) -> torch.dtype:
    name = config.dtype or ("bfloat16" if _device(config).type == "cuda" else "float32")
    dtype: torch.dtype = getattr(torch, name)
    return dtype


@dataclass(frozen=True)
class _Source:
    """A checkpoint, its family, and the properties of its model."""

    checkpoint: Checkpoint
    family: ModelFamily[Any]
    facts: ModelInfo
    ids: TokenIds
    defaults: CheckpointDefaults


def _info(
    config: EngineConfig, source: _Source, context: DecodingContext, strategy: Strategy, key: str, rank: RankDevice
) -> EngineInfo:
    """Returns EngineInfo without the number of pages, which depends on the memory after loading."""
    family, checkpoint, facts, ids = source.family, source.checkpoint, source.facts, source.ids
    block_size = context.block_size
    if block_size % facts.block_multiple:
        raise ConfigError(
            f"--block-size {block_size} is no multiple of {facts.block_multiple}, the positions that this checkpoint "
            "computes together"
        )
    page_size = config.page_size or 32
    if not strategy.block_layout.from_prompt and page_size % block_size and block_size % page_size:
        default = "" if config.page_size else ", its default,"
        raise ConfigError(
            f"--page-size {page_size}{default} is neither a multiple nor a divisor of the block size {block_size}; set "
            f"one that is, such as {block_size}"
        )
    edit_tokens = read_edit_tokens(facts, ids)
    info = EngineInfo(
        family=family.key,
        strategy=key,
        device=str(rank.device),
        dtype=str(rank.dtype).removeprefix("torch."),
        quantization=quantization_of(checkpoint.config, config.quantization),
        tensor_parallel_size=config.tensor_parallel_size,
        expert_parallel_size=config.expert_parallel_size,
        vocab_size=facts.vocab_size,
        max_token_id=ids.max_token_id,
        mask_token_id=ids.mask,
        eos_token_ids=list(ids.eos),
        bos_token_id=ids.bos,
        delete_token_id=None if edit_tokens is None else edit_tokens.delete,
        split_token_id=None if edit_tokens is None else edit_tokens.split,
        block_size=block_size,
        buffer_size=strategy.buffer_size,
        page_size=page_size,
        num_pages=0,
        max_model_len=context.max_model_len,
        max_num_reqs=config.max_num_reqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        prefix_caching=context.prefix_caching and strategy.prefix_cacheable,
        blocks_from_prompt=strategy.block_layout.from_prompt,
        truncate_last_block=strategy.block_layout.truncate_last,
        default_max_tokens=strategy.default_max_tokens,
        tool_calls=family.tool_calls,
        reasoning=family.reasoning,
        template_variables=dict(family.template_variables),
        model_revision=checkpoint.revision,
        structured=StructuredLimits(
            complete=not config.disable_structured_complete,
            max_length=config.structured_max_length,
            max_items=config.structured_max_items,
            max_run=config.structured_max_run,
        ),
        structured_output_error=_structured_output_unavailable_reason(config, strategy, key, ids),
        **request_defaults(config, family, source.defaults, strategy, key, block_size, edit_tokens),
    )
    return with_decoding_flag(config, info)
