"""What every layer of a model is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import torch

from runtime.errors import ConfigError
from runtime.kernels.dispatch import Kernels, select_kernels
from runtime.kernels.precision import wide
from runtime.layers import fp8_weight, grouped_weight  # noqa: F401  they register themselves
from runtime.layers.formats import format_of
from runtime.layers.lora import Lora, LoraWeight, Room
from runtime.layers.packed_weight import PackedWeight
from runtime.layers.weight import PartsWeight, PlainWeight, TurnsWeight, Weight

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Calls(Protocol[P, R_co]):
    """What calling a module takes and gives, which torch's own types leave open: as its `forward`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class Gated(NamedTuple):
    """What a gated layer, or a stack of them, holds."""

    gate_up: Weight
    down: Weight


@dataclass(frozen=True)
class Joined:
    """`experts` and, behind them, the `last` one; and both as kernels take them."""

    experts: Gated
    last: Gated
    gate_up: Any
    down: Any


@dataclass(frozen=True)
class Build:
    """Where a model's weights lie, in which dtype and format, and what computes with them: one for a whole model,
    handed to each layer's constructor. `attn_impl` names an attention implementation
    (``layers/attention_dispatch.py``), `quantization` the format of linear layers and experts, None: plain. Norms,
    router, embedding and head are plain in every format. `lora`: what adapters of requests share, None: there are
    none."""

    device: torch.device
    dtype: torch.dtype
    kernels: Kernels
    attn_impl: str
    quantization: str | None = field(default=None, kw_only=True)
    lora: Lora | None = field(default=None, kw_only=True)
    joins: bool = field(default=True, kw_only=True)  # see `joined`

    @classmethod
    def choose(
        cls,
        device: torch.device | str,
        dtype: torch.dtype,
        attn_impl: str | None = None,
        quantization: str | None = None,
        adapters: Room | None = None,
        *,
        deterministic: bool = False,
    ) -> Build:
        """With the kernels that fit, and, unless it is named, the attention. ConfigError for a dtype of no floats, and
        for a format that does not go with the dtype or the device. `deterministic`: with kernels and an attention whose
        bits do not depend on what rows are beside each other."""
        if not dtype.is_floating_point:
            raise ConfigError(f"--dtype {dtype} is not a floating point type")
        device = torch.device(device)
        if quantization is not None:
            format_of(quantization).check(device, dtype)
        default = "triton_grouped" if device.type == "cuda" else "torch"
        kernels = select_kernels(device, dtype, quantization, deterministic=deterministic)
        lora = None if adapters is None else Lora(adapters, kernels.add_lora, fixed=kernels.fixed)
        return cls(device, dtype, kernels, attn_impl or default, quantization=quantization, lora=lora)

    def weight(self, *shape: int) -> Weight:
        """Unfilled, of a product [outputs, inputs], or of experts [experts, outputs, inputs]."""
        return self.parameter(*shape) if self.quantization is None else self._packed(shape)

    def adapted(self, weight: Weight, *, apart: bool = False) -> Weight:
        """A product's weight as adapters change it. `apart`: kernels take it together with others."""
        return weight if self.lora is None else LoraWeight(weight, self.lora, apart=apart)

    def gates(self, *shape: int) -> Weight:
        """Unfilled, of experts whose gate and up rows are one product [experts, 2 * width, inputs], gates first. They
        are kept as the kernels take them."""
        if not self.kernels.turns:
            return self.weight(*shape)
        if self.quantization is not None:
            return self._packed(shape, turns=True)
        return TurnsWeight(shape, self.dtype, self.device)

    def _packed(self, shape: tuple[int, ...], *, turns: bool = False) -> PackedWeight:
        assert self.quantization is not None
        return format_of(self.quantization).make(shape, self.dtype, self.device, self.kernels, turns)

    def joined(self, experts: int, hidden: int, width: int) -> Joined | None:
        """Unfilled, of `experts` gated layers and one more of like width, kept so that kernels take it for an expert.
        None: the kernels, or the format, do not, or `joins` says that their formats may differ."""
        if not self.kernels.turns or not self.joins:
            return None
        if self.quantization is not None:
            whole = (
                self._packed((experts + 1, 2 * width, hidden), turns=True),
                self._packed((experts + 1, hidden, width)),
            )
            own, last = (Gated(*(weight.part(at) for weight in whole)) for at in (slice(experts), experts))
            return Joined(own, last, *(weight.operand for weight in whole))
        gate_up = torch.empty(experts + 1, 2 * width, hidden, dtype=self.dtype, device=self.device)
        down = torch.empty(experts + 1, hidden, width, dtype=self.dtype, device=self.device)
        own = Gated(TurnsWeight.of(gate_up[:experts]), PlainWeight.of(down[:experts]))
        return Joined(own, Gated(TurnsWeight.of(gate_up[experts]), PlainWeight.of(down[experts])), gate_up, down)

    def table(self, vocab_size: int, hidden: int) -> Weight:
        """Unfilled, of an embedding, or of a head."""
        return self.parameter(vocab_size, hidden)

    def scores(self, experts: int, hidden: int, *, wide_rows: bool = False) -> Weight:
        """Unfilled, of a router's product, which is wide. `wide_rows`: so are the rows that it multiplies."""
        if self.kernels.parts and self.dtype == torch.bfloat16 and not wide_rows:
            return PartsWeight((experts, hidden), self.device)
        return self.parameter(experts, hidden, dtype=wide(self.dtype))

    def parameter(self, *shape: int, dtype: torch.dtype | None = None) -> Weight:
        """Unfilled, of something small: whole and plain however large ones are kept; in the model's dtype unless
        another is given."""
        return PlainWeight(shape, dtype or self.dtype, self.device, self.kernels.linear)
