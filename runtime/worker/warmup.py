"""Warm-up: runs a step of each size before the first request, so that kernels are compiled and memory is allocated."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import torch

from runtime.algorithms.base import TOKEN_MERGE_TOP_K, LogitStat, get_algorithm
from runtime.kernels.ops import select_kernels
from runtime.kernels.segments import LORA_SLOT
from runtime.request.engine_messages import EngineInfo
from runtime.scheduling.step_plan import (
    BLOCK_NUMBERS,
    COUNTERS,
    MASKED,
    AlgorithmBatch,
    DenoiseBlocks,
    block_causal_plan,
)
from runtime.worker.cuda_graph_runner import CudaGraphRunner
from runtime.worker.graph_padding import padded_history_len, sampled_rows_step
from runtime.worker.input_batch import AlgorithmDescriptor, ForwardDescriptor, SampleDescriptor
from runtime.worker.model_runner import ModelRunner

log = logging.getLogger(__name__)

LOG_SECONDS = 5.0
UNEVEN_ROWS = 320  # partly fills the tiles of kernels, so that some use the vendor's library
MEASURED_CAPTURES = 4  # captures of each kind whose memory is measured
CHUNK_BYTES = 2 << 20  # the driver allocates device memory of launches in chunks of this size
READY_REQUESTS = 8  # graphs for steps of so many requests are captured at start

Descriptor = ForwardDescriptor | SampleDescriptor


def warm_up(runner: ModelRunner, *, rows: int, max_seq_len: int, active_lora_modules: int = 0) -> None:
    """Runs steps of increasing size, up to `rows` rows. Kernels select their tile sizes by the size of a step.

    Args:
        max_seq_len: maximum length of the sequences. They use the first pages of the pool.
        active_lora_modules: modules that adapters may change; all rows use the first LoRA slot.
    """
    block = runner.block_size
    sizes = {block << n for n in range(rows.bit_length())} | {UNEVEN_ROWS // block * block}  # none for large blocks
    for size in sorted(size for size in sizes if 0 < size < rows):
        _step(runner, size, max_seq_len, active_lora_modules)
    _step(runner, rows, max_seq_len, active_lora_modules)
    numbers = torch.zeros(len(COUNTERS), 1, dtype=torch.int64, device=runner.device)
    runner.model_step.choose(numbers)
    logits, row = torch.zeros(1, 1, device=runner.device), torch.zeros(1, dtype=torch.int64, device=runner.device)
    select_kernels(runner.device, logits.dtype).bitmask_argmax(logits, row, row.int()[:, None])


def _step(runner: ModelRunner, rows: int, max_seq_len: int, active_lora_modules: int) -> None:
    """Runs a step that samples every row with top-p and computes all statistics, so that no step needs more memory."""
    size = runner.block_size
    max_seq_len = max(max_seq_len // size, 1) * size
    counts = [min(max_seq_len, rows - start) // size * size for start in range(0, rows // size * size, max_seq_len)]
    total = sum(counts)
    table = np.arange(-(-max(counts) // runner.pool.page_size), dtype=np.int32)
    blocks = total // size
    shape = (blocks, size)
    rule = get_algorithm("threshold")
    params = np.tile([1.0 if name == "max_steps_per_block" else 0.5 for name in rule.columns], (blocks, 1))
    none = np.zeros(blocks, dtype=np.int64)
    token = runner.mask_id or 0
    block_plan = DenoiseBlocks(
        rows=np.arange(0, total, size),
        req_slot=none,
        start=none,
        size=none,  # no step changes a request
        tokens=np.full(shape, token),
        state=np.full(shape, MASKED, dtype=np.int8),
        sampled=np.ones(shape, dtype=np.bool_),
        numbers=np.ones((blocks, len(BLOCK_NUMBERS)), dtype=np.int64),
        sampling_params=np.tile([1.0, 0.9, 0.0, 0.0], (blocks, 1)),
        draws=np.zeros((blocks, 3), dtype=np.int64),
        groups=(AlgorithmBatch(rule, np.arange(blocks), params, sum(LogitStat)),),
        self_conditioned=True,
    )
    first = np.zeros(len(counts), dtype=np.int64)
    plan = block_causal_plan(
        np.full(total, token),
        first,
        np.array(counts),
        np.tile(table, (len(counts), 1)),
        block_size=size,
        blocks=block_plan,
    )
    if active_lora_modules:
        plan.segments[:, LORA_SLOT] = 0
        plan = replace(plan, active_lora_modules=active_lora_modules)
    runner.launch(plan)


def capture_graphs(runner: CudaGraphRunner, info: EngineInfo) -> None:
    """Captures CUDA graphs of the sizes that `READY_REQUESTS` requests need, and leaves the others to `capture_next`.

    They have the default algorithm and sampling parameters.
    """
    began, logged = time.monotonic(), time.monotonic()
    before = _used_bytes(runner.device)
    first, later = split_captures(*_descriptors(runner, info), runner.block_size)
    for done, descriptor in enumerate(first):
        runner.capture_graph(descriptor)
        if time.monotonic() - logged > LOG_SECONDS:
            logged = time.monotonic()
            log.info("Capturing CUDA graphs: %d of %d", done + 1, len(first))
    runner.capture_later(later)
    runner.stats.graph_bytes = _used_since(before, runner.device)
    log.info(
        "Captured %d CUDA graphs in %.1f s, %.2f GB of device memory; %d more are captured while no request runs",
        runner.num_graphs, time.monotonic() - began, runner.stats.graph_bytes / 1e9, len(later),
    )  # fmt: skip


def split_captures(
    forwards: Sequence[Descriptor], samples: Sequence[Descriptor], block_size: int
) -> tuple[list[Descriptor], list[Descriptor]]:
    """Returns the descriptors to capture at start, and the others in order of use: those of few requests first.

    The largest forward and the largest sampling are captured at start too. All others reuse their memory.

    Args:
        forwards, samples: all descriptors, largest first.
        block_size: positions per block.
    """

    def requests(descriptor: Descriptor) -> int:
        if isinstance(descriptor, SampleDescriptor):
            return descriptor.blocks - 1  # without the padding block
        return -(-descriptor.rows // (2 * block_size))  # a request denoises a block and commits another

    first: list[Descriptor] = []
    later: list[Descriptor] = []
    for descriptors in (forwards, samples):
        for i, descriptor in enumerate(descriptors):
            (first if i == 0 or requests(descriptor) <= READY_REQUESTS else later).append(descriptor)
    return first, sorted(later, key=requests)


def run_captures_eagerly(runner: CudaGraphRunner, info: EngineInfo) -> None:
    """Runs what `capture_graphs` captures once, without a capture. The runner has no graphs afterwards."""

    def run_once(work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None

    capture, runner.capture = runner.capture, run_once
    try:
        forwards, samples = _descriptors(runner, info)
        for descriptor in (*forwards, *samples):
            runner.capture_graph(descriptor)
    finally:
        runner.capture = capture
        runner.discard_graphs()


def estimate_graph_bytes(runner: CudaGraphRunner, info: EngineInfo) -> int:
    """Estimates the device memory of `capture_graphs` in bytes.

    Graphs share memory, so the largest one is measured, and a few others for the memory of the launches themselves. The
    latter are counted as one chunk at least: they may fit into a chunk that was allocated before.
    """
    forwards, samples = _descriptors(runner, info)
    before = _used_bytes(runner.device)
    for descriptor in (*forwards[:1], *samples[:1]):
        runner.capture_graph(descriptor)
    largest = _used_since(before, runner.device)
    others = 0
    for some in (forwards[1:], samples[1:]):
        before, measured = _used_bytes(runner.device), some[:MEASURED_CAPTURES]
        for descriptor in measured:
            runner.capture_graph(descriptor)
        used = max(_used_since(before, runner.device), CHUNK_BYTES)
        others += used * len(some) // max(len(measured), 1)
    return largest + others


def _descriptors(runner: CudaGraphRunner, info: EngineInfo) -> tuple[Sequence[Descriptor], Sequence[Descriptor]]:
    """Returns the descriptors of forwards, and of sampling with the default algorithm and sampling parameters, for all
    numbers of blocks; largest first."""
    sizes, samples = runner.sizes, []
    if not runner.capture_sampling:
        return sizes.forward_descriptors(), []
    defaults = info.defaults()
    rule = runner.model_step.sampler.get_algorithm(defaults.algorithm)
    wants = rule.required_stats(defaults.values)
    top_k = int(str(defaults.values[TOKEN_MERGE_TOP_K.name])) if wants & LogitStat.TOP_K else 0
    history_len = padded_history_len(int(bool(rule.history_fields)), static=rule.static_history)
    for n, size in sorted(product(sizes.sampled_blocks, sizes.block_sizes), key=math.prod, reverse=True):
        positions = n * size
        if positions > sizes.rows[-1]:
            continue
        step = sampled_rows_step(positions)
        first = positions if rule.uniform_noise else step  # each step samples all positions of noise
        for rows in reversed(range(-(-first // step) * step, positions + step, step)):
            num_random = rows if info.temperature > 0 else 0
            num_filtered = num_random if info.top_p < 1 or info.top_k > 0 or info.min_p > 0 else 0
            group = AlgorithmDescriptor(rule, int(wants), n + 1, rows, num_random, num_filtered, history_len, top_k)
            descriptor = SampleDescriptor(
                n + 1, size, (group,), uniform_noise=rule.uniform_noise, self_conditioned=runner.self_conditioned
            )
            samples.append(descriptor)
    return sizes.forward_descriptors(), samples


def _used_bytes(device: torch.device) -> tuple[int, int]:
    """Returns the used device memory, and the memory reserved by this process, in bytes. 0 without CUDA."""
    if device.type != "cuda":
        return 0, 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return total - free, torch.cuda.memory_reserved(device)


def _used_since(before: tuple[int, int], device: torch.device) -> int:
    """Returns the bytes used since `before`; the larger difference, as other processes may have freed memory."""
    return max(now - then for now, then in zip(_used_bytes(device), before, strict=True))
