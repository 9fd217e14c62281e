"""What every layer of a model is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

import torch

from runtime.distributed.process_group import SINGLE_RANK, TensorParallelGroup
from runtime.errors import ConfigError
from runtime.kernels.ops import Kernels, select_kernels
from runtime.kernels.precision import wide
from runtime.layers.lora import Lora, LoraWeight, Room
from runtime.layers.parameter import PartsWeight, PlainWeight, TurnsWeight, Weight
from runtime.layers.sharding import Heads, Ids, Share
from runtime.quantization import fp8, int4_int8  # noqa: F401  they register themselves
from runtime.quantization.base import PackedWeight
from runtime.quantization.registry import format_of

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
EXPERT_WIDTH = "experts' width"  # in sentences


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
    router, embedding and head are plain in every format. `group`: the processes that share the model; `deals`: they
    share a mixture's experts out instead of each expert's width. `lora`: what adapters of requests share, None: there
    are none."""

    device: torch.device
    dtype: torch.dtype
    kernels: Kernels
    attn_impl: str
    quantization: str | None = field(default=None, kw_only=True)
    group: TensorParallelGroup = field(default=SINGLE_RANK, kw_only=True)
    deals: bool = field(default=False, kw_only=True)
    joins: bool = field(default=True, kw_only=True)  # see `joined`
    lora: Lora | None = field(default=None, kw_only=True)

    @classmethod
    def choose(
        cls,
        device: torch.device | str,
        dtype: torch.dtype,
        attn_impl: str | None = None,
        quantization: str | None = None,
        adapters: Room | None = None,
        *,
        group: TensorParallelGroup = SINGLE_RANK,
        deals: bool = False,
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
        return cls(
            device, dtype, kernels, attn_impl or default, quantization=quantization, group=group, deals=deals, lora=lora
        )  # fmt: skip

    def share(self, dim: int, length: int, what: str, *, times: int = 1) -> Share | None:
        """This process's even share of a weight's dimension: `times` as many places as the `length` that is shared
        out, of which each run of `length` is shared alike. None: it is alone. ConfigError where it does not divide;
        `what` is shared out, in words."""
        if self.group.is_single:
            return None
        mine = self.part(length, what)
        runs = tuple(range(mine.start + length * n, mine.stop + length * n) for n in range(times))
        return Share(dim, times * length, runs)

    def part(self, count: int, what: str) -> range:
        """Of so many, those that are this process's own."""
        rank, size = self.group.rank, self.group.size
        if count % size:
            raise ConfigError(
                f"--tensor-parallel-size {size}: the model's {what} are {count}, which it does not divide; give a size "
                "that does"
            )
        return range(rank * (count // size), (rank + 1) * (count // size))

    def heads(self, heads: int, kv_heads: int, dim: int) -> Heads:
        """This process's own: query heads are shared out, and key heads with them; where there are fewer of these than
        processes, several keep the same one. ConfigError where that does not divide."""
        size = self.group.size
        queries, group = self.part(heads, "attention heads"), heads // kv_heads
        if kv_heads % size and size % kv_heads:
            raise ConfigError(
                f"--tensor-parallel-size {size}: the model's key and value heads are {kv_heads}, which it neither "
                "divides nor is a multiple of; give a size that does or is"
            )
        return Heads(queries, range(queries.start // group, (queries.stop - 1) // group + 1), dim)

    def weight(self, *shape: int, share: Share | None = None) -> Weight:
        """Unfilled, of a product [outputs, inputs], or of experts [experts, outputs, inputs]. `shape` is the whole's,
        here and below, of which a `share` is kept."""
        if self.quantization is None:
            return self.parameter(*shape, share=share)
        return self._packed(_kept(shape, share)).sharing(share)

    def adapted(self, weight: Weight, *, apart: bool = False) -> Weight:
        """A product's weight as adapters change it. `apart`: kernels take it together with others."""
        return weight if self.lora is None else LoraWeight(weight, self.lora, apart=apart)

    def expert_gates(self, *shape: int, share: Share | None = None) -> Weight:
        """Unfilled, of experts whose gate and up rows are one product [experts, 2 * width, inputs], gates first. They
        are kept as the kernels take them."""
        if not self.kernels.turns:
            return self.weight(*shape, share=share)
        if self.quantization is not None:
            return self._packed(_kept(shape, share), turns=True).sharing(share)
        return self._in_turns(*shape, share=share)

    def dense_gates(self, width: int, hidden: int, share: Share | None) -> Weight:
        """Unfilled, of one gated layer's gate and up rows, which are one product [2 * width, hidden], gates first. Kept
        in turns where the kernels take plain ones so."""
        as_filled = self.kernels.gated_product is None or self.quantization is not None
        make = self.weight if as_filled else self._in_turns
        return self.adapted(make(2 * width, hidden, share=share))

    def _in_turns(self, *shape: int, share: Share | None) -> Weight:
        return TurnsWeight(_kept(shape, share), self.dtype, self.device).sharing(share)

    def _packed(self, shape: tuple[int, ...], *, turns: bool = False) -> PackedWeight:
        assert self.quantization is not None
        return format_of(self.quantization).make(shape, self.dtype, self.device, self.kernels, turns)

    def joined(self, experts: int, hidden: int, width: int) -> Joined | None:
        """Unfilled, of `experts` gated layers and one more of like width, kept so that kernels take it for an expert.
        None: the kernels, or the format, do not, the experts are dealt out, or `joins` says that their formats may
        differ."""
        if not self.kernels.turns or self.deals or not self.joins:
            return None
        rows, columns = self.widths(width)
        if self.group.size > 1:
            width = len(self.part(width, EXPERT_WIDTH))
        if self.quantization is not None:
            whole = (
                self._packed((experts + 1, 2 * width, hidden), turns=True),
                self._packed((experts + 1, hidden, width)),
            )
            own, last = (Gated(*(weight.part(at) for weight in whole)) for at in (slice(experts), experts))
            operands: tuple[Any, Any] = whole[0].operand, whole[1].operand
        else:
            gate_up = torch.empty(experts + 1, 2 * width, hidden, dtype=self.dtype, device=self.device)
            down = torch.empty(experts + 1, hidden, width, dtype=self.dtype, device=self.device)
            own, last = (
                Gated(TurnsWeight.of(gate_up[at]), PlainWeight.of(down[at])) for at in (slice(experts), experts)
            )
            operands = gate_up, down
        for held in (own, last):
            held.gate_up.sharing(rows)
            held.down.sharing(columns)
        return Joined(own, last, *operands)

    def widths(self, width: int, what: str = EXPERT_WIDTH) -> tuple[Share | None, Share | None]:
        """Of a gated layer's two products, whose width is shared out."""
        return self.share(-2, width, what, times=2), self.share(-1, width, what)

    def table(self, vocab_size: int, hidden: int) -> Weight:
        """Unfilled, of an embedding, or of a head."""
        ids = self.ids(vocab_size)
        return self.parameter(vocab_size, hidden, share=None if ids is None else Share(-2, vocab_size, (ids.here,)))

    def ids(self, vocab_size: int) -> Ids | None:
        """Those whose rows of a table are kept here, if not all are; the shares may differ by one."""
        rank, size = self.group.rank, self.group.size
        if self.group.is_single:
            return None
        return Ids(range(vocab_size * rank // size, vocab_size * (rank + 1) // size), vocab_size, self.group)

    def scores(self, experts: int, hidden: int) -> Weight:
        """Unfilled, of a router's product, which is wide."""
        if self.kernels.parts and self.dtype == torch.bfloat16:
            return PartsWeight((experts, hidden), self.device)
        return self.parameter(experts, hidden, dtype=wide(self.dtype))

    def parameter(self, *shape: int, dtype: torch.dtype | None = None, share: Share | None = None) -> Weight:
        """Unfilled, of something small: plain however large ones are kept, and whole unless a share is given; in the
        model's dtype unless another is given."""
        made = PlainWeight(_kept(shape, share), dtype or self.dtype, self.device, self.kernels.linear)
        return made.sharing(share)


def _kept(shape: tuple[int, ...], share: Share | None) -> tuple[int, ...]:
    return shape if share is None else share.kept(shape)
