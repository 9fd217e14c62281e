"""Compares the grouped GEMMs of Hopper with float64 products of the same rounded operands."""

import torch

from runtime.kernels.activation import Activation, act_and_mul_reference, deinterleave, interleave_gate_up
from runtime.kernels.fused_moe.grouped_gemm import run_grouped_down, run_grouped_gate_up
from runtime.kernels.fused_moe.moe_align import moe_align_block_size
from runtime.kernels.fused_moe.tile_config import GROUPED, GroupedConfig
from runtime.kernels.quantized_tensor import quantize_fp8_reference
from tests.kernels.cases import TOLERANCE, random, random_ids
from tests.kernels.quantized_cases import distance

HIDDEN, WIDTH = 512, 256
E4M3_ROUNDING = 0.03  # ||out - ref|| / ||ref|| of numbers rounded to e4m3
# Rows, experts, experts per row, whether a few experts get nearly all rows, fraction of padding.
ROUTED = [
    (1, 8, 2, False, 0.0), (40, 8, 3, False, 0.2), (900, 16, 4, True, 0.2), (300, 1, 1, False, 0.0),
    (77, 8, 2, False, 1.0), (3000, 16, 4, False, 0.1),
]  # fmt: skip
CONFIGS = [config for table in GROUPED.values() for _, config in table if config is not None]


def check_grouped_gemms(
    config: GroupedConfig, rows: int, experts: int, top_k: int, crowded: bool, dead: float, activation: Activation,
    dtype: torch.dtype, device: str,
) -> None:  # fmt: skip
    x, gate_up, down = (
        random(*shape, dtype=dtype, device=device, seed=seed, scale=scale)
        for seed, shape, scale in (
            (80, (rows, HIDDEN), 1.0),
            (81, (experts, 2 * WIDTH, HIDDEN), HIDDEN**-0.5),
            (82, (experts, HIDDEN, WIDTH), WIDTH**-0.5),
        )
    )
    x, gate_up, down = map(quantize_fp8_reference, (x, interleave_gate_up(gate_up), down))
    ids = random_ids(rows, experts, top_k, device, crowded, dead)
    count = int((ids >= 0).sum())

    def computed() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        aligned = moe_align_block_size(ids, experts, config.gate_up.pairs)
        inner = run_grouped_gate_up(x, gate_up, aligned, top_k, config.gate_up, activation)
        pairs = torch.full((ids.numel(), HIDDEN), torch.nan, dtype=dtype, device=device)
        run_grouped_down(inner, down, pairs, aligned, config.down)
        return aligned.order[:count].long(), inner.dequantize(torch.float64)[:count], pairs

    order, inner, pairs = computed()
    _, inner_again, pairs_again = computed()
    assert torch.equal(inner, inner_again), "two runs return different bits"
    assert torch.equal(pairs.nan_to_num(), pairs_again.nan_to_num()), "two runs return different bits"
    assert pairs[ids.flatten() < 0].isnan().all(), "something was stored for expert -1"
    chosen = ids.flatten()[order]
    for expert in chosen.unique().tolist():
        at = chosen == expert
        gates = (
            x[order[at] // top_k].dequantize(torch.float64) @ deinterleave(gate_up[expert].dequantize(torch.float64)).T
        )
        assert distance(inner[at], act_and_mul_reference(gates, activation)) < E4M3_ROUNDING
        assert distance(pairs[order[at]], inner[at] @ down[expert].dequantize(torch.float64).T) < TOLERANCE[dtype]
