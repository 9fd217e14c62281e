"""`python -m runtime.bench tune`: finds the fastest tiles of the expert GEMMs of a shape on this device.

Routing is as in blocks of the family. In half-masked blocks the masked rows select mostly the same experts, and the
others differ, with some experts more frequent. With uniform noise no row is masked. The result is written into the
table of the device (``runtime/kernels/fused_moe/tile_config.py``) or to --out, again after each number of rows.
Kernels are compiled before, in parallel. Timings of tiles alternate, because a device with a power limit slows down
under load. Otherwise the first tile would win. Quantized weights have entries of their own. On Hopper, fp8 experts of
the shapes in ``tile_config.GROUPED`` and NVFP4 experts use other kernels, which are not tuned here.
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

from runtime.bench.model_shapes import ARCHITECTURES, architecture, fill_random
from runtime.bench.sizes import check_positive
from runtime.config import BY_DEST
from runtime.distributed.gpu import require_gpu
from runtime.errors import ConfigError
from runtime.kernels.compiler import KernelCompiler, record_specializations
from runtime.kernels.fused_moe.fused_moe import Matrices, run_down, run_gate_up
from runtime.kernels.fused_moe.moe_align import moe_align_block_size
from runtime.kernels.fused_moe.tile_config import (
    FusedMoEConfig,
    GemmConfig,
    clamp_to_shape,
    clamp_to_weight,
    default_config,
    device_name,
    format_of,
    fp8_config,
    group_quantized_config,
    load_table,
    shape_key,
    table_path,
    write_table,
)
from runtime.kernels.ops import select_kernels
from runtime.kernels.quantized_tensor import Fp8, quantize_fp8_reference
from runtime.models.base import resolve_family
from runtime.quantization.base import get_format
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

# Tiles of quantized weights. Those of integers and NVFP4 get the depth of their groups (`clamp_to_weight`).
QUANTIZED_GATE_UP = [
    GemmConfig(32, 128, (4, 4, 3), 4), GemmConfig(32, 128, (3, 3, 3), 4), GemmConfig(64, 128, (5, 4, 3), 4),
    GemmConfig(64, 128, (3, 3, 3), 4), GemmConfig(64, 128, (3, 3, 3), 8), GemmConfig(128, 128, (3, 3, 2), 8),
]  # fmt: skip
QUANTIZED_DOWN = [
    GemmConfig(32, 128, (4, 4, 3), 4), GemmConfig(64, 128, (4, 4, 3), 4), GemmConfig(64, 128, (3, 3, 3), 4),
    GemmConfig(128, 128, (4, 4, 3), 4), GemmConfig(128, 128, (3, 3, 3), 8), GemmConfig(128, 256, (2, 2, 2), 4),
]  # fmt: skip

Run = Callable[[GemmConfig], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--arch", default="llada2-mini", help=f"a named shape with experts: {', '.join(ARCHITECTURES)}")
    parser.add_argument(
        "--tensor-parallel-size", type=int, default=1, help="tensor parallel ranks that shard each expert; default: 1"
    )
    parser.add_argument(
        "--quantization",
        choices=BY_DEST["quantization"].choices,
        help="format of the experts' weights; default: none, in bfloat16",
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
    gemms = ExpertGemms(experts, hidden, width, device, args.quantization)
    key, half_masked = shape_key(experts, hidden, width, gemms.format), is_masked_family(args.arch)
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
        write_table(path, load_table(name) | {key: with_limits(sorted(found.items()))})
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
    """The two GEMMs of experts with random weights in bfloat16 or in a format of --quantization.

    Attributes:
        format: of quantized weights, for ``tile_config.shape_key``; "" for bfloat16.
    """

    def __init__(
        self, experts: int, hidden: int, width: int, device: torch.device, quantization: str | None = None
    ) -> None:  # fmt: skip
        self.experts = experts
        self.hidden = hidden
        self.width = width
        self._device = device
        self._gate_ups = [self._weights(quantization, experts, 2 * width, hidden) for _ in range(STACKS)]
        self._downs = [self._weights(quantization, experts, hidden, width) for _ in range(STACKS)]
        first = self._gate_ups[0]
        self.format = "" if isinstance(first, torch.Tensor) else format_of(first)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=torch.bfloat16, device=self._device)

    def _weights(self, quantization: str | None, *shape: int) -> Matrices:
        if quantization is None:
            return self._random(*shape)
        format = get_format(quantization)
        format.check(self._device, torch.bfloat16)
        kernels = select_kernels(self._device, torch.bfloat16, quantization)
        holder = torch.nn.Module()
        holder.weight = weight = format.make(shape, torch.bfloat16, self._device, kernels, False)  # type: ignore[assignment]
        fill_random(holder, torch.Generator(self._device).manual_seed(0))
        matrices: Matrices = weight.kernel_arg
        return matrices

    def default(self, pairs: int) -> FusedMoEConfig:
        """Returns the config for `pairs` token-expert pairs on a device without a table."""
        gate_up, down = self._gate_ups[0], self._downs[0]
        if isinstance(gate_up, torch.Tensor):
            return default_config(pairs / self.experts, 2, self.hidden, self.width)
        if isinstance(gate_up, Fp8) or isinstance(down, Fp8 | torch.Tensor):
            return fp8_config(pairs, self.experts, self.hidden, self.width)
        return group_quantized_config(pairs, self.experts, 2, gate_up, down)

    def cases(self, ids: torch.Tensor) -> Iterator[tuple[int, list[tuple[Run, list[GemmConfig]]]]]:
        """Yields each tile height with the two GEMM launchers, gate_up and down, and their candidates.

        The first height is that of the default.

        Args:
            ids: int32 [rows, top_k].
        """
        pairs = ids.numel()
        heights = [height for height, limit in HEIGHTS if pairs / self.experts <= limit]
        for height in dict.fromkeys([self.default(pairs).height, *heights]):
            yield height, list(zip(self._runs(ids, height), self.candidates(pairs, height), strict=True))

    def candidates(self, pairs: int, height: int) -> tuple[list[GemmConfig], list[GemmConfig]]:
        """Returns the configs of gate_up and of down.

        Configs without `swap_ab`, in which pairs are the rows of the GEMM, are candidates for the tallest tiles only.
        """
        _, default_gate_up, default_down = self.default(pairs)
        gate_up, down = self._gate_ups[0], self._downs[0]
        if isinstance(gate_up, torch.Tensor):
            narrow = NARROW_DOWN if self.width <= NARROW_WIDTH else []
            gate_ups = [clamp_to_shape(config, self.width, self.hidden) for config in GATE_UP]
            downs = [clamp_to_shape(config, self.hidden, self.width) for config in DOWN + narrow]
        elif isinstance(gate_up, Fp8) or isinstance(down, Fp8 | torch.Tensor):
            gate_ups = [clamp_to_shape(config, self.width, self.hidden, 32) for config in QUANTIZED_GATE_UP]
            downs = [clamp_to_shape(config, self.hidden, self.width, 32) for config in QUANTIZED_DOWN]
        else:
            gate_ups = [clamp_to_weight(config, gate_up, 2) for config in QUANTIZED_GATE_UP]
            downs = [clamp_to_weight(config, down, 1) for config in QUANTIZED_DOWN]
        found = dict.fromkeys([default_gate_up, *gate_ups]), dict.fromkeys([default_down, *downs])
        gate_ups, downs = ([config for config in configs if config.swap_ab or height >= 128] for configs in found)
        return gate_ups, downs

    def _runs(self, ids: torch.Tensor, height: int) -> tuple[Run, Run]:
        (rows, top_k), aligned = ids.shape, moe_align_block_size(ids, self.experts, height)
        x, inner, out = (
            self._random(count, size)
            for count, size in ((rows, self.hidden), (rows * top_k, self.width), (rows * top_k, self.hidden))
        )
        is_fp8 = isinstance(self._gate_ups[0], Fp8)  # rows and the activation's results are quantized too
        gate_up_input, down_input = (quantize_fp8_reference(each) if is_fp8 else each for each in (x, inner))

        def gate_up(config: GemmConfig) -> None:
            for weights in self._gate_ups:
                run_gate_up(gate_up_input, weights, inner, aligned, top_k, config, "silu")

        def down(config: GemmConfig) -> None:
            for weights in self._downs:
                run_down(down_input, weights, out, aligned, config)

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
    """Returns median milliseconds per candidate; infinite for one that needs more shared memory than the device has.

    Each is captured as a CUDA graph, and their replays alternate.
    """
    from triton.runtime.errors import OutOfResources

    graphs: list[torch.cuda.CUDAGraph | None] = []
    for how in candidates:
        try:
            run(how)
        except OutOfResources:
            graphs.append(None)
            continue
        torch.cuda.synchronize()
        graphs.append(captured := torch.cuda.CUDAGraph())
        with torch.cuda.graph(captured):
            run(how)
    times: list[list[float]] = [[] for _ in graphs]
    for _ in range(repeats + 2):
        for graph, own in zip(graphs, times, strict=True):
            if graph is None:
                own.append(math.inf)
                continue
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            graph.replay()
            end.record()
            torch.cuda.synchronize()
            own.append(begin.elapsed_time(end))
    return [statistics.median(own[2:]) for own in times]
