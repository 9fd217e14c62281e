"""``unmask fit``: whether a model fits into the memory of a device, before its weights are downloaded."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from runtime.errors import ConfigError

if TYPE_CHECKING:
    from runtime.engine.fit import DeviceMemory, Footprint, Sizing

EPILOG = """\
All flags of `unmask serve` that concern memory are accepted, such as --quantization, --max-model-len, --max-num-reqs,
--max-num-batched-tokens, --tensor-parallel-size and --gpu-memory-utilization.

examples:
  unmask fit JetLM/SDAR-8B-Chat --device "NVIDIA L4"
  unmask fit /models/LLaDA2.0-mini --device 24GB --quantization int4

The exit code is 0 if the model fits, 1 if it does not, and 2 if it is not known or a flag is wrong."""


def main(argv: list[str]) -> int:
    """Prints the sizes of a model and whether it fits. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="unmask fit", usage="unmask fit [MODEL] [--device DEVICE] [flags of the server]", epilog=EPILOG,
        description="Computes the memory of a model from its config.json. Only small files are downloaded. MODEL is a "
        "directory, org/name or hf://org/name[@revision]; without it, the demo model.",
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument(
        "--device",
        help="name of a GPU, such as 'NVIDIA L4', its memory, such as 24GB, cuda or cpu; default: that of this machine",
    )
    # A value of a server's flag would be taken for the model, if it were an argument of this parser.
    model, rest = (argv[0], argv[1:]) if argv and not argv[0].startswith("-") else (None, argv)
    args, flags = parser.parse_known_args(rest)
    try:
        return _fit(model, args.device, flags)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _fit(model: str | None, device: str | None, flags: list[str]) -> int:
    from runtime.cli import model as with_scheme
    from runtime.config import parse

    given = [] if model is None else ["--model", with_scheme(model)]
    own = [] if device not in ("cuda", "cpu") else ["--device", device]
    engine = parse([*given, *own, *flags], os.environ).engine

    # These import torch: after the flags, so that a wrong one is reported at once.
    from runtime.distributed.process_group import TensorParallelGroup
    from runtime.engine.model_plan import plan_model, resolve_dtype
    from runtime.plugins import load_plugins
    from runtime.weights.checkpoint import check_weight_format, open_checkpoint

    load_plugins(engine.plugin)
    memory = _memory(device)
    dtype = resolve_dtype(engine, memory.kind)
    checkpoint = open_checkpoint(engine.model, has_weights=False)
    check_weight_format(engine.model, checkpoint)
    plan = plan_model(engine, checkpoint)
    group = TensorParallelGroup(0, engine.tensor_parallel_size)
    plan, sizing = plan.fitted(plan.sizing(engine, checkpoint, dtype, group), memory, with_step=True)
    print(f"{engine.model or 'the demo model'} ({plan.family.key}) on {memory.name}")
    print(f"max_model_len {plan.context.max_model_len}, {plan.length_source}\n")
    print(report(sizing, memory))
    if refusal := sizing.refusal(memory):
        print(f"error: {refusal}", file=sys.stderr)
        return 1
    return 0


def _memory(device: str | None) -> DeviceMemory:
    """Returns the memory of the device that --device names; without a name, of this machine's."""
    import torch

    from runtime.commands.devices import free_memory
    from runtime.distributed.gpu import require_gpu
    from runtime.engine.fit import DeviceMemory

    if device not in (None, "cuda", "cpu"):
        name, free, capability = free_memory(device)
        return DeviceMemory(name, free, "cuda", capability)
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if device == "cuda":
        require_gpu("--device cuda")
    found = DeviceMemory.of(torch.device("cuda" if on_gpu else "cpu"), torch.cuda.mem_get_info()[0] if on_gpu else 0)
    if found is None:
        raise ConfigError("--device: this system does not report its memory; give the name or the memory of a device")
    return found


def report(sizing: Sizing, memory: DeviceMemory) -> str:
    """Returns the sizes of a model on one device, and whether it fits with each format of its weights."""
    from runtime.engine.fit import gigabytes

    size, budget = sizing.footprint(), sizing.budget(memory)
    dtype = str(sizing.dtype).removeprefix("torch.")
    ranks = sizing.group.size
    each = f" on each of {ranks} devices" if ranks > 1 else ""
    rows = [
        (f"weights, {sizing.quantization or dtype}{each}", gigabytes(size.weights)),
        ("KV cache per token", f"{size.kv_per_token:,} bytes"),
        (f"KV cache of one request of {sizing.max_model_len:,} tokens", gigabytes(size.page * size.pages)),
        ("largest step, about", gigabytes(size.step)),
        ("peak, about", gigabytes(_peak(sizing, size))),
        ("memory that is available", gigabytes(memory.free)),
        ("memory that may be used", gigabytes(budget)),
    ]
    lines = [f"{name:<52}{value:>16}" for name, value in rows]
    left = budget - size.weights - size.step
    if sizing.config.num_pages is None and memory.kind == "cuda" and left >= size.page * size.pages:
        tokens = left // size.page * size.page_size
        lines.append(f"{'tokens for which the KV cache then has memory, about':<52}{tokens:>16,}")
    lines.append("")
    others = {other.quantization or dtype: other for other in (sizing, *sizing.quantizations(memory))}
    width = max(map(len, others)) + 2
    return "\n".join([*lines, *(f"{name:<{width}}{_verdict(other, memory)}" for name, other in others.items())])


def _peak(sizing: Sizing, size: Footprint) -> int:
    return size.weights + sizing.kv_bytes(size) + size.step


def _verdict(sizing: Sizing, memory: DeviceMemory) -> str:
    from runtime.engine.fit import gigabytes

    size = sizing.footprint()
    weights = f"weights {gigabytes(size.weights):>9}  peak {gigabytes(_peak(sizing, size)):>9}  "
    if not sizing.fits(memory):
        return f"{weights}does not fit"
    if _peak(sizing, size) > sizing.budget(memory):
        return f"{weights}may not fit: lower --max-num-batched-tokens or --max-num-reqs"
    return f"{weights}fits"
