"""The factory that creates the weights of a model's layers and selects their kernels."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import torch

from runtime.distributed.process_group import SINGLE_RANK, TensorParallelGroup
from runtime.errors import ConfigError
from runtime.kernels.common import wide
from runtime.kernels.ops import KernelSet, select_kernels
from runtime.layers.lora import LoRAConfig, LoRAContext, LoRAWeight
from runtime.parameters.sharding import HeadShard, Shard, VocabShard
from runtime.parameters.weight import InterleavedWeight, SplitBF16Weight, UnquantizedWeight, Weight
from runtime.quantization import fp8, int4_int8, nvfp4  # noqa: F401  they register themselves
from runtime.quantization.base import QuantizedWeight, get_format

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
EXPERT_WIDTH = "experts' width"  # name for error messages
FP8_LM_HEAD_NEEDS = (
    "--quantized-lm-head needs fp8 weights on a GPU, without --deterministic; leave it out, or set --quantization fp8"
)


class ForwardCall(Protocol[P, R_co]):
    """Type of a module's `__call__`, which torch leaves untyped: that of its `forward`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class GateUpDown(NamedTuple):
    """Weights of a gated MLP, or of a stack of them."""

    gate_up: Weight
    down: Weight


@dataclass(frozen=True)
class FusedSharedExpert:
    """Weights of routed experts, and of a shared expert that is stored as the last expert of the same stack.

    `gate_up` and `down` are the kernel arguments for the complete stack.
    """

    experts: GateUpDown
    shared: GateUpDown
    gate_up: Any
    down: Any


