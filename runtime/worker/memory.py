"""Builds the model runner: sizes the KV pool by profiling, warms up, and captures CUDA graphs."""

from __future__ import annotations

import contextlib
import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch

from runtime.algorithms.base import EditTokens
from runtime.algorithms.logits_ops import DEFAULT_LOGITS_OPS, CompiledLogitsOps
from runtime.config import EngineConfig
from runtime.distributed.process_group import TensorParallelGroup
from runtime.errors import ConfigError
from runtime.kernels.compiler import (
    KernelCompiler,
    KernelNotCached,
    log_compilations,
    record_specializations,
    require_cached_kernels,
)
from runtime.layers.kv_pool import CPU_POOL_BYTES, LAYOUTS
from runtime.models.base import Model
from runtime.request.engine_messages import EngineInfo
from runtime.scheduling.lora_manager import LoRAManager
from runtime.scheduling.strategy import Strategy, max_request_len, max_request_pages
from runtime.worker.candidates import SamplerConfig
from runtime.worker.cuda_graph_runner import CudaGraphRunner, GraphCapturer, LockstepCapturer, Work
from runtime.worker.graph_padding import CaptureSizes
from runtime.worker.model_runner import ModelRunner
from runtime.worker.warmup import capture_graphs, estimate_graph_bytes, run_captures_eagerly, warm_up

log = logging.getLogger(__name__)
T = TypeVar("T")

MIN_CAPTURE_ROWS = 2048  # captured with few requests too, as prefill chunks have many rows
MAX_CAPTURE_ROWS = 4096  # the sizes of larger steps are further apart in rows


class TooFewPages(ConfigError):
    """The KV cache has too few pages for a request of --max-model-len.

    Attributes:
        pages: its pages, the same number on all ranks.
    """

    def __init__(self, message: str, pages: int) -> None:
        super().__init__(message)
        self.pages = pages


@dataclass(frozen=True)
class RankDevice:
    """The device of a rank.

    Attributes:
        dtype: of weights and KV pool.
        group: tensor parallel group of the rank.
        free_at_start: free device memory in bytes before the weights were loaded; 0 on a CPU.
        compiler: compiles kernels before they are launched. None: each launch compiles its own.
    """

    device: torch.device
    dtype: torch.dtype
    group: TensorParallelGroup
    free_at_start: int
    compiler: KernelCompiler | None = None


