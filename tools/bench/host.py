"""`python -m tools.bench host`: the Python cost of a step, with a runner that computes nothing.

It measures the planning, the processing of results and the output events of a steady batch (S=1, no streaming) at
several context lengths. Sampling, messages and text are not included. The cost must not grow with the context.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from runtime.algorithms.base import get_algorithm
from runtime.bench import output
from runtime.bench.sizes import check_positive
from runtime.engine.engine import Engine
from runtime.errors import ConfigError
from runtime.request.engine_messages import EngineInfo, RequestSpec
from runtime.request.field_spec import AlgorithmInfo, with_defaults
from runtime.scheduling.step_plan import (
    MASKED,
    NO_RESULTS,
    UNMASKED,
    BlockResults,
    DenoiseBlocks,
    PageWrites,
    StateWrite,
    StepPlan,
)
from runtime.scheduling.strategy import DecodingContext
from runtime.strategies.registry import make_strategy
from runtime.worker.model_runner import RunnerStats
from runtime.worker.next_step import NextStep

MASK_ID, VOCAB = 1023, 1024


class FillingRunner:
    """A runner that fills the first `per_step` masked positions of every block without a model."""

    def __init__(self, per_step: int) -> None:
        self.per_step = per_step
        self.overlaps = self.launches_next = False
        self.filled = NO_RESULTS
        self.stats = RunnerStats()
        self.seconds = 0.0  # spent in `_fill` in place of a model; not part of a step's cost

    def step_context(self) -> AbstractContextManager[None]:
        return nullcontext()

    def launch_forward(self, plan: StepPlan) -> None:
        pass

    def must_split(self, blocks: DenoiseBlocks) -> bool:
        return False

    def launch_sampling(self, blocks: DenoiseBlocks | None, following: NextStep | None = None) -> None:
        started = time.perf_counter()
        self.filled = self._fill(blocks)
        self.seconds += time.perf_counter() - started

    def wait(self) -> None:
        pass

    def write(self, writes: tuple[StateWrite, ...], page_writes: PageWrites | None) -> None:
        pass

    def capture_next(self) -> int:
        return 0

    def results(self) -> BlockResults:
        return self.filled

    def _fill(self, blocks: DenoiseBlocks | None) -> BlockResults:
        if blocks is None:
            return NO_RESULTS
        masked = blocks.state == MASKED
        taken = masked & (masked.cumsum(axis=1) <= self.per_step)
        left = masked & ~taken
        size = masked.shape[1]
        none = [0] * len(masked)
        return BlockResults(
            tokens=np.where(left, MASK_ID, 7),  # no block has tokens of the prompt
            state=np.where(taken, UNMASKED, blocks.state).astype(np.int8),
            remasked=np.zeros_like(masked),
            masks=left.sum(1).tolist(),
            first_masked=np.where(left.any(1), left.argmax(1), size).tolist(),
            first_eos=[size] * len(masked),
            num_updated=taken.sum(1).tolist(),
            edits=none,
            remasks=none,
            forced=[False] * len(masked),
            finished=(~left.any(1)).tolist(),
            history={},
            soft_tokens={},
        )


def measure(*, batch: int, context: int, steps: int, block_size: int, per_step: int) -> list[float]:
    """Returns host seconds of each of `steps` steps of `batch` requests after prompts of `context` tokens."""
    tokens = (steps + 64) * per_step + 4 * block_size
    longest = context + tokens + block_size
    strategy = make_strategy("multi_bd", ("multi_bd",), DecodingContext(block_size, 1, True, longest))
    algorithm = get_algorithm("threshold")
    info = EngineInfo(
        family="none",
        strategy="multi_bd",
        device="none",
        dtype="none",
        vocab_size=VOCAB,
        max_token_id=VOCAB - 1,
        mask_token_id=MASK_ID,
        eos_token_ids=[0],
        block_size=block_size,
        buffer_size=1,
        page_size=32,
        num_pages=batch * (longest // 32 + 2),
        max_model_len=longest,
        max_num_reqs=batch,
        max_num_batched_tokens=8192,
        prefix_caching=True,
        strategy_fields=list(with_defaults(strategy.fields, block_size)),
        algorithms=[AlgorithmInfo(key=algorithm.key, fields=with_defaults(algorithm.fields, block_size))],
        default_algorithm=algorithm.key,
    )
    runner = FillingRunner(per_step)
    engine = Engine(info=info, runner=runner, strategy=strategy)
    rng = np.random.default_rng(0)
    for i in range(batch):
        prompt = rng.integers(1, MASK_ID, size=context).tolist()
        spec = RequestSpec(id=str(i), prompt=prompt, max_tokens=tokens, ignore_eos=True, decoding=info.defaults())
        engine.add(spec)
    while any(request.prefilling for request in (*engine.scheduler.running, *engine.scheduler.waiting)):
        engine.step()
    for _ in range(20):
        engine.step()
    times = []
    for _ in range(steps):
        before, elsewhere = time.perf_counter(), runner.seconds
        engine.step()
        times.append(time.perf_counter() - before - (runner.seconds - elsewhere))
    if len(engine.scheduler.running) != batch:
        raise ConfigError(
            f"--batch {batch}: only {len(engine.scheduler.running)} requests were in the last step; choose a smaller "
            "--batch, --context or --per-step"
        )
    return times


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=32, help="live requests")
    parser.add_argument("--context", type=int, nargs="+", default=[512, 4096], help="prompt lengths, tokens")
    parser.add_argument("--steps", type=int, default=1000, help="measured steps")
    parser.add_argument("--block-size", type=int, default=32)
    parser.add_argument("--per-step", type=int, default=4, help="positions that a block fills per step")
    output.add_json(parser)


def main(args: argparse.Namespace) -> int:
    check_positive(args, "batch", "context", "block_size", "per_step")
    if args.steps < 2:
        raise ConfigError("--steps must be at least 2: percentiles need several")
    rows = []
    print(f"host cost of a step, ms: {args.batch} requests, block {args.block_size}, median of {args.steps}")
    for context in args.context:
        times = measure(
            batch=args.batch, context=context, steps=args.steps, block_size=args.block_size, per_step=args.per_step
        )
        cuts = statistics.quantiles(times, n=100)
        row = {"context": context, "median_ms": statistics.median(times) * 1e3, "p99_ms": cuts[98] * 1e3}
        rows.append(row)
        print(f"  context {context:6d}  median {row['median_ms']:.3f}  p99 {row['p99_ms']:.3f}")
    if args.json:
        args.json.write_text(json.dumps({"batch": args.batch, "steps": args.steps, "rows": rows}, indent=1))
    return 0
