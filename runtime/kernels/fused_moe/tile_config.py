"""Tile sizes of the MoE GEMMs: tuned per device and shape, with a default for others.

`python -m runtime.bench tune` writes the table of a device to `tuned/`.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from runtime.kernels.common import triton
from runtime.kernels.linear import depth_of, group_size
from runtime.kernels.nvfp4 import BLOCK, Nvfp4
from runtime.kernels.quantized_tensor import Fp8, GroupQuantized

# Maximum pairs after an expert's last full tile that the program of that tile processes too. It reads the weights once
# for both.
TAIL_ROWS = 32
TABLES = Path(__file__).parents[1] / "tuned"


class GemmConfig(NamedTuple):
    """Config of one of the two GEMMs. `stages`: pipeline stages of tiles of at most 16 pairs, of at most 64, and of
    more.
    """

    columns: int  # output columns per program
    depth: int
    stages: tuple[int, int, int]
    warps: int
    swap_ab: bool = True  # the weights are the first operand

    def tail_rows(self, height: int) -> int:
        """Returns how many more pairs a tile of `height` may process. Without swap AB they would take 64 rows."""
        return TAIL_ROWS if self.swap_ab and height >= 128 else 0


class GroupedTile(NamedTuple):
    """Tile of a GEMM in ``grouped_gemm.py``."""

    rows: int  # of the weights
    pairs: int  # of gate_up: the height of tiles; of down: a part of it
    depth: int
    stages: int
    warps: int  # that multiply
    programs: int  # per SM
    load_registers: int  # per thread of the loading warps; the multiplying ones get the others


class GroupedConfig(NamedTuple):
    """Tiles of both GEMMs. A tile of down has the depth of a group of gate_up's results, half its weight rows."""

    gate_up: GroupedTile
    down: GroupedTile


class FusedMoEConfig(NamedTuple):
    """Config of both GEMMs."""

    height: int  # maximum pairs per tile; from 128 on, smaller tiles run at their own size
    gate_up: GemmConfig
    down: GemmConfig


Table = dict[str, list[tuple[float, FusedMoEConfig]]]  # by `shape_key`: maximum pairs per expert, ascending, and config


def shape_key(experts: int, hidden: int, width: int, format: str = "") -> str:
    """Returns the key of a shape in a tuned table. `format`: of quantized weights (`format_of`); "" for 16 bits."""
    return f"{experts} experts, {hidden} to {width}" + (f", {format}" if format else "")


def format_of(weights: Fp8 | GroupQuantized | Nvfp4) -> str:
    """Returns what distinguishes the kernels of quantized weights, as text."""
    if not isinstance(weights, GroupQuantized):
        return "fp8" if isinstance(weights, Fp8) else "nvfp4"
    kind = "int4" if weights.is_int4 else str(weights.values.dtype).removeprefix("torch.")
    kind = "nf4" if weights.is_nf4 else kind
    groups = "" if weights.group == weights.size else f" in groups of {weights.group}"
    return f"{kind}{groups}{'' if weights.zeros is None else ' with zero points'}"


_GROUPED_DOWN = GroupedTile(128, 64, 128, 4, 4, 2, 24)
# By `shape_key`, measured on an H200: maximum pairs per expert, ascending, and the config.
GROUPED: dict[str, list[tuple[float, GroupedConfig | None]]] = {
    shape_key(257, 2048, 512): [
        (3.2, None),
        (18, GroupedConfig(GroupedTile(256, 64, 128, 5, 8, 1, 56), _GROUPED_DOWN)),
        (144, GroupedConfig(GroupedTile(256, 128, 128, 4, 8, 1, 72), _GROUPED_DOWN)),
    ]
}