@log_compilations()
def build_model_runner(
    config: EngineConfig, info: EngineInfo, strategy: Strategy, model: Model, lora_manager: LoRAManager,
    rank: RankDevice,
) -> tuple[ModelRunner, int]:  # fmt: skip
    """Returns the warmed-up runner and the number of pages of its KV pool, the same on all ranks.

    Raises:
        TooFewPages: the memory does not suffice for one request of --max-model-len.
    """
    device, on_cuda = rank.device, rank.device.type == "cuda"
    runners = _Runners(config, info, strategy, model, lora_manager, rank)
    # The compiler records the kernels in an extra run, which would run torch.compile a second time.
    compiler = rank.compiler if on_cuda and config.compile_mode is None else None
    kernels = _Kernels(partial(runners.make, runners.warm_up_pages), runners.warm_up, info, rank.group, compiler)
    pages = config.num_pages
    if pages is None and on_cuda:
        pages = runners.pages_within(kernels.compiled_before(runners.measure_memory))
    elif pages is None:
        enough = max(-(-info.max_num_reqs * info.max_model_len // info.page_size), runners.min_pages)
        pages = min(enough, CPU_POOL_BYTES // runners.page_nbytes)
    pages = rank.group.min_across_ranks(pages, device)
    if pages < runners.min_pages:
        found = f"--num-pages: {pages}" if config.num_pages else f"there is memory for {max(pages, 0)} cache"
        raise TooFewPages(
            f"{found} pages of {info.page_size} tokens, fewer than the {runners.min_pages} that one request of "
            f"--max-model-len {info.max_model_len} needs; lower --max-model-len or provide more memory",
            max(pages, 0),
        )
    if on_cuda and config.num_pages is not None:  # otherwise profiling has warmed up the kernels
        runner = kernels.compiled_before(partial(runners.make_warm, pages))
    else:
        runner = runners.make(pages)
    if not on_cuda:
        runners.warm_up(runner, runner.block_size)
    nbytes, conditioning = runner.states.nbytes, runner.model_step.self_conditioning_state
    log.info("Tokens, states and page tables of %d requests: %.1f MB of memory", info.max_num_reqs, nbytes / 1e6)
    if conditioning is not None:
        log.info("Self-conditioning of %d requests: %.1f MB of memory", info.max_num_reqs, conditioning.nbytes / 1e6)
    if isinstance(runner, CudaGraphRunner):
        capture_graphs(runner, info)
    return runner, pages


class _Runners:
    """Makes runners of one configuration.

    Attributes:
        min_pages: pages of the longest request.
        warm_up_pages: pages that the steps of the warm-up use.
        page_nbytes: bytes of a page.
    """

    def __init__(
        self, config: EngineConfig, info: EngineInfo, strategy: Strategy, model: Model, lora_manager: LoRAManager,
        rank: RankDevice,
    ) -> None:  # fmt: skip
        self.config, self.info, self.model, self.rank = config, info, model, rank
        self.graph_modules = lora_manager.graph_modules
        self.pool_layout = LAYOUTS[config.kv_cache_layout]
        self.page_nbytes = self.pool_layout.page_bytes(model.kv_shapes, info.page_size, rank.dtype)
        self.min_pages = max_request_pages(strategy, info.max_model_len, info.page_size)
        self.warm_up_pages = min(self.min_pages, -(-info.max_num_batched_tokens // info.page_size))
        self.sizes = capture_sizes_for(info, strategy, self.min_pages, lora_manager)
        self.uses_cuda_graphs = _uses_cuda_graphs(config, rank.device, rank.dtype)
        logits_ops = DEFAULT_LOGITS_OPS
        if config.compile_mode is not None:
            logits = torch.promote_types(rank.dtype, torch.float32)
            logits_ops = CompiledLogitsOps(config.compile_mode, rank.device, logits, info.vocab_size)
        self.sampler_config = SamplerConfig(
            block_size=self.sizes.block_size,
            mask_id=info.mask_token_id,
            max_token_id=info.max_token_id,
            eos_ids=tuple(info.eos_token_ids),
            edit_tokens=EditTokens.of(info),
            max_num_reqs=info.max_num_reqs,
            max_request_len=max_request_len(strategy, info.max_model_len),
            max_request_pages=self.min_pages,
            vocab_size=info.vocab_size,
            batch_invariant=config.deterministic,
            logits_ops=logits_ops,
        )

    def make(self, pages: int) -> ModelRunner:
        model, config, device = self.model, self.sampler_config, self.rank.device
        pool = self.pool_layout(
            model.kv_shapes, num_pages=pages, page_size=self.info.page_size, dtype=self.rank.dtype, device=device
        )
        if not self.uses_cuda_graphs:
            return ModelRunner(model, pool, config)
        capture: Callable[[Work], Work] = GraphCapturer(device)
        if self.rank.group.size > 1:
            capture = LockstepCapturer(capture, self.rank.group.buffer)
        capture_sampling = not self.config.disable_full_static_runner
        return CudaGraphRunner(model, pool, config, self.sizes, capture, capture_sampling=capture_sampling)

    def make_warm(self, pages: int) -> ModelRunner:
        runner = self.make(pages)
        self.warm_up(runner)
        return runner

    def warm_up(self, runner: ModelRunner, rows: int | None = None) -> None:
        """Runs steps up to `rows` rows. None: up to the largest one."""
        rows, longest = rows or self.info.max_num_batched_tokens, self.info.max_model_len
        warm_up(runner, rows=rows, max_seq_len=longest, active_lora_modules=self.graph_modules)

    def measure_memory(self) -> int:
        """Returns the device memory in bytes of the largest step and of all CUDA graphs."""
        torch.cuda.reset_peak_memory_stats()
        allocated_before = torch.cuda.memory_allocated()
        runner = self.make_warm(self.warm_up_pages)
        largest_step = torch.cuda.max_memory_allocated() - allocated_before - runner.pool.nbytes
        return largest_step + (estimate_graph_bytes(runner, self.info) if isinstance(runner, CudaGraphRunner) else 0)

    def pages_within(self, step_bytes: int) -> int:
        """Returns the number of pages for which memory is left besides that of steps."""
        _free_runners()
        used = self.rank.free_at_start - torch.cuda.mem_get_info()[0]
        left = self.rank.free_at_start * self.config.gpu_memory_utilization - used - step_bytes
        return int(left // self.page_nbytes)


@dataclass(frozen=True)
class _Kernels:
    """Compiles the kernels of all steps in parallel, as far as the cache does not have them.

    Attributes:
        make_runner: makes a runner with the smallest KV pool.
        warm_up: runs its steps.
        compiler: None: each launch compiles its own kernel.
    """

    make_runner: Callable[[], ModelRunner]
    warm_up: Callable[[ModelRunner], None]
    info: EngineInfo
    group: TensorParallelGroup
    compiler: KernelCompiler | None

    def compiled_before(self, work: Callable[[], T]) -> T:
        """Compiles missing kernels, runs `work`, which warms up a runner, and returns its result.

        Each start compiles the kernels of both `work` and the CUDA graphs. Therefore, a cache that has all kernels of
        `work` has those of the graphs too.
        """
        if self.compiler is None:
            return work()
        self.compiler.wait_until_hashed()
        if self.group.size == 1:  # if one rank raised, the others would wait in a collective operation
            began = time.monotonic()
            with contextlib.suppress(KernelNotCached), require_cached_kernels():
                result = work()
                log.info("All kernels are in the cache (warm-up: %.1f s)", time.monotonic() - began)
                return result
        _free_runners()
        self._compile(self.compiler)
        _free_runners()
        return work()

    def _compile(self, compiler: KernelCompiler) -> None:
        """Records the kernels of all steps, and compiles those that the cache does not have."""
        began = time.monotonic()
        runner = self.make_runner()
        with record_specializations() as found:
            self.warm_up(runner)
        missing = compiler.missing(found)
        # Steps have collective operations, so all ranks record the same ones.
        if isinstance(runner, CudaGraphRunner) and self.group.min_across_ranks(-len(missing), runner.device):
            compiler.submit(missing)  # compiled while the kernels of the captures are recorded
            with record_specializations() as found:
                run_captures_eagerly(runner, self.info)
            missing = list(dict.fromkeys([*missing, *compiler.missing(found)]))
        torch.cuda.synchronize(runner.device)
        log.info("%d kernels are not in the cache (recorded in %.1f s)", len(missing), time.monotonic() - began)
        compiler.submit(missing)
        compiler.wait()


def _free_runners() -> None:
    """Frees the device memory of runners that are not used any more. They are part of reference cycles."""
    gc.collect()
    torch.cuda.empty_cache()


def capture_sizes_for(info: EngineInfo, strategy: Strategy, pages: int, lora_manager: LoRAManager) -> CaptureSizes:
    """Returns the sizes of steps to capture.

    Args:
        pages: pages of the longest request.
    """
    block = min(info.block_size, max_request_len(strategy, info.max_model_len))
    blocks = 2 * info.max_num_reqs * block  # a request denoises one and commits another
    budget = info.max_num_batched_tokens
    max_tokens = max(min(budget, max(blocks, strategy.max_rows(), MIN_CAPTURE_ROWS), MAX_CAPTURE_ROWS), block)
    return CaptureSizes(
        block_size=block,
        pages=pages,
        page_size=info.page_size,
        max_tokens=max_tokens,
        max_sampled_blocks=info.max_num_reqs * strategy.buffer_size,
        max_num_reqs=info.max_num_reqs,
        lora_modules=lora_manager.all_modules,
        eager_lora_modules=lora_manager.eager_modules,
        max_prefill_tokens=budget if budget // block > max_tokens // block else 0,
        short_blocks=tuple(size for size in strategy.short_blocks if size < block),
    )


def _uses_cuda_graphs(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether CUDA graphs are used: on a GPU, unless a flag disables them or attention synchronizes with the host."""
    if device.type != "cuda" or config.enforce_eager:
        return False
    if config.attn_impl in ("torch", "naive") or dtype == torch.float64:
        log.warning("CUDA graphs disabled: the torch attention backend and float64 cannot be captured")
        return False
    return True
