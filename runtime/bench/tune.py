"""`python -m runtime.bench tune`: finds the fastest tiles of the expert GEMMs of a shape on this device.

Routing is as in blocks of the family. In half-masked blocks the masked rows select mostly the same experts, and the
others differ, with some experts more frequent. With uniform noise no row is masked. The result is written into the
table of the device (``runtime/kernels/fused_moe/tile_config.py``) or to --out. Timings of tiles alternate: a device
with a power limit slows down under load, so that otherwise the first tile would win.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import torch

from runtime.bench.model_shapes import ARCHITECTURES, architecture
from runtime.bench.sizes import check_positive
from runtime.distributed.gpu import require_gpu
from runtime.errors import ConfigError
from runtime.kernels.fused_moe.fused_moe import run_down, run_gate_up
from runtime.kernels.fused_moe.moe_align import moe_align_block_size
from runtime.kernels.fused_moe.tile_config import (
    FusedMoEConfig,
    GemmConfig,
    clamp_to_shape,
    default_config,
    device_name,
    load_table,
    shape_key,
    table_path,
    write_table,
)
from runtime.models.base import resolve_family
from runtime.strategies import DecodingContext, make_strategy

HEIGHT = 128
BLOCK = 32
GAIN = 0.02  # by which others must be quicker than what the rule takes
STACKS = 3  # of weights, in turns, so that none stays in the cache

# columns, depth, stages, warps, turned
GATE_UP = [
    GemmConfig(32, 64, (5, 4, 3), 4), GemmConfig(32, 128, (5, 3, 2), 4), GemmConfig(64, 64, (5, 4, 3), 4),
    GemmConfig(64, 64, (4, 3, 3), 8), GemmConfig(128, 64, (3, 3, 3), 8),
    GemmConfig(128, 64, (3, 3, 3), 8, swap_ab=False), GemmConfig(128, 64, (3, 4, 4), 8, swap_ab=False),
    GemmConfig(64, 64, (3, 3, 3), 8), GemmConfig(64, 64, (5, 4, 3), 8, swap_ab=False),
]  # fmt: skip
DOWN = [
    GemmConfig(128, 64, (5, 4, 3), 4), GemmConfig(128, 64, (4, 3, 3), 8), GemmConfig(64, 64, (5, 4, 4), 4),
    GemmConfig(128, 64, (3, 3, 3), 4, swap_ab=False), GemmConfig(128, 64, (3, 3, 3), 8, swap_ab=False),
    GemmConfig(128, 128, (3, 2, 2), 4), GemmConfig(64, 128, (3, 3, 2), 4),
    GemmConfig(64, 64, (4, 4, 4), 4, swap_ab=False),
]  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", default="llada2-mini", help=f"a named shape with experts: {', '.join(ARCHITECTURES)}")
    parser.add_argument(
        "--tensor-parallel-size", type=int, default=1, help="ranks that share each expert's width; default: 1"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[32, 256, 1024, 2048, 8192], help="rows of a forward")
    parser.add_argument("--repeats", type=int, default=10, help="timed runs of each case; the median counts")
    parser.add_argument("--out", type=Path, help="write the table there; default: the device's own")


def main(args: argparse.Namespace) -> int:
    check_positive(args, "rows", "repeats", "tensor_parallel_size")
    require_gpu("tune")
    experts, hidden, width, top_k = shape_of(args.arch, args.tensor_parallel_size)
    half_masked = masks(args.arch)
    rows, device = sorted(set(args.rows)), torch.device("cuda", torch.cuda.current_device())
    name = device_name(device)
    assert name is not None
    found = []
    for count in rows:
        ids = choices(count, experts, top_k, device, half_masked=half_masked)
        chosen = _best(ids, experts, hidden, width, args.repeats)
        found.append((count * top_k / experts, chosen))
        print(f"{count:6} rows: {chosen}", flush=True)
    path = args.out or table_path(name)
    write_table(path, load_table(name) | {shape_key(experts, hidden, width): between(found)})
    print(path)
    return 0


def shape_of(arch: str, ranks: int = 1) -> tuple[int, int, int, int]:
    """(experts, hidden, width, choices of a row) as the kernels of one of so many ranks see a named shape: a shared
    expert may be one."""
    experts, hidden, width, top_k = _full_shape(arch)
    if width % ranks:
        raise ConfigError(f"--tensor-parallel-size {ranks} does not divide the experts' width, {width}")
    return experts, hidden, width // ranks, top_k


def _full_shape(arch: str) -> tuple[int, int, int, int]:
    config = architecture(arch)
    parsed = resolve_family(None, config).parse(config)
    mixture = getattr(parsed, "mixture", None)
    if mixture is not None:
        more = int(mixture.shared_width == mixture.width)
        return mixture.experts + more, parsed.hidden, mixture.width, mixture.routing.top_k + more
    if hasattr(parsed, "expert_width"):
        return parsed.experts, parsed.hidden, parsed.expert_width, parsed.top_k
    raise ConfigError(f"--arch {arch} has no experts")


def masks(arch: str) -> bool:
    """Whether a named shape's family denoises masks, not noise."""
    config = architecture(arch)
    family = resolve_family(None, config)
    size = family.facts(family.parse(config)).block_size
    context = DecodingContext(size, None, True, 2 * size, vocab_size=2)
    return not make_strategy(family.strategies[0], family.strategies, context).uniform_noise


