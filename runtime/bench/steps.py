"""`python -m runtime.bench steps`: times of decode steps and prefills by batch size and context length.

docs/operations/performance.md#measure-it-yourself describes the tool.
It runs the server's model runner: forward, LM head, sampling, results on the host. Times are warm medians. Inputs are
random, and every output is checked to be finite. A decode case forwards one block per request (S=1), in its second step
of denoising. The block has masks and random tokens, or is a canvas of noise. The family's first strategy determines
which keys are visible.

A model that sees its whole canvas has no final prompt tokens. Its decode steps use a dual cache, and its prefill is its
full forward. For models that commit denoised blocks, prefill is also the cost of a commit of that length.
"""

from __future__ import annotations

import argparse
import json
import platform
from typing import Any, cast

import torch
from torch import nn

from runtime.bench import loras, output, roofline
from runtime.bench.graph_capture import capture
from runtime.bench.model_shapes import ARCHITECTURES, architecture, random_model
from runtime.bench.sizes import check_memory, check_positive, check_weights
from runtime.bench.steady_state import COLUMNS, KINDS
from runtime.bench.step_plans import StepPlans, pages_needed
from runtime.bench.timing import gap_floor, median
from runtime.config import BY_DEST
from runtime.distributed.gpu import require_gpu
from runtime.distributed.process_group import SINGLE_RANK, TensorParallelGroup
from runtime.errors import ConfigError
from runtime.layers.attention import attention_names
from runtime.layers.kv_pool import LAYOUTS
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import Model, ModelFamily, ModelInfo, resolve_family
from runtime.models.block_size import resolve_block_size
from runtime.parameters.weight import named_weights
from runtime.quantization.checkpoint.scheme import quantization_of
from runtime.scheduling.lora_manager import LoRAManager
from runtime.scheduling.step_plan import StepPlan
from runtime.scheduling.strategy import DecodingContext, Strategy
from runtime.strategies.registry import make_strategy, strategies_supporting
from runtime.weights.checkpoint import resolve_checkpoint
from runtime.weights.loader import load_model
from runtime.weights.repository import repository_names
from runtime.worker.candidates import SamplerConfig
from runtime.worker.model_runner import ModelRunner

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_REPORTED_ARGS = (
    "deterministic", "quantized_lm_head", "block_size", "page_size", "kv_cache_layout", "filled", "budget", "repeats",
    "temperature", "top_p",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", help=f"a named shape: {', '.join(ARCHITECTURES)}")
    parser.add_argument("--random-weights", action="store_true", help="use random weights; required with --arch")
    parser.add_argument("--model", help="time this checkpoint instead (a directory or hf://org/name)")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4, 8, 16, 32, 64], help="requests per step")
    parser.add_argument("--context", type=int, nargs="+", default=[128, 512, 1024], help="cached tokens per request")
    parser.add_argument("--prompt", type=int, nargs="*", default=[512, 1024], help="prompt lengths to prefill")
    parser.add_argument("--budget", type=int, default=8192, help="maximum tokens per prefill forward")
    parser.add_argument("--dtype", choices=DTYPES, help="default: bfloat16 on CUDA, float32 on CPU")
    parser.add_argument(
        "--quantization",
        choices=BY_DEST["quantization"].choices,
        help="format of linear layers and experts; default: none",
    )
    parser.add_argument("--device", choices=["cuda", "cpu"], help="default: cuda if available, else cpu")
    parser.add_argument("--attn-impl", choices=attention_names(), help="default: triton_grouped on CUDA, else torch")
    parser.add_argument("--deterministic", action="store_true", help="use batch-invariant kernels")
    parser.add_argument("--quantized-lm-head", action="store_true", help="find the argmax of fp8 models in e4m3")
    parser.add_argument("--kv-cache-layout", choices=LAYOUTS, default="unified")
    parser.add_argument("--block-size", type=int, help="default: the checkpoint's, else the family's")
    parser.add_argument(
        "--filled", type=float, help="fraction of a masked block that is filled with random tokens; default: 0.5"
    )
    parser.add_argument("--page-size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=30, help="timed runs of each case; the median is shown")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument(
        "--tensor-parallel-size", type=int, default=1, help="tensor parallel ranks; not with --live; default: 1"
    )
    parser.add_argument(
        "--expert-parallel-size", type=int, default=1, help="1 or --tensor-parallel-size, as for the server; default: 1"
    )
    parser.add_argument("--graphs", action="store_true", help="also replay each decode forward as a CUDA graph")
    parser.add_argument("--live", action="store_true", help="measure the wall clock of complete engine steps instead")
    about = "; ".join(f"{name}: {text}" for name, text in KINDS.items())
    parser.add_argument("--cases", choices=KINDS, nargs="+", default=["plain"], help=f"cases of --live; {about}")
    parser.add_argument("--temperature", type=float, default=0.0, help="with --live: sampling temperature")
    parser.add_argument("--top-p", type=float, default=1.0, help="with --live and --temperature: top-p of sampling")
    loras.add_arguments(parser)
    parser.add_argument("--enforce-eager", action="store_true", help="with --live: run without CUDA graphs")
    parser.add_argument(
        "--check", action="store_true", help="with --live: compare each layer with the kernels' references"
    )
    roofline.add_arguments(parser)
    output.add_json(parser, "the results")


