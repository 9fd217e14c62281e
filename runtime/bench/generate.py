"""`python -m runtime.bench generate`: tokens per second of `LLM.generate`, and the bound that its steps allow.

Every step fills its block (accept threshold 0), so that each step but the first commits a block and begins the next.
The measured rate is therefore an upper bound. Its distance to the bound of the steps is the cost of everything else.
The bound of a batch follows from its step time in `steps --live --cases commit`. That is measured in this process with
the same model, at the context length in the middle of the answers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.bench import output, roofline
from runtime.config import BY_DEST
from runtime.errors import ConfigError

if TYPE_CHECKING:
    from runtime import LLM

IDS = 1000, 150_000  # range of the prompts' token ids, limited to the vocabulary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", help="a named shape")
    parser.add_argument("--random-weights", action="store_true", help="use random weights; required with --arch")
    parser.add_argument("--model", help="use this checkpoint instead (a directory or hf://org/name)")
    parser.add_argument(
        "--batch", type=int, nargs="+", default=[1, 32, 64], help="requests at a time; default: 1 32 64"
    )
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt; default: 64")
    parser.add_argument("--max-tokens", type=int, default=1024, help="tokens per answer; default: 1024")
    parser.add_argument(
        "--rounds", type=int, default=3, help="rounds per batch, of which the median is shown; default: 3"
    )
    formats = BY_DEST["quantization"].choices
    parser.add_argument("--quantization", choices=formats, help="format of linear layers and experts; default: none")
    parser.add_argument("--device", choices=["cuda", "cpu"], help="default: cuda if available, else cpu")
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], help="default: bfloat16 on CUDA")
    parser.add_argument("--enforce-eager", action="store_true", help="run without CUDA graphs")
    parser.add_argument("--repeats", type=int, default=30, help="timed steps of the bound; default: 30")
    roofline.add_arguments(parser)
    output.add_json(parser)


def main(args: argparse.Namespace) -> int:
    if args.random_weights != (args.arch is not None) or (args.arch is None) == (args.model is None):
        raise ConfigError("give either --arch NAME --random-weights or --model CHECKPOINT")
    for flag in ("batch", "prompt", "max_tokens", "rounds", "repeats"):
        if min(np.atleast_1d(getattr(args, flag))) < 1:
            raise ConfigError(f"--{flag.replace('_', '-')} must be at least 1")
    with _llm(args) as llm:
        rows = [_case(llm, batch, args) for batch in args.batch]
    if args.json:
        setup = {"model": args.arch or args.model, "device": llm.info.device, "dtype": llm.info.dtype}
        setup |= {"quantization": args.quantization, "prompt": args.prompt, "max_tokens": args.max_tokens}
        args.json.write_text(json.dumps({"setup": setup, "results": rows}, indent=1) + "\n")
    return 0


@contextmanager
def _llm(args: argparse.Namespace) -> Iterator[LLM]:
    from runtime import LLM
    from runtime.bench.random_weights import random_llm, write_files

    longest = args.prompt + args.max_tokens
    flags: dict[str, Any] = {
        "max_num_reqs": max(args.batch), "max_model_len": longest, "skip_tokenizer": True,
        "quantization": args.quantization, "device": args.device, "dtype": args.dtype,
        "enforce_eager": args.enforce_eager, "disable_prefix_caching": True,
        "num_pages": max(args.batch) * (longest // 32 + 4),  # leaves memory for the KV pool of the bound
    }  # fmt: skip
    if args.arch is None:
        with LLM(args.model, **flags) as llm:
            yield llm
        return
    with tempfile.TemporaryDirectory(prefix="unmask-bench-") as directory:
        write_files(Path(directory), args.arch)
        with random_llm(directory, **flags) as llm:
            yield llm


def _case(llm: LLM, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    from runtime import SamplingParams

    params = SamplingParams(
        max_tokens=args.max_tokens, temperature=0.0, ignore_eos=True, decoding={"accept_threshold": 0.0}
    )
    last = llm.info.vocab_size - 1
    random = np.random.default_rng(batch)
    speeds, inside, steps, different = [], [], 0, 0.0
    for _ in range(1 + args.rounds):  # the first warms up
        low, high = min(IDS[0], last // 2), min(IDS[1], last)
        prompts = [random.integers(low, high, args.prompt).tolist() for _ in range(batch)]
        before, started = llm.engine.stats().steps, time.perf_counter()
        outputs = llm.generate(prompts, params)
        seconds, stats = time.perf_counter() - started, llm.engine.stats()
        speeds.append(sum(len(out.token_ids) for out in outputs) / seconds)
        inside.append(sum(stats.step_seconds) / seconds)
        steps = stats.steps - before
        different = statistics.mean(len(set(out.token_ids)) / len(out.token_ids) for out in outputs)
    row: dict[str, Any] = {"batch": batch, "tokens_per_s": round(statistics.median(speeds[1:])), "steps": steps}
    row["in_steps"] = round(statistics.median(inside[1:]), 3)  # fraction of the time
    row["different"] = round(different, 3)  # fraction of distinct tokens per answer: equal tokens select equal experts
    commit = _commit_ms(llm, batch, args)
    if commit is not None:
        row |= {"commit_ms": commit, "allowed": round(batch * llm.info.block_size / commit * 1e3)}
        row["share"] = round(row["tokens_per_s"] / row["allowed"], 3)
    print(json.dumps(row), flush=True)
    return row


def _commit_ms(llm: LLM, batch: int, args: argparse.Namespace) -> float | None:
    """Returns milliseconds of a step that commits blocks; None if the strategy has no such step."""
    from runtime.bench.live import Live
    from runtime.bench.steady_state import SERVED, pages_of, steady_step
    from runtime.models.base import ModelInfo
    from runtime.scheduling.lora_manager import LoRAManager
    from runtime.worker.model_runner import ModelRunner

    engine, info, strategy = llm.engine, llm.info, llm.engine.strategy
    block, runner = info.block_size, engine.runner
    context = (args.prompt + args.max_tokens // 2) // block * block
    assert isinstance(runner, ModelRunner)
    try:
        step = steady_step("commit", batch, context, block, strategy, SERVED)
    except ConfigError:
        return None
    defaults = {"check": False, "deterministic": False, "quantized_lm_head": False, "temperature": 0.0, "top_p": 1.0}
    live_args = argparse.Namespace(**vars(args) | defaults | {"block_size": block})
    if runner.device.type == "cuda":
        roofline.set_rates(live_args, runner.device)
    facts = ModelInfo(info.vocab_size, info.max_model_len, block, info.mask_token_id, ())
    pool = runner.pool.like(pages_of(step, strategy, block, info.page_size))
    live = Live(runner.model, pool, strategy, facts, info.mask_token_id, live_args, LoRAManager())
    found: float = live.case("commit", batch, context, [step])["wall_ms"]
    return found