def between(found: list[tuple[float, FusedMoEConfig]]) -> list[tuple[float, FusedMoEConfig]]:
    """Each of these cuts up to half way, in ratio, to the next; the last beyond."""
    limits = [round(math.sqrt(a * b), 2) for (a, _), (b, _) in itertools.pairwise(found)]
    return [(limit, chosen) for limit, (_, chosen) in zip([*limits, 1e9], found, strict=True)]


def choices(rows: int, experts: int, top_k: int, device: torch.device, *, half_masked: bool = True) -> torch.Tensor:
    """int32 [rows, top_k], distinct in a row."""
    random = torch.Generator(device).manual_seed(rows)
    liked = torch.randn(experts, generator=random, device=device)
    scores = liked + torch.randn(rows, experts, generator=random, device=device) * 1.5
    if half_masked:
        masked = torch.arange(rows, device=device) % BLOCK < BLOCK // 2
        scores[masked] = liked * 2 + torch.randn(int(masked.sum()), experts, generator=random, device=device) * 0.3
    return scores.topk(top_k, dim=1).indices.int()


def _best(ids: torch.Tensor, experts: int, hidden: int, width: int, repeats: int) -> FusedMoEConfig:
    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=ids.device)

    rows, top_k = ids.shape
    x, inner, out = drawn(rows, hidden), drawn(rows * top_k, width), drawn(rows * top_k, hidden)
    plan = moe_align_block_size(ids, experts, HEIGHT)
    gate_ups, downs = (
        [drawn(*shape) for _ in range(STACKS)] for shape in ((experts, 2 * width, hidden), (experts, hidden, width))
    )

    def first(how: GemmConfig) -> None:
        for weights in gate_ups:
            run_gate_up(x, weights, inner, plan, top_k, how, "silu")

    def second(how: GemmConfig) -> None:
        for weights in downs:
            run_down(inner, weights, out, plan, how)

    default = default_config(rows * top_k / experts, 2, hidden, width)
    picked = []
    for run, some, default_gemm, sides in (
        (first, GATE_UP, default.gate_up, (width, hidden)), (second, DOWN, default.down, (hidden, width)),
    ):  # fmt: skip
        candidates = dict.fromkeys([default_gemm, *(clamp_to_shape(how, *sides) for how in some)])
        (own, _), *others = zip(_timed(run, list(candidates), repeats), candidates, strict=True)
        best, how = min(others)
        picked.append(how if best < own * (1 - GAIN) else default_gemm)
    return FusedMoEConfig(HEIGHT, *picked)


def _timed(run: Callable[[GemmConfig], None], candidates: list[GemmConfig], repeats: int) -> list[float]:
    """Milliseconds of each, as a replayed graph; they take turns."""
    graphs = []
    for how in candidates:
        run(how)
        torch.cuda.synchronize()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            run(how)
    times: list[list[float]] = [[] for _ in graphs]
    for _ in range(repeats + 2):
        for graph, own in zip(graphs, times, strict=True):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            own.append(begin.elapsed_time(end))
    return [statistics.median(own[2:]) for own in times]