def main(args: argparse.Namespace) -> int:
    check_positive(args, "tensor_parallel_size", "expert_parallel_size")
    if not args.temperature >= 0:
        raise ConfigError(f"--temperature {args.temperature:g} must be at least 0")
    if not 0 <= args.top_p <= 1:
        raise ConfigError(f"--top-p {args.top_p:g} must be from 0 to 1")
    if args.tensor_parallel_size > 1:
        from runtime.bench.multi_run import run_on_ranks

        return run_on_ranks(args, _run)
    return _run(args)


def _run(args: argparse.Namespace, group: TensorParallelGroup = SINGLE_RANK) -> int:
    """Runs all cases. All ranks of a group run the same."""
    try:
        setup = _set_up(args, group)
    except ConfigError as error:
        print(f"error: {error}")
        return 1
    print(json.dumps(setup.settings))
    if args.live:
        rows = _live_cases(setup, args)
    else:
        rows = [_decode_case(setup, batch, context, args) for batch in args.batch for context in args.context]
        rows += [_prefill_case(setup, batch, length, args) for length in args.prompt for batch in args.batch]
    if args.json:
        args.json.write_text(json.dumps({"setup": setup.settings, "results": rows}, indent=1) + "\n")
    print(table(rows))
    return 0


class _Setup:
    """A runner with one KV pool that suffices for every case, its plans, and the settings to report with results."""

    def __init__(
        self,
        model: Model,
        strategy: Strategy,
        model_info: ModelInfo,
        args: argparse.Namespace,
        build: LayerFactory,
        adapters: LoRAManager,
    ) -> None:
        device, dtype, self.adapters = build.device, build.dtype, adapters
        decode = max(args.batch) * pages_needed(max(args.context) + 2 * args.block_size, args.page_size)
        pages = max(decode, max(args.batch) * pages_needed(max([*args.prompt, 1]), args.page_size))
        if args.live:
            from runtime.bench import live

            pages = live.pages_needed(args, strategy)
        layout = LAYOUTS[args.kv_cache_layout]
        size = pages * layout.page_bytes(model.kv_shapes, args.page_size, dtype)
        check_memory(device, size, "the KV pages", "choose a smaller --batch, --context or --prompt")
        self.pool = layout(model.kv_shapes, num_pages=pages, page_size=args.page_size, dtype=dtype, device=device)
        last = model_info.vocab_size - 1
        mask_id = None if strategy.uniform_noise else last if model_info.mask_id is None else model_info.mask_id
        self.model_info = model_info
        self.plans = StepPlans(
            strategy, args.block_size, mask_id, model_info.vocab_size, args.page_size, self.pool.num_pages
        )
        longest = max(*args.context, *args.prompt, 1) + 2 * args.block_size
        config = SamplerConfig(
            args.block_size, mask_id, last, eos_ids=(0,), max_num_reqs=max(args.batch),
            max_request_len=longest, max_request_pages=pages_needed(longest, args.page_size),
            vocab_size=model_info.vocab_size, batch_invariant=args.deterministic,
        )  # fmt: skip
        self.runner = ModelRunner(model, self.pool, config)
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
        weights = sum(weight.nbytes for weight in named_weights(cast(nn.Module, model)).values())
        self.settings = {
            "model": args.arch or args.model, "device": gpu, "dtype": str(dtype).removeprefix("torch."),
            "quantization": build.quantization, "torch": torch.__version__, "weights_gb": round(weights / 1e9, 3),
            "ranks": build.group.size, "expert_parallel_size": args.expert_parallel_size,
        } | {name: getattr(args, name) for name in _REPORTED_ARGS}  # fmt: skip
        if args.live and device.type == "cuda":
            self.settings |= {"tflops": args.tflops, "tbs": args.tbs, "gap_floor_ms": gap_floor(device, args)}

    def fill_pool(self) -> None:
        """Fills the pool with random keys and values, so that the context is as scattered as a real one."""
        for tensor in self.pool.tensors:
            tensor.normal_()


