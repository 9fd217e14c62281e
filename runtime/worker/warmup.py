"""First steps of every size, so that compiling, allocating, recording and failing happen before the first request."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from runtime.algorithms import LogitStat, get_algorithm
from runtime.algorithms.base import TOKEN_MERGE_TOP_K
from runtime.engine.request import MASKED
from runtime.engine.step_plan import AlgorithmBatch, DenoiseBlocks, SamplingInputs, block_causal_plan
from runtime.request.engine_messages import EngineInfo
from runtime.worker.cuda_graph_runner import CudaGraphRunner
from runtime.worker.input_batch import ForwardDescriptor, SampleDescriptor
from runtime.worker.model_runner import ModelRunner

log = logging.getLogger(__name__)

TELL_EVERY = 5.0  # seconds
UNEVEN = 320  # rows that leave much of kernels' tiles empty: then some leave it to the vendor's library
MEASURED = 4  # recordings of each kind whose memory is taken for all the others'


def warm_up(runner: ModelRunner, *, rows: int, longest: int, adapted: int = 0) -> None:
    """Steps of one block, two, four ..., one of UNEVEN and at last `rows` rows through the whole runner: kernels choose
    their tiles by the size of a step. The sequences are at most `longest` tokens long and lie on the first pages.
    `adapted`: what adapters may change, of which the first slot's is then that of all."""
    block = runner.block_size
    sizes = {block << n for n in range(rows.bit_length())} | {UNEVEN // block * block}  # of large blocks one of them
    for size in sorted(size for size in sizes if 0 < size < rows):
        _step(runner, size, longest, adapted)
    _step(runner, rows, longest, adapted)


def _step(runner: ModelRunner, rows: int, longest: int, adapted: int) -> None:
    """Every row is sampled, drawing under top-p beside the rest that a rule can ask for: no step takes more memory."""
    size = runner.block_size
    longest = max(longest // size, 1) * size
    counts = [min(longest, rows - start) // size * size for start in range(0, rows // size * size, longest)]
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
        tokens=np.full(shape, token),
        state=np.full(shape, MASKED, dtype=np.int8),
        sampled=np.ones(shape, dtype=np.bool_),
        may_force=np.ones(blocks, dtype=np.bool_),
        num_steps_forcing=none + 1,  # a model that conditions itself is told of a step before
        initial_masks=none + size,
        step_budget=none,
        post_edit_steps=none,
        remasked=None,
        sampling=SamplingInputs(np.tile([1.0, 0.9, 0.0, 0.0], (blocks, 1)), np.zeros(shape)),
        groups=(AlgorithmBatch(rule.key, np.arange(blocks), params, sum(LogitStat)),),
        req_slot=none,
    )
    first = np.zeros(len(counts), dtype=np.int64)
    plan = block_causal_plan(
        np.full(total, token),
        first,
        np.array(counts),
        np.tile(table, (len(counts), 1)),
        page_size=runner.pool.page_size,
        block_size=size,
        blocks=block_plan,
    )
    if adapted:
        plan = replace(plan, lora_slots=np.zeros(total, dtype=np.int32), active_lora_modules=adapted)
    runner.launch(plan)


def record_steps(runner: CudaGraphRunner, info: EngineInfo) -> None:
    """Record all sizes of a step, under the rule and with the values that a request has which sets none."""
    began, told = time.monotonic(), time.monotonic()
    before = _taken(runner.device)
    works = _works(runner, *_shapes(runner, info))
    for done, work in enumerate(works):
        work()
        if time.monotonic() - told > TELL_EVERY:
            told = time.monotonic()
            log.info("recording steps: %d of %d", done + 1, len(works))
    runner.stats.graph_bytes = _since(before, runner.device)
    log.info(
        "recorded %d steps in %.1f s, %.2f GB of the device's memory",
        runner.num_graphs, time.monotonic() - began, runner.stats.graph_bytes / 1e9,
    )  # fmt: skip


def recorded_bytes(runner: CudaGraphRunner, info: EngineInfo) -> int:
    """What `record_steps` will take: the largest of each kind, and of all others what a few do, as they share memory
    but for the launches themselves."""
    forwards, samples = _shapes(runner, info)
    before = _taken(runner.device)
    for work in _works(runner, forwards[:1], samples[:1]):
        work()
    largest = _since(before, runner.device)
    each = 0
    for some in (_works(runner, forwards[1:], []), _works(runner, [], samples[1:])):
        before = _taken(runner.device)
        for work in some[:MEASURED]:
            work()
        each += _since(before, runner.device) * len(some) // MEASURED
    return largest + each


def _shapes(runner: CudaGraphRunner, info: EngineInfo) -> tuple[list[ForwardDescriptor], list[SampleDescriptor]]:
    forwards = runner.sizes.forward_descriptors(self_conditioning=runner.self_conditioning)
    if not runner.capture_sampling:
        return forwards, []
    defaults = info.defaults()
    rule = runner.step.sampler.get_algorithm(defaults.algorithm)
    wants = rule.required_stats(defaults.values)
    top = int(str(defaults.values[TOKEN_MERGE_TOP_K.name])) if wants & LogitStat.TOP_K else 0
    limited = info.top_p < 1 or info.top_k > 0
    samples = runner.sample_descriptors(rule, int(wants), top_k=top, sampled=info.temperature > 0, filtered=limited)
    return forwards, samples


def _works(
    runner: CudaGraphRunner, forwards: list[ForwardDescriptor], samples: list[SampleDescriptor]
) -> list[Callable[[], None]]:
    works: list[Callable[[], None]] = [partial(runner.capture_forward, shape) for shape in forwards]
    return works + [partial(runner.capture_sample, shape) for shape in samples]


def _taken(device: torch.device) -> tuple[int, int]:
    """Bytes of the device's memory that are taken, and of these what this process's tensors take; without what is kept
    to be used again. 0 where there is no such thing."""
    if device.type != "cuda":
        return 0, 0
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    return total - free, torch.cuda.memory_reserved(device)


def _since(before: tuple[int, int], device: torch.device) -> int:
    """Bytes taken since then. Other processes may have given some back; what tensors took is this one's in any case."""
    return max(now - then for now, then in zip(_taken(device), before, strict=True))