def get_config(
    pairs: int, experts: int, element_size: int, hidden: int, width: int, device: str | None = None
) -> FusedMoEConfig:  # fmt: skip
    """Returns the config for `pairs` token-expert pairs in total on the `device` of this name."""
    pairs_per_expert = pairs / experts
    tuned = tuned_config(pairs_per_expert, shape_key(experts, hidden, width), device) if element_size == 2 else None
    return tuned or default_config(pairs_per_expert, element_size, hidden, width)


def tuned_config(pairs_per_expert: float, key: str, device: str | None) -> FusedMoEConfig | None:
    """Returns the config in the table of the `device` of this name; None if it has none for the shape.

    Args:
        key: result of `shape_key`.
    """
    rows = load_table(device).get(key, []) if device is not None else []
    return next((config for limit, config in rows if pairs_per_expert <= limit), None)


def default_config(pairs_per_expert: float, element_size: int, hidden: int, width: int) -> FusedMoEConfig:
    """Returns the config for an average of `pairs_per_expert`. Tiles shrink with the matrices, for small models."""
    if element_size == 4:  # no full-precision tensor cores: keep within registers
        chosen = FusedMoEConfig(32, GemmConfig(16, 32, (2, 2, 2), 4), GemmConfig(32, 32, (2, 2, 2), 4))
    elif pairs_per_expert <= 16:
        chosen = FusedMoEConfig(128, GemmConfig(32, 64, (5, 4, 3), 4), GemmConfig(128, 64, (5, 4, 3), 4))
    elif pairs_per_expert <= 96:
        chosen = FusedMoEConfig(128, GemmConfig(64, 64, (4, 3, 3), 8), GemmConfig(128, 64, (5, 4, 3), 4))
    else:
        chosen = FusedMoEConfig(
            128, GemmConfig(128, 64, (3, 4, 4), 8, swap_ab=False), GemmConfig(128, 64, (3, 3, 3), 4, swap_ab=False)
        )
    return _clamp_both(chosen, hidden, width)


def batch_invariant_config(pairs: int, experts: int, element_size: int, hidden: int, width: int) -> FusedMoEConfig:
    """Returns a config whose results have the same bits for any number of pairs.

    The weights are the first operand, and each output is one sum along the depth on the same unit.
    """
    chosen = default_config(min(pairs / experts, 96), element_size, hidden, width)
    assert chosen.gate_up.swap_ab or element_size == 4
    return chosen


def fp8_config(pairs: int, experts: int, hidden: int, width: int, *, batch_invariant: bool = False) -> FusedMoEConfig:
    """Returns the config of fp8 weights, which need a depth of 32. `batch_invariant`: as `batch_invariant_config`."""
    pairs_per_expert = pairs / experts
    if batch_invariant:  # the weights are the first operand in all remaining configs
        pairs_per_expert = min(pairs_per_expert, 96)
    if pairs_per_expert <= 1.5:
        chosen = FusedMoEConfig(16, GemmConfig(32, 128, (5, 5, 5), 4), GemmConfig(128, 256, (2, 2, 2), 4))
    elif pairs_per_expert <= 16:
        chosen = FusedMoEConfig(128, GemmConfig(32, 128, (5, 4, 3), 4), GemmConfig(128, 128, (4, 4, 3), 4))
    elif pairs_per_expert <= 96:
        chosen = FusedMoEConfig(128, GemmConfig(64, 128, (4, 3, 3), 4), GemmConfig(128, 128, (4, 4, 3), 4))
    else:
        chosen = FusedMoEConfig(
            128, GemmConfig(128, 128, (4, 4, 4), 8, swap_ab=False), GemmConfig(128, 128, (4, 4, 3), 4)
        )
    return _clamp_both(chosen, hidden, width, min_depth=32)


def grouped_config(pairs: int, experts: int, hidden: int, width: int) -> GroupedConfig | None:
    """Returns the config of fp8 weights on Hopper; None if other kernels are faster or the shape was not measured."""
    for limit, config in GROUPED.get(shape_key(experts, hidden, width), []):
        if pairs / experts <= limit:
            return config
    return None