def _set_up(args: argparse.Namespace, group: TensorParallelGroup) -> _Setup:
    if (args.arch is None) == (args.model is None):
        raise ConfigError("give either --arch NAME --random-weights or --model CHECKPOINT")
    if args.random_weights != (args.arch is not None):
        raise ConfigError("--arch and --random-weights: give both, or leave both out")
    check_positive(args, "batch", "context", "prompt", "repeats", "budget", "block_size", "page_size")
    if args.warmup < 0:
        raise ConfigError("--warmup must be at least 0")
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device.type == "cuda":
        require_gpu("--device cuda")
    elif args.graphs:
        raise ConfigError("--graphs needs a GPU, and --device is cpu; leave --graphs out")
    if args.live and device.type == "cuda":
        roofline.set_rates(args, device)
    dtype = DTYPES[args.dtype or ("bfloat16" if device.type == "cuda" else "float32")]
    checkpoint = None if args.model is None else resolve_checkpoint(args.model)
    config = architecture(args.arch) if checkpoint is None else checkpoint.config
    quantization, expert_parallel = quantization_of(config, args.quantization), args.expert_parallel_size > 1
    build = LayerFactory.create(
        device,
        dtype,
        args.attn_impl,
        quantization,
        loras.lora_config(args),
        deterministic=args.deterministic,
        fp8_lm_head=args.quantized_lm_head,
        group=group,
        expert_parallel=expert_parallel,
    )
    family = resolve_family(None, config)
    arch = family.parse(config)
    model_info = family.facts(arch)
    if checkpoint is not None:
        names = repository_names(args.model, checkpoint.path, config)
        args.block_size = resolve_block_size(args.block_size, family, model_info, config, names).tokens
    strategy = _strategy(family, model_info, args)
    model = (
        random_model(config, build, check=check_weights)
        if checkpoint is None
        else load_model(checkpoint, family, arch, build)
    )
    adapters = loras.random_adapters(args, family, arch, model, build)
    return _Setup(model, strategy, model_info, args, build, adapters)


def _strategy(family: ModelFamily[Any], model_info: ModelInfo, args: argparse.Namespace) -> Strategy:
    """Returns the family's first strategy, and sets the defaults in `args` that depend on it.

    Raises:
        ConfigError: a flag does not fit the strategy.
    """
    if args.block_size is None:
        args.block_size = model_info.block_size
    longest = max([*args.context, *args.prompt]) + args.block_size
    context = DecodingContext(
        args.block_size, None, True, longest, shift=model_info.shift, vocab_size=model_info.vocab_size
    )
    strategy = make_strategy(family.strategies[0], family.strategies + strategies_supporting(family.key), context)
    if strategy.uniform_noise and args.filled is not None:
        raise ConfigError(
            f"--filled {args.filled:g} has no effect: {family.key} uses uniform noise, not masks; leave it out"
        )
    if not strategy.uniform_noise and args.filled is None:
        args.filled = 0.5
    if args.filled is not None and not 0 <= args.filled < 1:
        raise ConfigError(f"--filled {args.filled} must be at least 0 and less than 1, so that a step samples tokens")
    for flag, lengths in (("context", args.context), ("prompt", args.prompt)):
        if not strategy.block_layout.from_prompt and any(length % args.block_size for length in lengths):
            raise ConfigError(
                f"--{flag} must be a multiple of --block-size {args.block_size}: decoding starts at a block"
            )
    return strategy


