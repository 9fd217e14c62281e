"""Loads an engine from a configuration: checkpoint, model, KV pool, and the limits for requests."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

import msgspec
import torch
from torch import nn

from runtime.config import EngineConfig
from runtime.distributed.gpu import require_gpu
from runtime.distributed.process_group import SINGLE_RANK, TensorParallelGroup
from runtime.engine.engine import Engine
from runtime.engine.fit import SHORTEST, DeviceMemory, Sizing
from runtime.engine.model_plan import ModelPlan, plan_model, resolve_dtype
from runtime.engine.request_defaults import (
    read_edit_tokens,
    request_defaults,
    with_decoding_flag,
)
from runtime.engine.start_log import values_in_use
from runtime.errors import ConfigError
from runtime.kernels.compiler import KernelCompiler
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import Model, ModelFamily
from runtime.parameters.weight import named_weights
from runtime.quantization.checkpoint.scheme import quantization_of
from runtime.request.engine_messages import EngineInfo, StructuredLimits
from runtime.scheduling.lora_manager import LoRAManager, LoRASetup, make_lora_setup
from runtime.scheduling.strategy import longest_request
from runtime.structured_output.grammar_cache import create_grammar_cache
from runtime.tokenizer import Tokenizer
from runtime.weights.checkpoint import Checkpoint, find_missing_weights, open_checkpoint
from runtime.weights.hub import Progress
from runtime.weights.loader import check_index, load_model
from runtime.weights.special_tokens import TokenIds, resolve_token_ids
from runtime.worker.memory import RankDevice, TooFewPages, build_model_runner
from runtime.worker.model_runner import ModelRunner

log = logging.getLogger(__name__)


# Creates the model of a checkpoint and loads its weights.
LoadModel = Callable[[Checkpoint, ModelFamily[Any], Any, LayerFactory, Progress | None], Model]


def load_engine(
    config: EngineConfig,
    progress: Progress | None = None,
    load: LoadModel = load_model,
    group: TensorParallelGroup = SINGLE_RANK,
    *,
    chat_template: str | None = None,
    on_files: Callable[[Checkpoint], None] = lambda checkpoint: None,
) -> Engine:
    """Loads the checkpoint and returns an engine.

    Everything that config.json, the tokenizer and the flags decide is checked before weights are downloaded.

    Args:
        load: creates the model; benchmarks use random weights.
        group: tensor parallel group. Each process loads its shard and runs the same steps (``runtime.distributed``).
        chat_template: file that replaces the checkpoint's chat template. It is only checked.
        on_files: called when all files are on the disk, before weights are read.

    Raises:
        ConfigError: a flag or the checkpoint is not supported, or the model does not fit into memory or on the disk.
    """
    checkpoint = open_checkpoint(config.model)
    device, dtype = _device(config), _dtype(config)
    plan = plan_model(config, checkpoint)
    family, arch = plan.family, plan.arch
    fetched = cache(lambda: _fetch_weights(config, checkpoint, plan, chat_template, progress))
    free_at_start = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    with contextlib.closing(KernelCompiler(device)) as compiler:
        if config.compile_mode is None:  # `build_model_runner` does not use the compiler with torch.compile
            compiler.start()
        rank = RankDevice(device, dtype, group, free_at_start, compiler)
        memory = DeviceMemory.of(device, free_at_start)
        plan, sizing = plan.fitted(plan.sizing(config, checkpoint, dtype, group), memory)
        info = _info(config, checkpoint, plan, rank)
        for line in values_in_use(info, plan) if group.rank == 0 else ():
            log.info("%s", line)
        _check_experts(config, sizing)
        if load is load_model:  # another one checks the memory itself: the message names other flags than its caller's
            sizing.check(memory)
        lora = make_lora_setup(config, fetched, family, arch, dtype, device)
        build = LayerFactory.create(
            device, dtype, config.attn_impl, info.quantization, lora.lora_config, deterministic=config.deterministic,
            fp8_lm_head=config.quantized_lm_head, group=group, expert_parallel=config.expert_parallel_size > 1,
        )  # fmt: skip
        on_files(fetched())
        plan = _equal_length(plan, rank)
        if lora.weight_transform is not None:
            load = partial(load_model, transform=lora.weight_transform)
        with sizing.explain_out_of_memory(memory):
            model = load(checkpoint, family, arch, build, progress)
        lora_manager = lora.load_adapters(model, build)
        info = _with_adapters(_with_length(info, plan), lora, config)
        if progress is not None:
            loaded = sum(weight.nbytes for weight in named_weights(cast(nn.Module, model)).values())
            progress("warmup", loaded, loaded)  # completes the progress bar
        plan, runner, pages = _build_runner(config, info, plan, model, lora_manager, rank)
    info = _with_length(msgspec.structs.replace(info, num_pages=pages), plan)
    grammars = None if info.structured_output_error else create_grammar_cache(checkpoint.path, info)
    return Engine(info=info, runner=runner, strategy=plan.strategy, lora_manager=lora_manager, grammars=grammars)


def _equal_length(plan: ModelPlan, rank: RankDevice) -> ModelPlan:
    """Returns the plan with the smallest default length of all ranks. All of them have the files when it is called."""
    own = plan.context.max_model_len
    length = rank.group.min_across_ranks(own, rank.device) if plan.is_default_length else own
    return plan if length == own else plan.with_length(length, "the longest request for which all ranks have memory")


def _with_length(info: EngineInfo, plan: ModelPlan) -> EngineInfo:
    return msgspec.structs.replace(info, max_model_len=plan.context.max_model_len)


def _build_runner(
    config: EngineConfig, info: EngineInfo, plan: ModelPlan, model: Model, lora_manager: LoRAManager, rank: RankDevice
) -> tuple[ModelPlan, ModelRunner, int]:
    """Returns the plan, the runner and the pages of its KV pool.

    A GPU has less memory for the KV cache than its weights leave: the steps are measured. If that is too little for a
    request of the default length, the plan gets the longest one that fits.

    Raises:
        TooFewPages: as `build_model_runner`, if --max-model-len is set, or if there is no memory for `SHORTEST` tokens.
    """
    while True:
        try:
            return plan, *build_model_runner(config, info, plan.strategy, model, lora_manager, rank)
        except TooFewPages as error:
            own = plan.context.max_model_len
            length = longest_request(plan.strategy, own, plan.page_size, error.pages)
            if not plan.is_default_length or length < SHORTEST:
                raise
            plan = plan.with_length(length, "the longest request for which there is memory besides that of steps")
            info = _with_length(info, plan)
            if rank.group.rank == 0:
                log.info("max_model_len %d, %s", length, plan.length_source)


def _with_adapters(info: EngineInfo, lora: LoRASetup, config: EngineConfig) -> EngineInfo:
    if lora.lora_config is None:
        return info
    slots, max_rank = lora.lora_config
    return msgspec.structs.replace(
        info, max_loras=slots, max_lora_rank=max_rank, default_adapter=config.default_adapter
    )


def _fetch_weights(
    config: EngineConfig, checkpoint: Checkpoint, plan: ModelPlan, chat_template: str | None, progress: Progress | None
) -> Checkpoint:
    """Returns the checkpoint after missing weights were downloaded.

    Raises:
        ConfigError: the index lacks a tensor, the tokenizer or the chat template cannot be used, or the download
            failed.
    """
    missing = find_missing_weights(config.model, checkpoint)
    if missing is not None:
        check_index(checkpoint, plan.family.weights(plan.arch))
        if not config.skip_tokenizer:
            Tokenizer(checkpoint.path, chat_template)  # it is read again where it is used
        missing.fetch(progress)
    return checkpoint


def _check_experts(config: EngineConfig, sizing: Sizing) -> None:
    """Raises ConfigError if experts are to be distributed, and the model has none."""
    if config.expert_parallel_size == 1:
        return
    weights = named_weights(cast(nn.Module, sizing.meta_model)).values()
    if not any(weight.shard and weight.shard.dim == -3 for weight in weights):
        raise ConfigError(
            f"--expert-parallel-size {config.expert_parallel_size}: the model has no experts to distribute; "
            "leave it out"
        )


def _structured_output_unavailable_reason(config: EngineConfig, plan: ModelPlan, ids: TokenIds) -> str:
    """Returns why structured output is not available; "" if it is."""
    if config.skip_tokenizer:
        return "no tokenizer is loaded"
    if not plan.strategy.supports_grammar:
        return f"structured output is not supported by the {plan.strategy_key} strategy"
    return "" if ids.eos else "the model has no end-of-sequence token"


def _device(config: EngineConfig) -> torch.device:
    name = config.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda":
        require_gpu("--device cuda")
    return torch.device(name)


def _dtype(config: EngineConfig) -> torch.dtype:
    return resolve_dtype(config, _device(config).type)


def _info(config: EngineConfig, checkpoint: Checkpoint, plan: ModelPlan, rank: RankDevice) -> EngineInfo:
    """Returns EngineInfo without the number of pages, which depends on the memory after loading."""
    family, facts, context, strategy = plan.family, plan.facts, plan.context, plan.strategy
    ids = resolve_token_ids(
        checkpoint, family, facts, mask_token_id=config.mask_token_id, eos_token_ids=config.eos_token_ids,
        skip_tokenizer=config.skip_tokenizer,
    )  # fmt: skip
    edit_tokens = read_edit_tokens(facts, ids)
    info = EngineInfo(
        family=family.key,
        strategy=plan.strategy_key,
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
        block_size=context.block_size,
        buffer_size=strategy.buffer_size,
        page_size=plan.page_size,
        num_pages=0,
        max_model_len=context.max_model_len,
        max_num_reqs=config.max_num_reqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        prefix_caching=context.prefix_caching and strategy.prefix_cacheable,
        blocks_from_prompt=strategy.block_layout.from_prompt,
        truncate_last_block=strategy.block_layout.truncate_last,
        sees_suffix=strategy.sees_suffix,
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
        structured_output_error=_structured_output_unavailable_reason(config, plan, ids),
        **request_defaults(config, family, plan.defaults, strategy, plan.strategy_key, context.block_size, edit_tokens),
    )
    return with_decoding_flag(config, info)