def group_quantized_config(
    pairs: int, experts: int, element_size: int, gate_up: GroupQuantized | Nvfp4, down: GroupQuantized | Nvfp4
) -> FusedMoEConfig:
    """Returns the config of group-quantized or NVFP4 weights. Few pairs get kernels without large tiles, as a program
    reserves the shared memory of its largest tile.

    All configs are batch-invariant: the depth is that of the weight, and pairs are never the first operand.
    """
    pairs_per_expert = pairs / experts
    if element_size == 4:  # no full-precision tensor cores: keep within registers
        # One stage: see `linear.group_quantized_tile_sizes`.
        chosen = FusedMoEConfig(16, GemmConfig(16, 64, (1, 1, 1), 4), GemmConfig(32, 64, (1, 1, 1), 4))
    elif pairs_per_expert <= 1.5:
        chosen = FusedMoEConfig(16, GemmConfig(64, 128, (4, 4, 4), 4), GemmConfig(128, 128, (3, 3, 3), 4))
    elif pairs_per_expert <= 48:
        chosen = FusedMoEConfig(64, GemmConfig(64, 128, (3, 3, 3), 4), GemmConfig(128, 128, (3, 3, 3), 8))
    else:
        chosen = FusedMoEConfig(128, GemmConfig(32, 128, (3, 3, 3), 4), GemmConfig(64, 128, (3, 3, 3), 4))
    return FusedMoEConfig(
        chosen.height, clamp_to_weight(chosen.gate_up, gate_up, 2), clamp_to_weight(chosen.down, down, 1)
    )


def clamp_to_weight(config: GemmConfig, weight: GroupQuantized | Nvfp4, parts: int) -> GemmConfig:
    """Returns a tile with the depth of a weight's groups. `parts`: 2 if it has the rows of gate and up, else 1."""
    columns = max(16, triton.next_power_of_2(weight.shape[-2] // parts))
    if isinstance(weight, Nvfp4):
        depth = BLOCK
    elif group_size(weight) == 0:
        depth = min(config.depth, depth_of(weight))
    else:
        depth = depth_of(weight)
    return config._replace(columns=min(config.columns, columns), depth=depth)


def _clamp_both(config: FusedMoEConfig, hidden: int, width: int, min_depth: int = 16) -> FusedMoEConfig:
    gate_up = clamp_to_shape(config.gate_up, width, hidden, min_depth)
    return FusedMoEConfig(config.height, gate_up, clamp_to_shape(config.down, hidden, width, min_depth))


def clamp_to_shape(config: GemmConfig, outputs: int, inputs: int, min_depth: int = 16) -> GemmConfig:
    """Shrinks a tile to the matrices of small models."""
    columns, depth = max(16, triton.next_power_of_2(outputs)), max(min_depth, triton.next_power_of_2(inputs))
    return config._replace(columns=min(config.columns, columns), depth=min(config.depth, depth))


def device_name(device: torch.device) -> str | None:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def table_path(device: str) -> Path:
    return TABLES / f"{device.replace(' ', '_')}.json"


@functools.cache
def load_table(device: str) -> Table:
    """Returns the tuned table of the device of this name; empty if there is none."""
    path = table_path(device)
    if not path.exists():
        return {}
    return {shape: [_entry(*row) for row in rows] for shape, rows in json.loads(path.read_text()).items()}


def write_table(path: Path, table: Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for shape in sorted(table):
        rows = ",\n".join(f"    {json.dumps([limit, chosen])}" for limit, chosen in table[shape])
        lines.append(f"  {json.dumps(shape)}: [\n{rows}\n  ]")
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _entry(limit: float, chosen: list[Any]) -> tuple[float, FusedMoEConfig]:
    height, *gemm_configs = chosen
    gate_up, down = (GemmConfig(c, d, (s[0], s[1], s[2]), w, t) for c, d, s, w, t in gemm_configs)
    return limit, FusedMoEConfig(height, gate_up, down)