def _decode_case(setup: _Setup, batch: int, context: int, args: argparse.Namespace) -> dict[str, Any]:
    runner = setup.runner
    setup.fill_pool()
    plan = setup.plans.decode(batch, context, filled=args.filled or 0.0)
    runner.run(plan)  # a self-conditioned model uses the results of this step
    on_device = runner.batch(plan)

    def forward() -> torch.Tensor:
        left = runner.model.forward(runner.model.embed(on_device.tokens), on_device, setup.pool)
        return runner.model.final_hidden_states(left)

    _check_finite(runner, plan)
    row: dict[str, Any] = {"case": "decode", "batch": batch, "context": context}
    row["step_ms"] = median(lambda: runner.run(plan), setup.pool.device, args)
    row["forward_ms"] = median(forward, setup.pool.device, args)
    if args.graphs:
        row["graph_ms"] = median(capture(forward), setup.pool.device, args)
    row["tokens_per_s"] = round(batch * args.block_size / row["step_ms"] * 1e3)
    print(json.dumps(row), flush=True)
    return row


def _live_cases(setup: _Setup, args: argparse.Namespace) -> list[dict[str, Any]]:
    from runtime.bench.live import Live, cases

    runner, plans = setup.runner, setup.plans
    live = Live(runner.model, setup.pool, plans.strategy, setup.model_info, plans.mask_id, args, setup.adapters)
    rows = []
    for kind, batch, context, steps in cases(args, plans.strategy):
        for live.loras in sorted({0, setup.adapters.slots}):
            rows.append(live.case(kind, batch, context, steps))
            print(json.dumps(rows[-1]), flush=True)
    return rows


def _prefill_case(setup: _Setup, batch: int, length: int, args: argparse.Namespace) -> dict[str, Any]:
    setup.fill_pool()
    plans = setup.plans.prefill(batch, length, budget=args.budget)
    for plan in plans:
        _check_finite(setup.runner, plan)
    row: dict[str, Any] = {"case": "prefill", "batch": batch, "context": length, "forwards": len(plans)}
    row["step_ms"] = median(lambda: [setup.runner.run(plan) for plan in plans], setup.pool.device, args)
    row["tokens_per_s"] = round(batch * length / row["step_ms"] * 1e3)
    print(json.dumps(row), flush=True)
    return row


def _check_finite(runner: ModelRunner, plan: StepPlan) -> None:
    model, batch = runner.model, runner.batch(plan)
    left = model.forward(model.embed(batch.tokens), batch, runner.pool)
    logits = model.lm_head(model.final_hidden_states(left[:256]))
    if not bool(torch.isfinite(left).all() & torch.isfinite(logits).all()):
        raise RuntimeError("the model's outputs are not finite; the times are not valid")


def table(rows: list[dict[str, Any]]) -> str:
    """Returns a table of milliseconds: one line per case and context, one column per batch size.

    Results of --live have one line per row.
    """
    if rows and "wall_ms" in rows[0]:
        names = [name for name in COLUMNS if any(name in row for row in rows)]
        lines = ["".join(f"{name:>{max(10, len(name) + 1)}}" for name in names)]
        lines += ["".join(f"{row.get(name, '-')!s:>{max(10, len(name) + 1)}}" for name in names) for row in rows]
        return "\n".join(lines)
    batches = sorted({row["batch"] for row in rows})
    measures = [("decode", "step_ms"), ("decode", "forward_ms"), ("decode", "graph_ms"), ("prefill", "step_ms")]
    lines = [f"{'ms':28}" + "".join(f"{f'bs {b}':>10}" for b in batches)]
    for case, measure in measures:
        chosen = [row for row in rows if row["case"] == case and measure in row]
        for context in sorted({row["context"] for row in chosen}):
            cells = {row["batch"]: row[measure] for row in chosen if row["context"] == context}
            label = f"{case} {measure.removesuffix('_ms')}, {'prompt' if case == 'prefill' else 'context'} {context}"
            lines.append(f"{label:28}" + "".join(f"{cells[b]:10.2f}" if b in cells else " " * 10 for b in batches))
    return "\n".join(lines)