@dataclass(frozen=True)
class LayerFactory:
    """Creates the weights of a model's layers. One object is passed to the constructors of all layers.

    Attributes:
        device, dtype: of the weights.
        kernels: the kernels of all layers.
        attn_impl: name of the attention implementation (``layers/attention.py``).
        quantization: format of linear layers and experts; None for unquantized. Norms, router, embedding and lm_head
            are never quantized. A checkpoint may quantize some weights in other formats (`in_format`).
        group: tensor parallel group of the model.
        expert_parallel: distribute whole experts over the ranks instead of sharding each expert's width.
        allow_fused_shared_expert: see `fused_shared_expert`.
        lora: state that the LoRA weights share; None without LoRA.
    """

    device: torch.device
    dtype: torch.dtype
    kernels: KernelSet
    attn_impl: str
    quantization: str | None = field(default=None, kw_only=True)
    group: TensorParallelGroup = field(default=SINGLE_RANK, kw_only=True)
    expert_parallel: bool = field(default=False, kw_only=True)
    allow_fused_shared_expert: bool = field(default=True, kw_only=True)
    lora: LoRAContext | None = field(default=None, kw_only=True)

    @classmethod
    def create(
        cls, device: torch.device | str, dtype: torch.dtype, attn_impl: str | None = None,
        quantization: str | None = None, lora_config: LoRAConfig | None = None, *,
        group: TensorParallelGroup = SINGLE_RANK, expert_parallel: bool = False, deterministic: bool = False,
        fp8_lm_head: bool = False,
    ) -> LayerFactory:  # fmt: skip
        """Selects the kernels and, unless it is named, the attention implementation.

        Args:
            quantization: formats of the weights, joined with +; the first is that of this factory.
            deterministic: select batch-invariant kernels and attention.
            fp8_lm_head: find the argmax with e4m3 products (``kernels.fp8_argmax``).

        Raises:
            ConfigError: the dtype is not a floating point type, the format does not support the dtype or the device, or
                no kernel multiplies the LM head in e4m3.
        """
        if not dtype.is_floating_point:
            raise ConfigError(f"--dtype {dtype} is not a floating point type")
        device = torch.device(device)
        formats = quantization.split("+") if quantization is not None else []
        for format in formats:
            get_format(format).check(device, dtype)
        default = "triton_grouped" if device.type == "cuda" else "torch"
        kernels = select_kernels(device, dtype, quantization, deterministic=deterministic)
        if fp8_lm_head:
            if quantization != "fp8" or kernels.quantizing is None or deterministic:
                raise ConfigError(FP8_LM_HEAD_NEEDS)
            kernels = replace(kernels, fp8_lm_head_argmax=kernels.quantizing.lm_head_argmax)
        lora = None
        if lora_config is not None:
            lora = LoRAContext(lora_config, kernels.add_lora, batch_invariant=kernels.batch_invariant)
        return cls(
            device, dtype, kernels, attn_impl or default, quantization=formats[0] if formats else None, group=group,
            expert_parallel=expert_parallel, lora=lora,
        )  # fmt: skip

    @property
    def shards_residual(self) -> bool:
        """Whether each rank keeps the residual stream of its own rows only (``RMSNorm.add_reduced``)."""
        return self.kernels.reduce_add_norm is not None and self.group.has_peer_access(self.dtype)

    def shard(self, dim: int, length: int, what: str, *, repeat: int = 1) -> Shard | None:
        """Returns this rank's even shard of a weight's dimension; None without tensor parallelism.

        Args:
            repeat: the dimension has `repeat` blocks of `length`, each of which is sharded in the same way.
            what: name of what is sharded, for the message.

        Raises:
            ConfigError: the number of ranks does not divide `length`.
        """
        if self.group.is_single:
            return None
        own = self.local_range(length, what)
        ranges = tuple(range(own.start + length * n, own.stop + length * n) for n in range(repeat))
        return Shard(dim, repeat * length, ranges)

    def local_range(self, count: int, what: str) -> range:
        """Returns this rank's even part of `count` elements. Raises ConfigError as `shard`."""
        rank, size = self.group.rank, self.group.size
        if count % size:
            raise ConfigError(f"--tensor-parallel-size {size}: must divide the number of the model's {what}, {count}")
        return range(rank * (count // size), (rank + 1) * (count // size))

    def local_heads(self, heads: int, kv_heads: int, dim: int) -> HeadShard:
        """Returns this rank's query heads and their KV heads. With fewer KV heads than ranks, ranks replicate them.

        Raises:
            ConfigError: the query heads cannot be divided evenly, or the KV heads neither divided nor replicated.
        """
        size = self.group.size
        queries, group = self.local_range(heads, "attention heads"), heads // kv_heads
        if kv_heads % size and size % kv_heads:
            raise ConfigError(
                f"--tensor-parallel-size {size}: must divide the number of the model's key and value heads, "
                f"{kv_heads}, or be a multiple of it"
            )
        return HeadShard(queries, range(queries.start // group, (queries.stop - 1) // group + 1), dim)

    def weight(self, *shape: int, shard: Shard | None = None) -> Weight:
        """Creates the uninitialized weight of a linear layer [outputs, inputs] or of experts.

        Args:
            shape: of the full parameter, here and below; experts have [experts, outputs, inputs].
            shard: the part that this rank stores.
        """
        if self.quantization is None:
            return self.parameter(*shape, shard=shard)
        return self._quantized(_local_shape(shape, shard)).with_shard(shard)

    def with_lora(self, weight: Weight, *, eager: bool = False) -> Weight:
        """Wraps a linear layer's weight for LoRA. `eager`: see ``LoRAWeight``."""
        return weight if self.lora is None else LoRAWeight(weight, self.lora, eager=eager)

    def expert_gate_up(self, *shape: int, shard: Shard | None = None) -> Weight:
        """Creates gate and up weights of experts, [experts, 2 * width, inputs], gate rows first in a checkpoint.

        They are stored in the layout that the kernels expect.
        """
        if not self.kernels.interleaved_gate_up:
            weight = self.weight(*shape, shard=shard)
        elif self.quantization is not None:
            weight = self._quantized(_local_shape(shape, shard), interleaved=True).with_shard(shard)
        else:
            weight = self._interleaved(*shape, shard=shard)
        weight.is_gate_up = True
        return weight

    def dense_gate_up(self, width: int, hidden: int, shard: Shard | None) -> Weight:
        """Creates gate and up weights of a dense MLP, [2 * width, hidden], gate rows first in a checkpoint.

        Unquantized weights are interleaved if the kernels have a fused GEMM for them.
        """
        return self.with_lora(self._dense_gate_up(2 * width, hidden, shard=shard))

    def _dense_gate_up(self, *shape: int, shard: Shard | None = None) -> Weight:
        checkpoint_layout = self.kernels.fused_gate_up is None or self.quantization is not None
        weight = (self.weight if checkpoint_layout else self._interleaved)(*shape, shard=shard)
        weight.is_gate_up = True
        return weight

    def _interleaved(self, *shape: int, shard: Shard | None) -> Weight:
        return InterleavedWeight(_local_shape(shape, shard), self.dtype, self.device).with_shard(shard)

    def _quantized(self, shape: tuple[int, ...], *, interleaved: bool = False) -> QuantizedWeight:
        assert self.quantization is not None
        return get_format(self.quantization).make(shape, self.dtype, self.device, self.kernels, interleaved)

    def in_format(self, weight: Weight, format: str | None) -> Weight:
        """Creates an uninitialized weight that replaces one of this factory, in another format; None: unquantized."""
        if isinstance(weight, LoRAWeight):
            return self.with_lora(self.in_format(weight.base, format), eager=weight.eager)
        factory = replace(self, quantization=format)
        if not weight.is_gate_up:
            return factory.weight(*weight.full_shape, shard=weight.shard)
        make = factory.expert_gate_up if len(weight.shape) == 3 else factory._dense_gate_up
        return make(*weight.full_shape, shard=weight.shard)

    def fused_shared_expert(self, experts: int, hidden: int, width: int) -> FusedSharedExpert | None:
        """Creates weights of `experts` routed experts and a shared one of equal width, stored as expert N of the MoE.

        Returns:
            None if the kernels or the format do not support it, with expert parallelism, or if the formats of the
            experts may differ (`allow_fused_shared_expert`).
        """
        if not self.kernels.interleaved_gate_up or self.expert_parallel or not self.allow_fused_shared_expert:
            return None
        rows, columns = self.mlp_shards(width)
        if self.group.size > 1:
            width = len(self.local_range(width, EXPERT_WIDTH))
        gate_up, down = self.expert_gate_up(experts + 1, 2 * width, hidden), self.weight(experts + 1, hidden, width)
        routed, shared = (
            GateUpDown(gate_up.select(at).with_shard(rows), down.select(at).with_shard(columns))
            for at in (slice(experts), experts)
        )
        return FusedSharedExpert(routed, shared, gate_up.kernel_arg, down.kernel_arg)

    def mlp_shards(self, width: int, what: str = EXPERT_WIDTH) -> tuple[Shard | None, Shard | None]:
        """Returns the shards of gate_up and down of an MLP whose width is sharded."""
        return self.shard(-2, width, what, repeat=2), self.shard(-1, width, what)

    def vocab_weight(self, vocab_size: int, hidden: int) -> Weight:
        """Creates the uninitialized weight of an embedding or an lm_head."""
        part = self.vocab_shard(vocab_size)
        return self.parameter(vocab_size, hidden, shard=None if part is None else Shard(-2, vocab_size, (part.local,)))

    def vocab_shard(self, vocab_size: int) -> VocabShard | None:
        """Returns this rank's part of the vocabulary; sizes of ranks may differ by one. None if not sharded."""
        rank, size = self.group.rank, self.group.size
        if self.group.is_single:
            return None
        return VocabShard(range(vocab_size * rank // size, vocab_size * (rank + 1) // size), vocab_size, self.group)

    def router_weight(self, experts: int, hidden: int) -> Weight:
        """Creates the uninitialized weight of a router, in float32 (float64 for a float64 model)."""
        if self.kernels.split_router_weight and self.dtype == torch.bfloat16:
            return SplitBF16Weight((experts, hidden), self.device)
        return self.parameter(experts, hidden, dtype=wide(self.dtype))

    def parameter(self, *shape: int, dtype: torch.dtype | None = None, shard: Shard | None = None) -> Weight:
        """Creates an uninitialized parameter that is never quantized. `dtype`: the model's if None."""
        weight = UnquantizedWeight(_local_shape(shape, shard), dtype or self.dtype, self.device, self.kernels.linear)
        return weight.with_shard(shard)


def _local_shape(shape: tuple[int, ...], shard: Shard | None) -> tuple[int, ...]:
    return shape if shard is None else shard.local_shape(shape)
