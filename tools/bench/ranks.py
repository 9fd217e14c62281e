"""`python -m tools.bench ranks`: times served steps of a named shape with random weights, on one rank and on several.

It runs a complete engine: captured steps, plans sent to the other ranks, results on the host. Requests have random ids
and decode one token per step, so that every step has the same batch. It prints medians. The step that prefills all
prompts is the last row.

With --no-communication, rank 0 runs alone on one GPU, and its collectives transfer nothing. This estimates the shortest
step of several GPUs. The rank normalizes all rows then, because the fused all-reduce and norm needs the other ranks.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from runtime.bench import output
from runtime.bench.model_shapes import ARCHITECTURES
from runtime.bench.sizes import check_positive
from runtime.distributed.gpu import require_gpu
from runtime.distributed.process_group import AllReduceBuffer, TensorParallelGroup
from runtime.errors import ConfigError
from tools.bench import kernel_times

PREFILLS = 5
PROFILED = 10  # steps in a profile
WARMUP_STEPS = 5  # steps before them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", choices=ARCHITECTURES, required=True, help="a named shape")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2], help="ranks; default: 1 2")
    parser.add_argument(
        "--expert-parallel", action="store_true", help="measure several ranks also with whole experts per rank"
    )
    parser.add_argument(
        "--no-communication", action="store_true",
        help="run only rank 0 of each size, on one device, with collectives that transfer nothing",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32], help="requests per step")
    parser.add_argument("--context", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--steps", type=int, default=60, help="tokens of an answer, and steps of each batch")
    parser.add_argument("--prefill", type=int, default=8192, help="tokens of the prompts of one step; default: 8192")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="default: cuda if available, else cpu")
    parser.add_argument("--quantization", help="format of linear layers and experts; default: none")
    parser.add_argument(
        "--profile", action="store_true", help="also print the device time of rank 0's kernels, by kind"
    )
    output.add_json(parser)


def main(args: argparse.Namespace) -> int:
    check_positive(args, "sizes", "batch", "context", "steps", "prefill")
    if args.prefill < args.context:
        raise ConfigError(f"--prefill {args.prefill} is less than --context {args.context}; make it larger")
    if args.profile:
        if args.device == "cpu":
            raise ConfigError("--profile needs a GPU, and --device is cpu; leave --profile out")
        require_gpu("--profile")
        if args.steps < WARMUP_STEPS + PROFILED:
            raise ConfigError(f"--steps {args.steps} must be at least {WARMUP_STEPS + PROFILED} for --profile")
    rows = []
    for size in args.sizes:
        for experts in {1, size} if args.expert_parallel else {1}:
            rows += _served(args, size, experts)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


def _served(args: argparse.Namespace, size: int, experts: int) -> list[dict[str, Any]]:
    from runtime.bench.random_weights import random_llm, write_files

    longest = args.context + args.steps
    max_requests = max(*args.batch, args.prefill // args.context)
    flags: dict[str, Any] = {
        "max_num_reqs": max_requests, "max_model_len": longest, "skip_tokenizer": True, "device": args.device,
        "tensor_parallel_size": size, "expert_parallel_size": experts, "disable_prefix_caching": True,
        "num_pages": max_requests * (longest // 32 + 2), "quantization": args.quantization,
    }  # fmt: skip
    group = RankAlone.create(size, args.device) if args.no_communication and size > 1 else None
    row = {"ranks": size, "expert_parallel": experts, "communication": group is None}
    rows = []
    with tempfile.TemporaryDirectory(prefix="unmask-bench-") as directory:
        write_files(Path(directory), args.arch)
        with random_llm(directory, group, **flags) as llm:
            for batch in args.batch:
                rows.append(row | {"batch": batch, "context": args.context} | _batch(llm, batch, args))
                print(json.dumps(rows[-1]), flush=True)
            rows.append(row | _prefill(llm, args))
            print(json.dumps(rows[-1]), flush=True)
            for batch in [*args.batch, 0] if args.profile else []:
                rows.append(row | _profile(llm, batch, args))
                print(json.dumps(rows[-1]), flush=True)
    return rows


class RankAlone(TensorParallelGroup):
    """Rank 0 of a tensor parallel group without other ranks. Its collectives return this rank's values."""

    @classmethod
    def create(cls, size: int, device: str | None) -> RankAlone:
        where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        return cls(size=size, buffer=AllReduceBuffer(where))

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_reduce_max(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x.expand(self.size, *x.shape).contiguous()


def _prefill(llm: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Times the step that prefills the prompts. It is the longest step of requests with one token."""
    from runtime import SamplingParams

    draw, last, count = random.Random(1), llm.info.vocab_size // 2, args.prefill // args.context
    seconds = []
    for _ in range(PREFILLS):
        prompts = [[draw.randrange(last) for _ in range(args.context)] for _ in range(count)]
        llm.engine.stats()
        llm.generate(prompts, SamplingParams(max_tokens=1, ignore_eos=True, temperature=0))
        seconds.append(max(llm.engine.stats().step_seconds))
    found = statistics.median(seconds)
    tokens = count * args.context
    return {"prefill": tokens, "step_ms": round(1e3 * found, 3), "tokens_per_second": round(tokens / found)}


def _profile(llm: Any, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Returns device times by kind of kernel of decode steps of `batch` requests; 0: of the step that prefills."""
    from runtime import SamplingParams
    from runtime.request.resolve import RequestContext, resolve

    engine, draw, last = llm.engine, random.Random(2), llm.info.vocab_size // 2
    count = batch or args.prefill // args.context
    ask = SamplingParams(max_tokens=args.steps, ignore_eos=True, temperature=0, decoding={"accept_threshold": 1.0})
    ids = [f"profiled-{n}" for n in range(count)]
    for id in ids:
        prompt = [draw.randrange(last) for _ in range(args.context)]
        engine.add(resolve(ask, prompt, llm.info, RequestContext(id=id)))
    if batch:
        scheduler = engine.scheduler
        while scheduler.waiting or any(request.prefilling or not request.nfe for request in scheduler.running):
            engine.step()
        for _ in range(WARMUP_STEPS):
            engine.step()
    steps = PROFILED if batch else 1
    events = kernel_times.record(lambda: [engine.step() for _ in range(steps)])
    for id in ids:
        engine.abort(id)
    engine.step()  # finishes requests whose output is deferred
    return {
        "profile": batch or "prefill", "kinds": kernel_times.kernel_times(events, steps),
        "slowest": kernel_times.slowest(events, steps),
    }  # fmt: skip


def _batch(llm: Any, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    from runtime import SamplingParams

    draw, last = random.Random(0), llm.info.vocab_size // 2
    prompts = [[draw.randrange(last) for _ in range(args.context)] for _ in range(batch)]
    ask = SamplingParams(max_tokens=args.steps, ignore_eos=True, temperature=0, decoding={"accept_threshold": 1.0})
    for _ in range(2):  # the first run compiles kernels that are not compiled at start
        llm.engine.stats()
        llm.generate(prompts, ask)
        stats = llm.engine.stats()
    full = [seconds for seconds, n in zip(stats.step_seconds, stats.batch_sizes, strict=True) if n == batch]
    if not full:
        raise ConfigError(
            f"--batch {batch}: the largest step had {max(stats.batch_sizes, default=0)} of the requests, because a "
            f"step has at most {llm.info.max_num_batched_tokens} tokens; lower --batch, --context or --steps"
        )
    found = {"step_ms": statistics.median(full), "device_ms": statistics.median(stats.device_seconds or [0.0])}
    return {name: round(1e3 * seconds, 3) for name, seconds in found.items()} | {"steps": len(full)}
