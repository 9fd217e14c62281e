"""LoRA: a base weight of any format with slots for adapters, selected per row, and MoE with adapters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from runtime.kernels.activation import Activation, act_and_mul_reference
from runtime.kernels.forward_batch import ForwardBatch
from runtime.kernels.fused_moe.fused_moe import grouped_gemm, sum_choices
from runtime.kernels.lora import LoRABatch, LoRAKernel
from runtime.kernels.quantized_tensor import QuantizedTensor
from runtime.parameters.sharding import Index, WeightSlice
from runtime.parameters.weight import Weight

MIN_RANK = 16  # multiple of the rank in GEMMs


class LoRAContext:
    """State shared by the LoRA weights of a model: the size of their slots, and the adapters of the current forward.

    Attributes:
        rank: of all slots, at least that of the largest adapter.
        batch_invariant: the bits of a row do not depend on the other rows.
        batch: the slot of each row of the current forward; None if no row has an adapter.
        active_modules: bit mask of the modules that the adapters of the current forward may change.
        eager_modules: bit mask of the modules that fused kernels use; their layers run eagerly if an adapter changes
            them.
    """

    def __init__(self, config: LoRAConfig, kernel: LoRAKernel, *, batch_invariant: bool = False) -> None:
        self.max_loras = config.max_loras
        self.rank = max(MIN_RANK, 1 << (config.max_lora_rank - 1).bit_length())
        self.kernel = kernel
        self.batch_invariant = batch_invariant
        self.batch: LoRABatch | None = None
        self.active_modules = 0
        self.eager_modules = 0
        self._module_bits: dict[str, int] = {}

    def module_bit(self, kind: str) -> int:
        """Returns the bit of a module name; a forward skips LoRA in modules that no active adapter changes."""
        return self._module_bits.setdefault(kind, 1 << len(self._module_bits))

    def set_batch(self, batch: ForwardBatch) -> None:
        """Sets the adapters of the current forward."""
        self.active_modules = batch.active_lora_modules
        self.batch = None
        if batch.active_lora_modules:
            assert batch.lora_slots is not None
            self.batch = LoRABatch(batch.lora_slots, batch.query_tiles, batch.tile_rows)

    @property
    def capturable_modules(self) -> int:
        """Bit mask of all modules that a CUDA graph may capture."""
        return ((1 << len(self._module_bits)) - 1) & ~self.eager_modules

    @property
    def needs_eager(self) -> bool:
        """Whether an adapter of the current forward changes a module that a fused kernel would use."""
        return bool(self.active_modules & self.eager_modules)


class LoRAConfig(NamedTuple):
    """Adapter slots on the device, and the largest rank, as in vLLM."""

    max_loras: int
    max_lora_rank: int


@dataclass(frozen=True)
class StackedLoRA:
    """An adapter's matrices for a range of outputs of an expert stack: `lora_a` [experts, rank, inputs], `lora_b`
    [experts, outputs, rank].
    """

    outputs: slice
    lora_a: torch.Tensor
    lora_b: torch.Tensor


class LoRAWeight(Weight):
    """A base weight plus the adapter of each row. It is loaded like the base weight, which may be sharded.

    A matrix has static slots, with one part for each range of outputs that is a tensor of its own in checkpoints. An
    expert stack holds an adapter's matrices as long as the adapter has a slot. `eager`: see
    ``LoRAContext.eager_modules``.
    """

    def __init__(self, base: Weight, lora: LoRAContext, *, eager: bool) -> None:
        super().__init__(base.shape, base.dtype)
        self.base = base
        self.shard = base.shard
        self.lora = lora
        self.eager = eager or len(base.shape) == 3
        self.module_bit = 0
        self.part_starts: tuple[int, ...] = ()  # first output of each part, and the number of outputs
        self.lora_a = self.lora_b = torch.empty(0)
        self.stacks: dict[int, list[StackedLoRA]] = {}

    @property
    def tensor(self) -> torch.Tensor:
        return self.base.tensor

    @property
    def kernel_arg(self) -> Any:
        return self.base.kernel_arg

    def load_slice(self, part: WeightSlice, tensor: torch.Tensor) -> int:
        return self.base.load_slice(part, tensor)

    def load_quantized(self, index: Index, packed: QuantizedTensor) -> int:
        return self.base.load_quantized(index, packed)

    @property
    def active(self) -> Weight:
        return self.base if self._batch is None else self

    @property
    def _batch(self) -> LoRABatch | None:
        """The slots of the current forward's rows if one of its adapters may change this weight, else None."""
        return self.lora.batch if self.lora.active_modules & self.module_bit else None

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self._add_lora(self.base.matmul(x, bias), x)

    def matmul_out(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        return self._add_lora(self.base.matmul_out(x, out), x)

    def _add_lora(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        batch = self._batch
        if batch is not None:
            self.lora.kernel(out, x, self.lora_a, self.lora_b, self.part_starts, batch)
        return out

    def allocate(self, kind: str, parts: Sequence[WeightSlice], device: torch.device) -> None:
        """Allocates the slots.

        Args:
            kind: module name, for ``LoRAContext.module_bit``.
            parts: slices of the full parameter that checkpoints hold as separate tensors.
        """
        self.module_bit = self.lora.module_bit(kind)
        if self.eager:
            self.lora.eager_modules |= self.module_bit
        outputs, inputs = self.shape[-2:]
        firsts = {local.ranges[-2].start for part in parts for local, _ in self.local_slices(part)}
        self.part_starts = tuple(sorted(firsts | {outputs}))
        if len(self.shape) == 2:
            slots, rank = self.lora.max_loras, self.lora.rank
            a_rows = (len(self.part_starts) - 1) * rank
            self.lora_a = torch.zeros(slots, a_rows, inputs, dtype=self.dtype, device=device)
            self.lora_b = torch.zeros(slots, outputs, rank, dtype=self.dtype, device=device)
        else:
            self.lora_a = self.lora_a.to(device)  # empty, only for its device

    def max_adapter_bytes(self, rank: int) -> int:
        """Returns an upper bound of the bytes that an adapter of this rank uses in addition to the slots."""
        if len(self.shape) == 2:
            return 0
        experts, outputs, inputs = self.shape
        rank = -(-rank // MIN_RANK) * MIN_RANK
        return experts * rank * ((len(self.part_starts) - 1) * inputs + outputs) * self.dtype.itemsize

    @property
    def adapter_bytes(self) -> int:
        """Bytes that adapters use in addition to the slots."""
        return sum(stack.lora_a.nbytes + stack.lora_b.nbytes for stacked in self.stacks.values() for stack in stacked)

    def load_adapter(self, slot: int, pairs: Mapping[WeightSlice, tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Makes the slot's adapter add `lora_b` times `lora_a` to these slices of the full parameter."""
        own = {
            local: (lora_a[:, slices[-1]], lora_b[slices[-2]])
            for part, (lora_a, lora_b) in pairs.items()
            for local, slices in self.local_slices(part)
        }
        if len(self.shape) == 3:
            self._stack(slot, own)
            return
        self.lora_a[slot].zero_()
        self.lora_b[slot].zero_()
        for part, (lora_a, lora_b) in own.items():
            outputs = part.ranges[0]
            for n, first in enumerate(self.part_starts[:-1]):
                if first in outputs:  # an adapter of several parts has one `lora_a` for all of them
                    at = n * self.lora.rank
                    self.lora_a[slot, at : at + len(lora_a)].copy_(lora_a)
            self.lora_b[slot, outputs.start : outputs.stop, : lora_b.shape[1]].copy_(lora_b)

    def _stack(self, slot: int, pairs: Mapping[WeightSlice, tuple[torch.Tensor, torch.Tensor]]) -> None:
        self.stacks.pop(slot, None)
        for outputs in dict.fromkeys(part.ranges[1] for part in pairs):
            own = {part.ranges[0].start: pair for part, pair in pairs.items() if part.ranges[1] == outputs}
            rank = -(-max(len(lora_a) for lora_a, _ in own.values()) // MIN_RANK) * MIN_RANK
            lora_a_stack = self.lora_a.new_zeros(self.shape[0], rank, self.shape[2], dtype=self.dtype)
            lora_b_stack = self.lora_a.new_zeros(self.shape[0], len(outputs), rank, dtype=self.dtype)
            for expert, (lora_a, lora_b) in own.items():
                lora_a_stack[expert, : len(lora_a)].copy_(lora_a)
                lora_b_stack[expert, :, : lora_b.shape[1]].copy_(lora_b)
            stack = StackedLoRA(slice(outputs.start, outputs.stop), lora_a_stack, lora_b_stack)
            self.stacks.setdefault(slot, []).append(stack)


def lora_experts(
    x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor, gate_up: Weight, down: Weight,
    shared: torch.Tensor | None, lora: LoRAContext, activation: Activation = "silu",
) -> torch.Tensor:  # fmt: skip
    """Computes ``kernels.fused_moe.fused_moe.moe_reference`` with LoRA.

    Both GEMMs run separately, each with the adapter of each row. Synchronizes the device, so it cannot be captured.
    """
    flat = ids.flatten().long()
    order = flat.argsort(stable=True)
    order = order[int((flat < 0).sum()) :]  # token-expert pairs sorted by expert, without -1
    expert, row = flat[order], order // ids.shape[1]
    lora_slots = torch.full_like(row, -1) if lora.batch is None else lora.batch.lora_slots[row]
    hidden = act_and_mul_reference(_expert_gemm(x[row], expert, lora_slots, gate_up), activation)
    return sum_choices(_expert_gemm(hidden, expert, lora_slots, down), order, weights, shared)


def _expert_gemm(x: torch.Tensor, expert: torch.Tensor, lora_slots: torch.Tensor, weight: Weight) -> torch.Tensor:
    """Multiplies each token-expert pair by the weight of its expert, and adds the adapter of its row.

    Args:
        x: [pairs, inputs], sorted by expert.
        expert: [pairs].
        lora_slots: [pairs], -1 for no adapter.

    Returns:
        [pairs, outputs].
    """
    stack = weight.tensor
    out = grouped_gemm(x, torch.bincount(expert, minlength=len(stack)), stack)
    for slot, stacks in weight.stacks.items() if isinstance(weight, LoRAWeight) else ():
        rows = (lora_slots == slot).nonzero().flatten()
        if not len(rows):
            continue
        counts = torch.bincount(expert[rows], minlength=len(stack))
        for each in stacks:
            delta = grouped_gemm(grouped_gemm(x[rows], counts, each.lora_a), counts, each.lora_b)
            out[:, each.outputs].index_add_(0, rows, delta)
    return out
