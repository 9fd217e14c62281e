"""From a built model to the runner of its steps: the K/V pool as large as memory allows, everything warmed up, and on a
GPU recorded."""

from __future__ import annotations

import gc
import logging
from typing import Any

import torch

from runtime.algorithms.compiled_logits_ops import CompiledLogitsOps
from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS
from runtime.config import EngineConfig
from runtime.distributed.process_group import SINGLE_RANK, TensorParallelGroup
from runtime.engine.lora_manager import Adapters
from runtime.engine.request_defaults import orders_of
from runtime.errors import ConfigError
from runtime.layers.kv_pool import LAYOUTS
from runtime.models.base import Model
from runtime.request.engine_messages import EngineInfo
from runtime.strategies import Strategy, max_request_len
from runtime.worker.capture_sizes import CaptureSizes
from runtime.worker.cuda_graph import GraphCapturer
from runtime.worker.cuda_graph_runner import CudaGraphRunner
from runtime.worker.model_runner import ModelRunner
from runtime.worker.warmup import record_steps, recorded_bytes, warm_up

log = logging.getLogger(__name__)

CPU_POOL_BYTES = 1 << 30
PROMPT_ROWS = 2048  # that steps are recorded for however few requests there may be: a prompt's chunk has many rows too
RECORDED_ROWS = 4096  # most rows of a step that is recorded whatever its size


def make_runner(
    config: EngineConfig,
    info: EngineInfo,
    strategy: Strategy,
    model: Model,
    device: torch.device,
    dtype: torch.dtype,
    free_at_start: int,
    adapters: Adapters,
    group: TensorParallelGroup = SINGLE_RANK,
) -> tuple[ModelRunner, int]:
    """The runner with its K/V pool, warmed up and recorded, and the pool's pages, as many in all of a group."""
    page_size, layout = info.page_size, LAYOUTS[config.kv_cache_layout]
    bytes_of_page = layout.page_bytes(model.kv_shapes, page_size, dtype)
    unit = max(page_size, info.block_layout.alignment)
    longest = max_request_len(strategy, info.max_model_len)
    needed = -(-longest // unit) * (unit // page_size)
    sizes = step_sizes(info, strategy, needed, adapters)
    block = sizes.block_size
    records = _records(config, device, dtype)
    logits_ops = DEFAULT_LOGITS_OPS
    if config.compile_mode is not None:
        logits = torch.promote_types(dtype, torch.float32)
        logits_ops = CompiledLogitsOps(config.compile_mode, device, logits, info.vocab_size)

    def make(pages: int) -> ModelRunner:
        pool = layout(model.kv_shapes, num_pages=pages, page_size=page_size, dtype=dtype, device=device)
        named: dict[str, Any] = {
            "block_size": block,
            "mask_id": info.mask_token_id,
            "max_token_id": info.max_token_id,
            "eos_ids": tuple(info.eos_token_ids),
            "edit_tokens": orders_of(info),
            "max_num_reqs": info.max_num_reqs,
            "batch_invariant": config.deterministic,
            "logits_ops": logits_ops,
        }
        if not records:
            return ModelRunner(model, pool, **named)
        return CudaGraphRunner(
            model,
            pool,
            **named,
            sizes=sizes,
            capture=GraphCapturer(device),
            capture_sampling=not config.disable_full_static_runner,
        )

    pages, on_cuda = config.num_pages, device.type == "cuda"
    if pages is None and on_cuda:
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        runner = make(needed)
        warm_up(runner, rows=info.max_num_batched_tokens, longest=info.max_model_len, adapted=adapters.every)
        pool = runner.pool.nbytes
        largest_step = torch.cuda.max_memory_allocated() - held - pool
        recorded = recorded_bytes(runner, info) if isinstance(runner, CudaGraphRunner) else 0
        del runner
        gc.collect()
        torch.cuda.empty_cache()
        used = free_at_start - torch.cuda.mem_get_info()[0]
        left = free_at_start * config.gpu_memory_utilization - used - largest_step - recorded
        pages = int(left // bytes_of_page)
    elif pages is None:
        wanted = max(-(-info.max_num_reqs * info.max_model_len // page_size), needed)
        pages = min(wanted, CPU_POOL_BYTES // bytes_of_page)
    pages = group.min_across_ranks(pages, device)
    if pages < needed:
        found = f"--num-pages: {pages}" if config.num_pages else f"there is memory for {max(pages, 0)} cache"
        raise ConfigError(
            f"{found} pages of {page_size} tokens, fewer than the {needed} that one request of --max-model-len "
            f"{info.max_model_len} needs; lower --max-model-len or make more room"
        )
    runner = make(pages)
    if config.num_pages is not None or not on_cuda:  # else the runner that measured has warmed everything up
        rows = info.max_num_batched_tokens if on_cuda else runner.block_size
        warm_up(runner, rows=rows, longest=info.max_model_len, adapted=adapters.every)
    if isinstance(runner, CudaGraphRunner):
        record_steps(runner, info)
    return runner, pages


def step_sizes(info: EngineInfo, strategy: Strategy, pages: int, adapters: Adapters) -> CaptureSizes:
    """What steps are filled up to. `pages`: of the longest request."""
    block = min(info.block_size, max_request_len(strategy, info.max_model_len))
    blocks = 2 * info.max_num_reqs * block  # each denoises one, and commits another
    budget = info.max_num_batched_tokens
    most = max(min(budget, max(blocks, strategy.max_rows(), PROMPT_ROWS), RECORDED_ROWS), block)
    return CaptureSizes(
        block_size=block,
        pages=pages,
        page_size=info.page_size,
        max_tokens=most,
        max_sampled_blocks=info.max_num_reqs * strategy.buffer_size,
        max_num_reqs=info.max_num_reqs,
        lora_modules=adapters.any,
        eager_lora_modules=adapters.apart,
        max_prefill_tokens=budget if budget // block > most // block else 0,
    )


def _records(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether steps are recorded: on a GPU, unless the flags say otherwise or something in a step asks the host."""
    if device.type != "cuda" or config.enforce_eager:
        return False
    if config.attn_impl in ("torch", "naive") or dtype == torch.float64:
        log.warning("steps are launched anew each time: attention in torch plans on the host")
        return False
    return True
