"""`python -m runtime.bench steps --live`: wall clock of ``Engine.execute_step``, and the device time of the step.

Requests are live: prefilled, scheduled, planned, and their results applied. Steps change no block, so that all have the
same input, or end each block (`steady_state.py`). Each position of the open block is masked with probability 0.5, and
the others have random ids. A block that has just opened is fully masked. The wall clock includes all host work, copies,
forward, LM head and unmasking algorithms, and the reset before the step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import msgspec
import numpy as np
import torch

from runtime.algorithms.base import algorithm_keys, get_algorithm
from runtime.bench.accept_none import AcceptNoneRunner, count_experts
from runtime.bench.layers import layer_error
from runtime.bench.roofline import work_of
from runtime.bench.steady_state import (
    SERVED,
    TIMED_STEPS,
    WARMUP_STEPS,
    SteadyStep,
    begin,
    pages_of,
    steady_step,
)
from runtime.engine.engine import Engine
from runtime.layers.kv_pool import KVPool
from runtime.models.base import Model, ModelInfo
from runtime.models.decoder import Decoder
from runtime.request.engine_messages import EngineInfo, RequestSpec
from runtime.request.field_spec import AlgorithmInfo, with_defaults
from runtime.scheduling.lora_manager import LoRAManager
from runtime.scheduling.request import Request
from runtime.scheduling.step_plan import MASKED, UNMASKED
from runtime.scheduling.strategy import Strategy, max_request_len, max_request_pages
from runtime.strategies.full import CACHE
from runtime.worker.candidates import SamplerConfig
from runtime.worker.cuda_graph_runner import CudaGraphRunner, GraphCapturer
from runtime.worker.memory import capture_sizes_for
from runtime.worker.model_runner import ModelRunner, RunnerStats

ACCEPT = 1.0  # a threshold that no probability exceeds
IDS = 1000, 150_000  # range of unmasked token ids, limited to the vocabulary
BLOCKS = 23  # seed of the tokens of open blocks, which do not depend on the context length


def cases(args: argparse.Namespace, strategy: Strategy) -> list[tuple[str, int, int, list[SteadyStep]]]:
    """Returns kind, batch, context and steps of each case of the flags. The last step is the case, others its parts.

    Raises:
        ConfigError: the strategy has no such step.
    """
    found = []
    for kind in args.cases:
        kinds = ["plain", "chunk", kind] if kind == "mixed" else [kind]
        lengths = args.prompt if kind == "prefill" else args.context
        for batch in [1] if kind == "prefill" else args.batch:
            for length in lengths:
                steps = [steady_step(each, batch, length, args.block_size, strategy, args.budget) for each in kinds]
                found.append((kind, len(steps[-1].members) if kind == "prefill" else batch, length, steps))
    return found


def pages_needed(args: argparse.Namespace, strategy: Strategy) -> int:
    """Returns the number of KV pages that suffices for each case."""
    every = [step for _, _, _, steps in cases(args, strategy) for step in steps]
    return max(pages_of(step, strategy, args.block_size, args.page_size) for step in every)


class StepTime(NamedTuple):
    """Milliseconds of a step; None: not measured."""

    wall: float
    device: float | None
    gap: float | None
    replayed: bool

    @classmethod
    def of_last(cls, stats: RunnerStats, seconds: float, replayed: int) -> StepTime:
        """Returns those of the last step, which took `seconds`. `replayed` steps were replayed before it."""
        device, gap = (found[-1] * 1e3 if found else None for found in (stats.device_seconds, stats.gap_seconds))
        return cls(seconds * 1e3, device, gap, stats.replayed > replayed)


def columns_of(times: Sequence[StepTime]) -> dict[str, Any]:
    """Returns the columns with medians of all steps."""
    found: dict[str, Any] = {"wall_ms": statistics.median(each.wall for each in times)}
    device = [each.device for each in times if each.device is not None]
    if len(device) == len(times):
        found["device_ms"] = statistics.median(device)
        found["gap_ms"] = statistics.median(each.gap for each in times if each.gap is not None)
        found["host_ms"] = statistics.median(each.wall - own for each, own in zip(times, device, strict=True))
        found["ratio"] = found["wall_ms"] / found["device_ms"]
    return {name: round(value, 3) for name, value in found.items()} | {"replayed": sum(each.replayed for each in times)}


@dataclass
class Live:
    """The model, the KV pool and the settings that all cases use."""

    model: Model
    pool: KVPool
    strategy: Strategy
    model_info: ModelInfo
    mask_id: int | None
    args: argparse.Namespace
    adapters: LoRAManager
    loras: int = 0  # number of adapters that are assigned to requests in rotation

    def case(self, kind: str, batch: int, context: int, steps: list[SteadyStep]) -> dict[str, Any]:
        """Times a case. Returns its row of median milliseconds, with those of its parts if it has some."""
        *parts, complete = steps
        row: dict[str, Any] = {"case": kind, "batch": batch, "context": context, **self._time(complete, context)}
        if self.adapters.slots:
            row["loras"] = self.loras
        if parts:
            row["parts"] = [self._time(part, context, measure=False) for part in parts]
            row["parts_ms"] = round(sum(part["wall_ms"] for part in row["parts"]), 3)
            row["of_parts"] = round(row["wall_ms"] / row["parts_ms"], 3)
        if kind == "prefill":
            row["tokens_per_s"] = round(row["rows"] / row["wall_ms"] * 1e3)
        return row

    def _time(self, step: SteadyStep, seed: int, *, measure: bool = True) -> dict[str, Any]:
        """Times a step. Returns its row, with `measure` including the columns of `_measured`."""
        repeats, info = self.args.repeats, self._info(step)
        runner = self._runner(info)
        accept_none = AcceptNoneRunner(runner, rewinds=step.rewinds)
        engine = Engine(info=info, runner=accept_none, strategy=self.strategy, lora_manager=self.adapters)
        # outputs are taken as by a server's engine process
        engine.set_overlap_callback(engine.take_outputs)
        ends = any(member.ends for member in step.members)
        times: list[StepTime] = []
        while len(times) < repeats:
            rewind = self._begin(engine, step, seed)
            for _ in range(WARMUP_STEPS):
                rewind()
                engine.execute_step()
            for _ in range(min(TIMED_STEPS if ends else repeats, repeats - len(times))):
                replayed, started = runner.stats.replayed, time.perf_counter()
                rewind()  # timed too, as the device may already run this step
                engine.execute_step()
                times.append(StepTime.of_last(runner.stats, time.perf_counter() - started, replayed))
            for n in range(len(step.members)):
                engine.abort(str(n))
        timed = set(accept_none.rows[-min(TIMED_STEPS, repeats) :])
        if timed != {step.rows}:
            raise RuntimeError(f"the batch was not steady: steps of {sorted(timed)} rows, not {step.rows}")
        blocks = accept_none.plan.blocks
        sampled = 0 if blocks is None else int(blocks.sampled.sum())
        row: dict[str, Any] = {"rows": step.rows, "sampled": sampled, **columns_of(times)}
        engine.close()
        if measure:
            row |= self._measured(accept_none, row["wall_ms"])
        return row

    def _begin(self, engine: Engine, step: SteadyStep, seed: int) -> Callable[[], None]:
        """Adds the requests of a step, and fills half of the positions of blocks that do not end. See `begin`."""
        block = self.args.block_size
        random = np.random.default_rng(len(step.members) * 1_000_003 + seed)
        last = self.model_info.vocab_size - 1
        ids = min(IDS[0], last // 2), min(IDS[1], last)
        for n, member in enumerate(step.members):
            spec = RequestSpec(
                id=str(n), prompt=random.integers(*ids, member.prompt).tolist(), max_tokens=member.max_tokens(block),
                ignore_eos=True, seed=n, temperature=self.args.temperature or float(self.strategy.uniform_noise),
                top_p=self.args.top_p, decoding=engine.info.defaults(),
                adapter=str(n % self.loras) if self.loras else "",
            )  # fmt: skip
            engine.add(spec)
        rewind = begin(engine, step)
        block_random = np.random.default_rng((BLOCKS, len(step.members)))
        for member, request in zip(step.members, engine.scheduler.running, strict=True):
            if member.cached is None and not (member.ends or self.strategy.uniform_noise):
                self._half_fill(request, block_random, ids)
        return rewind

    def _measured(self, accept_none: AcceptNoneRunner, wall: float) -> dict[str, Any]:
        """Returns mean experts per layer and, on a GPU, lower bounds of the last step; with --check also the error."""
        model, plan, args = cast(torch.nn.Module, self.model), accept_none.plan, self.args
        experts = count_experts(model, accept_none.runner, plan)
        complete = (
            experts[:-1] if isinstance(model, Decoder) and model.split_last_layer else experts
        )  # layers whose experts run on all rows
        found: dict[str, Any] = {"experts": round(statistics.mean(complete), 1)} if complete else {}
        if self.pool.device.type == "cuda":  # rates are known for GPUs only
            found |= work_of(model, self.pool, plan, experts).columns(wall, args)
        if args.check:
            found["error"] = float(f"{layer_error(accept_none.runner, plan):.2g}")
        return found

    def _half_fill(self, request: Request, random: np.random.Generator, ids: tuple[int, int]) -> None:
        for block in request.blocks:
            block.state[:] = np.where(random.random(block.size) < 0.5, MASKED, UNMASKED)
            assert self.mask_id is not None  # families with uniform noise have none
            block.tokens[:] = np.where(block.state == MASKED, self.mask_id, random.integers(*ids, block.size))
            block.masks = int((block.state == MASKED).sum())
            block.first_masked = int((block.state == MASKED).argmax())
            request.pending_writes.append((block.start, block.start + block.size))

    def _runner(self, info: EngineInfo) -> ModelRunner:
        served = msgspec.structs.replace(info, max_num_batched_tokens=SERVED)
        pages = max_request_pages(self.strategy, info.max_model_len, info.page_size)
        sizes = capture_sizes_for(served, self.strategy, pages, self.adapters)
        config = SamplerConfig(
            block_size=sizes.block_size,
            mask_id=self.mask_id,
            max_token_id=info.max_token_id,
            eos_ids=(0,),
            max_num_reqs=info.max_num_reqs,
            max_request_len=max_request_len(self.strategy, info.max_model_len),
            max_request_pages=pages,
            vocab_size=info.vocab_size,
            batch_invariant=self.args.deterministic,
        )
        if self.args.enforce_eager or self.pool.device.type != "cuda":
            return ModelRunner(self.model, self.pool, config)
        capture = GraphCapturer(self.pool.device)
        return CudaGraphRunner(self.model, self.pool, config, sizes, capture, capture_after=2)

    def _info(self, step: SteadyStep) -> EngineInfo:
        fitting = [key for key in algorithm_keys() if get_algorithm(key).uniform_noise == self.strategy.uniform_noise]
        algorithm = get_algorithm("threshold" if "threshold" in fitting else fitting[0])
        size = self.args.block_size
        longest = max(self.strategy.total_len(each.prompt, each.max_tokens(size)) for each in step.members)
        return EngineInfo(
            family="bench",
            strategy="bench",
            device=self.pool.device.type,
            dtype=str(self.pool.dtype),
            vocab_size=self.model_info.vocab_size,
            max_token_id=self.model_info.vocab_size - 1,
            mask_token_id=self.mask_id,
            eos_token_ids=[0],
            block_size=size,
            buffer_size=self.strategy.buffer_size,
            page_size=self.pool.page_size,
            num_pages=self.pool.num_pages,
            max_model_len=longest + 1,
            max_num_reqs=step.max_requests,
            max_num_batched_tokens=step.budget,
            prefix_caching=False,
            blocks_from_prompt=self.strategy.block_layout.from_prompt,
            truncate_last_block=self.strategy.block_layout.truncate_last,
            strategy_fields=list(with_defaults(self.strategy.fields, size, {CACHE: "dual"})),
            algorithms=[
                AlgorithmInfo(
                    key=algorithm.key, fields=with_defaults(algorithm.fields, size, {"accept_threshold": ACCEPT})
                )
            ],
            default_algorithm=algorithm.key,
        )
