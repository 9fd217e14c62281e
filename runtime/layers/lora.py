"""Weights that adapters of low rank change, for each row its own: a bank of slots beside a weight of any format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.lora import LoRAKernel, LoRARows
from runtime.kernels.quant_reference import QuantizedTensor
from runtime.layers.parameter import Weight
from runtime.layers.sharding import Index, Part

LEAST_RANK = 16  # of what kernels multiply


class Lora:
    """What the adapted weights of one model share: how large their banks are, and which rows of the forward under way
    are whose.

    `rank`: what every bank has room for, at least the largest adapter's. `fixed`: a row's bits do not depend on what is
    beside it.
    """

    def __init__(self, room: Room, kernel: LoRAKernel, *, batch_invariant: bool = False) -> None:
        self.slots = room.slots
        self.rank = max(LEAST_RANK, 1 << (room.rank - 1).bit_length())
        self.kernel = kernel
        self.batch_invariant = batch_invariant
        self.rows: LoRARows | None = None  # None: nobody's
        self.touched = 0  # bits of the weights that the adapters of this forward may change
        self.apart = 0  # bits of those that kernels take whole, so that their layers are computed in pieces
        self._bits: dict[str, int] = {}

    def bit(self, kind: str) -> int:
        """Of all weights of a kind: a forward goes to the banks of those alone that some adapter changes."""
        return self._bits.setdefault(kind, 1 << len(self._bits))

    def begin(self, batch: ForwardBatch) -> None:
        """Before each forward."""
        self.touched = batch.adapted
        self.rows = None
        if batch.adapted:
            assert batch.adapters is not None
            self.rows = LoRARows(batch.adapters, batch.tiles, batch.tile_rows)

    @property
    def every(self) -> int:
        """Bits of all weights but those that are computed in pieces."""
        bits = 0
        for bit in self._bits.values():
            bits |= bit
        return bits & ~self.apart

    @property
    def in_pieces(self) -> bool:
        """Whether this forward changes something that kernels would take whole."""
        return bool(self.touched & self.apart)


class Room(NamedTuple):
    """For adapters that requests name: how many the device holds at once, and the largest rank."""

    slots: int
    rank: int


@dataclass(frozen=True)
class Stack:
    """An adapter's matrices for some outputs of a stack of weights: `down` [experts, rank, inputs] and `up`
    [experts, outputs, rank]."""

    outputs: slice
    down: torch.Tensor
    up: torch.Tensor


class LoraWeight(Weight):
    """`base`, and what the adapter of each row adds. Filled as the base is, of which this process may keep a share.

    A matrix has a bank at a fixed place, of one part for each run of outputs that checkpoints hold as a tensor of its
    own; a stack of experts has an adapter's matrices as long as it has a slot. `apart`: see `Lora`.
    """

    def __init__(self, base: Weight, lora: Lora, *, apart: bool) -> None:
        super().__init__(base.shape, base.dtype)
        self.base = base
        self.share = base.share
        self.lora = lora
        self.apart = apart or len(base.shape) == 3
        self.bit = 0
        self.cuts: tuple[int, ...] = ()  # where each part's outputs begin, and the end
        self.down = self.up = torch.empty(0)
        self.stacks: dict[int, list[Stack]] = {}

    @property
    def tensor(self) -> torch.Tensor:
        return self.base.tensor

    @property
    def operand(self) -> Any:
        return self.base.operand

    @property
    def nbytes(self) -> int:
        return self.base.nbytes

    @property
    def size(self) -> int:
        return self.base.size

    def fill(self, index: Index, tensor: torch.Tensor) -> int:
        return self.base.fill(index, tensor)

    def take(self, part: Part, tensor: torch.Tensor) -> int:
        return self.base.take(part, tensor)

    def fill_packed(self, index: Index, packed: QuantizedTensor) -> int:
        return self.base.fill_packed(index, packed)

    @property
    def current(self) -> Weight:
        return self.base if self._rows is None else self

    @property
    def _rows(self) -> LoRARows | None:
        """Whose adapters' rows are in the forward under way, if one of these may change it."""
        return self.lora.rows if self.lora.touched & self.bit else None

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self._added(self.base.matmul(x, bias), x)

    def into(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        return self._added(self.base.into(x, out), x)

    def _added(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """With what the rows' adapters add."""
        rows = self._rows
        if rows is not None:
            self.lora.kernel(out, x, self.down, self.up, self.cuts, rows)
        return out

    def lay(self, kind: str, parts: Sequence[Part], device: torch.device) -> None:
        """Make room for the slots. `parts`: those of the whole that checkpoints fill."""
        self.bit = self.lora.bit(kind)
        if self.apart:
            self.lora.apart |= self.bit
        outputs, inputs = self.shape[-2:]
        firsts = {kept.ranges[-2].start for part in parts for kept, _ in self.pieces(part)}
        self.cuts = tuple(sorted(firsts | {outputs}))
        if len(self.shape) == 2:
            slots, rank = self.lora.slots, self.lora.rank
            self.down = torch.zeros(slots, (len(self.cuts) - 1) * rank, inputs, dtype=self.dtype, device=device)
            self.up = torch.zeros(slots, outputs, rank, dtype=self.dtype, device=device)
        else:
            self.down = self.down.to(device)  # of nothing, where the stacks will be

    def stack_bytes(self, rank: int) -> int:
        """Of what an adapter of a rank takes beside the bank, at most."""
        if len(self.shape) == 2:
            return 0
        experts, outputs, inputs = self.shape
        rank = -(-rank // LEAST_RANK) * LEAST_RANK
        return experts * rank * ((len(self.cuts) - 1) * inputs + outputs) * self.dtype.itemsize

    @property
    def held_bytes(self) -> int:
        """Of what adapters take now beside the bank."""
        return sum(stack.down.nbytes + stack.up.nbytes for held in self.stacks.values() for stack in held)

    def put(self, slot: int, pairs: Mapping[Part, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """From now on the slot's adapter adds `up` times `down` to each of these parts of the whole, and nothing to
        others."""
        own = {
            kept: (down[:, box[-1]], up[box[-2]])
            for part, (down, up) in pairs.items()
            for kept, box in self.pieces(part)
        }
        if len(self.shape) == 3:
            self._stack(slot, own)
            return
        self.down[slot].zero_()
        self.up[slot].zero_()
        for part, (down, up) in own.items():
            outputs = part.ranges[0]
            for n, first in enumerate(self.cuts[:-1]):
                if first in outputs:  # an adapter of all of them has one matrix for all parts
                    at = n * self.lora.rank
                    self.down[slot, at : at + len(down)].copy_(down)
            self.up[slot, outputs.start : outputs.stop, : up.shape[1]].copy_(up)

    def _stack(self, slot: int, pairs: Mapping[Part, tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.stacks.pop(slot, None)
        made: dict[tuple[int, int], Stack] = {}
        for part, (down, up) in pairs.items():
            experts, outputs, inputs = part.ranges
            where = outputs.start, outputs.stop
            if where not in made:
                rank = max(len(d) for p, (d, _) in pairs.items() if p.ranges[1] == outputs)
                rank = -(-rank // LEAST_RANK) * LEAST_RANK
                room = self.down.new_zeros  # of the bank's device
                made[where] = Stack(
                    slice(*where),
                    room(self.shape[0], rank, len(inputs), dtype=self.dtype),
                    room(self.shape[0], len(outputs), rank, dtype=self.dtype),
                )
            made[where].down[experts.start, : len(down)].copy_(down)
            made[where].up[experts.start, :, : up.shape[1]].copy_(up)
        if made:
            self.stacks[slot] = list(made.values())
