"""`python -m runtime.bench tune`: finds the fastest tiles of the expert GEMMs of a shape on this device.

Routing is as in blocks of the family. In half-masked blocks the masked rows select mostly the same experts, and the
others differ, with some experts more frequent. With uniform noise no row is masked. The result is written into the
table of the device (``runtime/kernels/fused_moe/tile_config.py``) or to --out, again after each number of rows.
Kernels are compiled before, in parallel. Timings of tiles alternate, because a device with a power limit slows down
under load. Otherwise the first tile would win.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import torch

from runtime.bench.model_shapes import ARCHITECTURES, architecture
from runtime.bench.sizes import check_positive
from runtime.distributed.gpu import require_gpu
from runtime.errors import ConfigError
from runtime.kernels.compiler import KernelCompiler, record_specializations
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
from runtime.scheduling.strategy import DecodingContext
from runtime.strategies.registry import make_strategy

BLOCK = 32
GAIN = 0.02  # minimum relative gain of a config over the default
STACKS = 3  # copies of the weights, used in rotation so that none stays in the cache

# Maximum pairs per tile, and the largest average of pairs per expert for which it is tried. The tallest tile of a
# kernel determines its registers and shared memory, and therefore how many programs an SM runs.
HEIGHTS = [(128, math.inf), (64, 96.0), (16, 4.0)]
# columns, depth, stages, warps
GATE_UP = [
    GemmConfig(32, 64, (5, 4, 3), 4), GemmConfig(32, 128, (5, 3, 2), 4), GemmConfig(64, 64, (5, 4, 3), 4),
    GemmConfig(64, 64, (4, 3, 3), 8), GemmConfig(128, 64, (3, 3, 3), 8), GemmConfig(64, 64, (3, 3, 3), 8),
    GemmConfig(32, 128, (4, 4, 3), 4),
    GemmConfig(128, 64, (3, 3, 3), 8, swap_ab=False), GemmConfig(128, 64, (3, 4, 4), 8, swap_ab=False),
    GemmConfig(64, 64, (5, 4, 3), 8, swap_ab=False),
]  # fmt: skip
DOWN = [
    GemmConfig(128, 64, (5, 4, 3), 4), GemmConfig(128, 64, (4, 3, 3), 8), GemmConfig(64, 64, (5, 4, 4), 4),
    GemmConfig(128, 128, (3, 2, 2), 4), GemmConfig(64, 128, (3, 3, 2), 4),
    GemmConfig(128, 64, (3, 3, 3), 4, swap_ab=False), GemmConfig(128, 64, (3, 3, 3), 8, swap_ab=False),
    GemmConfig(64, 64, (4, 4, 4), 4, swap_ab=False),
]  # fmt: skip
# Tiles of narrow experts, whose inner dimension has few steps: with fewer stages, more programs fit on an SM.
NARROW_WIDTH = 256
NARROW_DOWN = [
    GemmConfig(128, 64, (2, 2, 2), 4), GemmConfig(128, 64, (3, 3, 3), 4), GemmConfig(128, 128, (2, 2, 2), 4),
    GemmConfig(64, 64, (2, 2, 2), 4), GemmConfig(64, 64, (3, 3, 3), 4), GemmConfig(64, 128, (2, 2, 2), 4),
    GemmConfig(256, 64, (2, 2, 2), 8), GemmConfig(128, 128, (2, 2, 2), 4, swap_ab=False),
    GemmConfig(256, 64, (2, 2, 2), 8, swap_ab=False),
]  # fmt: skip

Run = Callable[[GemmConfig], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", default="llada2-mini", help=f"a named shape with experts: {', '.join(ARCHITECTURES)}")
    parser.add_argument(
        "--tensor-parallel-size", type=int, default=1, help="tensor parallel ranks that shard each expert; default: 1"
    )
    rows = [32, 256, 1024, 2048, 8192]
    parser.add_argument("--rows", type=int, nargs="+", default=rows, help="rows of a forward, tuned in this order")
    parser.add_argument("--repeats", type=int, default=10, help="timed runs of each case; the median counts")
    parser.add_argument("--time-limit", type=float, help="seconds after which no further --rows begin; default: none")
    parser.add_argument("--out", type=Path, help="file of the table; default: that of the device")


def main(args: argparse.Namespace) -> int:
    check_positive(args, "rows", "repeats", "tensor_parallel_size")
    require_gpu("tune")
    device = torch.device("cuda", torch.cuda.current_device())
    name = device_name(device)
    assert name is not None
    tune(args, device, name)
    return 0


def tune(args: argparse.Namespace, device: torch.device, name: str) -> None:
    """Tunes the shape of the arguments on a device, and writes the table of the device of this `name`."""
    began = time.monotonic()
    experts, hidden, width, top_k = shape_of(args.arch, args.tensor_parallel_size)
    gemms, half_masked = ExpertGemms(experts, hidden, width, device), is_masked_family(args.arch)
    path = args.out or table_path(name)
    cases = {rows: random_expert_ids(rows, experts, top_k, device, half_masked=half_masked) for rows in args.rows}
    compile_kernels(gemms, list(cases.values()))
    print(f"compiled after {time.monotonic() - began:.1f} s", flush=True)
    # A number of rows that is not tuned yet has the default: tiles of another number may be much slower.
    found = {rows * top_k / experts: gemms.default(rows * top_k) for rows in args.rows}
    for index, (rows, ids) in enumerate(cases.items()):
        if index and args.time_limit is not None and time.monotonic() - began > args.time_limit:
            print(f"--time-limit reached, not tuned: {rows} rows and the following", flush=True)
            break
        found[rows * top_k / experts] = _best(gemms, ids, args.repeats)
        write_table(path, load_table(name) | {shape_key(experts, hidden, width): with_limits(sorted(found.items()))})
    print(path)


def shape_of(arch: str, ranks: int = 1) -> tuple[int, int, int, int]:
    """Returns the shape of the fused MoE kernels on one of `ranks` tensor parallel ranks.

    Returns:
        Experts, hidden size, width of an expert on the rank, and experts per row. Both counts include a shared expert
        of the same width as the others, because it is fused with them.

    Raises:
        ConfigError: the architecture is unknown or has no experts, or `ranks` does not divide their width.
    """
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


def is_masked_family(arch: str) -> bool:
    """Returns whether the family of a named shape denoises masks, not uniform noise."""
    config = architecture(arch)
    family = resolve_family(None, config)
    size = family.facts(family.parse(config)).block_size
    context = DecodingContext(size, None, True, 2 * size, vocab_size=2)
    return not make_strategy(family.strategies[0], family.strategies, context).uniform_noise


def with_limits(found: list[tuple[float, FusedMoEConfig]]) -> list[tuple[float, FusedMoEConfig]]:
    """Returns each config with the upper limit of its pairs per expert: the geometric mean with the next one's value.

    The limit of the last one is 1e9.

    Args:
        found: pairs per expert and config, in ascending order.
    """
    limits = [round(math.sqrt(a * b), 2) for (a, _), (b, _) in itertools.pairwise(found)]
    return [(limit, chosen) for limit, (_, chosen) in zip([*limits, 1e9], found, strict=True)]


def random_expert_ids(
    rows: int, experts: int, top_k: int, device: torch.device, *, half_masked: bool = True
) -> torch.Tensor:
    """Returns random expert ids, int32 [rows, top_k], distinct within a row."""
    random = torch.Generator(device).manual_seed(rows)
    popularity = torch.randn(experts, generator=random, device=device)
    scores = popularity + torch.randn(rows, experts, generator=random, device=device) * 1.5
    if half_masked:
        masked = torch.arange(rows, device=device) % BLOCK < BLOCK // 2
        noise = torch.randn(int(masked.sum()), experts, generator=random, device=device)
        scores[masked] = popularity * 2 + noise * 0.3
    return scores.topk(top_k, dim=1).indices.int()


class ExpertGemms:
    """The two GEMMs of experts with random bfloat16 weights."""

    def __init__(self, experts: int, hidden: int, width: int, device: torch.device) -> None:
        self.experts = experts
        self.hidden = hidden
        self.width = width
        self._device = device
        self._gate_ups, self._downs = (
            [self._random(*shape) for _ in range(STACKS)]
            for shape in ((experts, 2 * width, hidden), (experts, hidden, width))
        )

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=self._device)

    def default(self, pairs: int) -> FusedMoEConfig:
        """Returns the config for `pairs` token-expert pairs on a device without a table."""
        return default_config(pairs / self.experts, 2, self.hidden, self.width)

    def cases(self, ids: torch.Tensor) -> Iterator[tuple[int, list[tuple[Run, list[GemmConfig]]]]]:
        """Yields each tile height with the two GEMM launchers, gate_up and down, and their candidates.

        The first height is that of the default.

        Args:
            ids: int32 [rows, top_k].
        """
        for height, limit in HEIGHTS:
            if ids.numel() / self.experts <= limit:
                yield height, list(zip(self._runs(ids, height), self.candidates(ids.numel(), height), strict=True))

    def candidates(self, pairs: int, height: int) -> tuple[list[GemmConfig], list[GemmConfig]]:
        """Returns the configs of gate_up and of down.

        Configs without `swap_ab`, in which pairs are the rows of the GEMM, are candidates for the tallest tiles only.
        """
        _, default_gate_up, default_down = self.default(pairs)
        narrow = NARROW_DOWN if self.width <= NARROW_WIDTH else []
        gate_up = [clamp_to_shape(config, self.width, self.hidden) for config in GATE_UP]
        down = [clamp_to_shape(config, self.hidden, self.width) for config in DOWN + narrow]
        found = dict.fromkeys([default_gate_up, *gate_up]), dict.fromkeys([default_down, *down])
        gate_ups, downs = ([config for config in configs if config.swap_ab or height >= 128] for configs in found)
        return gate_ups, downs

    def _runs(self, ids: torch.Tensor, height: int) -> tuple[Run, Run]:
        (rows, top_k), aligned = ids.shape, moe_align_block_size(ids, self.experts, height)
        x, inner, out = (
            self._random(count, size)
            for count, size in ((rows, self.hidden), (rows * top_k, self.width), (rows * top_k, self.hidden))
        )

        def gate_up(config: GemmConfig) -> None:
            for weights in self._gate_ups:
                run_gate_up(x, weights, inner, aligned, top_k, config, "silu")

        def down(config: GemmConfig) -> None:
            for weights in self._downs:
                run_down(inner, weights, out, aligned, config)

        return gate_up, down


def compile_kernels(gemms: ExpertGemms, cases: list[torch.Tensor]) -> None:
    """Compiles the kernels of all candidates for some `ids` in parallel, without a launch."""
    with closing(KernelCompiler(torch.device("cuda"))) as compiler:
        with record_specializations() as found:
            for ids in cases:
                for run, configs in itertools.chain.from_iterable(pair for _, pair in gemms.cases(ids)):
                    for config in configs:
                        run(config)
        compiler.submit(compiler.missing(found))
        compiler.wait()


def _best(gemms: ExpertGemms, ids: torch.Tensor, repeats: int) -> FusedMoEConfig:
    """Returns the fastest config. It differs from the default only if it is faster by `GAIN`."""
    defaults, default_ms = gemms.default(ids.numel())[1:], 0.0
    found: list[tuple[float, FusedMoEConfig]] = []
    for height, both in gemms.cases(ids):
        picked, total = [], 0.0
        for (run, configs), default in zip(both, defaults, strict=True):
            times = dict(zip(configs, _timed(run, configs, repeats), strict=True))
            best = min(times, key=times.__getitem__)
            if times[best] > times.get(default, math.inf) * (1 - GAIN):
                best = default
            picked.append(best)
            total += times[best] / STACKS
            default_ms += times[default] / STACKS if not found else 0.0
        found.append((total, FusedMoEConfig(height, *picked)))
    best_total, chosen = min(found)
    if best_total > found[0][0] * (1 - GAIN):
        best_total, chosen = found[0]
    print(f"{len(ids):6} rows: {best_total:.4f} ms, default {default_ms:.4f} ms: {chosen}", flush=True)
    return chosen


def _timed(run: Callable[[GemmConfig], None], candidates: list[GemmConfig], repeats: int) -> list[float]:
    """Returns median milliseconds per candidate. Each is captured as a CUDA graph, and their replays alternate."""
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
