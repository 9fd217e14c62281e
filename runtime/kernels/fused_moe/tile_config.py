"""How the experts' products are cut into tiles: as somebody tuned it for the device and the shape, else by a rule.

`python -m runtime.bench tune` writes a device's table, a file of `tuned/`.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from runtime.kernels.triton_import import triton

REST = 32  # pairs behind an expert's last whole tile that its program does as well: weights are read once for both
TABLES = Path(__file__).parents[1] / "tuned"


class Product(NamedTuple):
    """How one of the two products is cut. `stages`: loads in flight of tiles of at most 16 pairs, 64, and more."""

    columns: int  # of the result, a program
    depth: int
    stages: tuple[int, int, int]
    warps: int
    turned: bool = True  # the weights are the first operand

    def rest(self, height: int) -> int:
        """Most pairs that go with a tile of `height`. As rows of the matrix unit they would be 64 at least."""
        return REST if self.turned and height >= 128 else 0


class Cut(NamedTuple):
    height: int  # most pairs of a tile; from 128 on, lower ones are computed as what they hold
    gate_up: Product
    down: Product


Table = dict[str, list[tuple[float, Cut]]]  # by `key`: up to how many pairs an expert, and the cut; ascending


def key(experts: int, hidden: int, width: int) -> str:
    """How a table calls a shape, of 16-bit numbers."""
    return f"{experts} experts, {hidden} to {width}"


def cut(
    pairs: int, experts: int, element_size: int, hidden: int, width: int, device: str | None = None
) -> Cut:  # fmt: skip
    """For `pairs` pairs in all, on the `device` of this name. It depends on the batch's size alone."""
    each = pairs / experts
    if element_size == 2 and device is not None:
        for limit, tuned in table_of(device).get(key(experts, hidden, width), []):
            if each <= limit:
                return tuned
    return by_rule(each, element_size, hidden, width)


def by_rule(each: float, element_size: int, hidden: int, width: int) -> Cut:
    """For `each` pairs an expert on average. Sides shrink with the matrices, for small models."""
    if element_size == 4:  # no matrix unit of full precision: keep within registers
        chosen = Cut(32, Product(16, 32, (2, 2, 2), 4), Product(32, 32, (2, 2, 2), 4))
    elif each <= 16:
        chosen = Cut(128, Product(32, 64, (5, 4, 3), 4), Product(128, 64, (5, 4, 3), 4))
    elif each <= 96:
        chosen = Cut(128, Product(64, 64, (4, 3, 3), 8), Product(128, 64, (5, 4, 3), 4))
    else:
        chosen = Cut(128, Product(128, 64, (3, 4, 4), 8, turned=False), Product(128, 64, (3, 3, 3), 4, turned=False))
    return Cut(chosen.height, fitted(chosen.gate_up, width, hidden), fitted(chosen.down, hidden, width))


def fixed_cut(pairs: int, experts: int, element_size: int, hidden: int, width: int) -> Cut:
    """Cuts whose results have the same bits: the weights are the first operand, and each number is one sum along the
    depth, on the same unit."""
    chosen = by_rule(min(pairs / experts, 96), element_size, hidden, width)
    assert chosen.gate_up.turned or element_size == 4
    return chosen


def fitted(product: Product, outputs: int, inputs: int) -> Product:
    columns, depth = (max(16, triton.next_power_of_2(size)) for size in (outputs, inputs))
    return product._replace(columns=min(product.columns, columns), depth=min(product.depth, depth))


def name_of(device: torch.device) -> str | None:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else None


def path_of(device: str) -> Path:
    return TABLES / f"{device.replace(' ', '_')}.json"


@functools.cache
def table_of(device: str) -> Table:
    """The table of the device of this name; empty where nobody made one."""
    path = path_of(device)
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


def _entry(limit: float, chosen: list[Any]) -> tuple[float, Cut]:
    height, *products = chosen
    gate_up, down = (Product(c, d, (s[0], s[1], s[2]), w, t) for c, d, s, w, t in products)
    return limit, Cut(height, gate_up, down)
