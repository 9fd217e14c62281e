"""Minimal weight formats that no model has. They test the interface between checkpoint, weight and layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from runtime.errors import ConfigError
from runtime.kernels.fused_moe.fused_moe import moe_torch
from runtime.layers.layer_factory import LayerFactory
from runtime.layers.parameter import Weight, require_finite
from runtime.layers.sharding import Shard, WeightSlice


@dataclass(frozen=True)
class Formats(LayerFactory):
    """A layer factory whose GEMM weights are `form(build, shape)`."""

    form: Callable[[LayerFactory, tuple[int, ...]], Weight]

    def weight(self, *shape: int, shard: Shard | None = None) -> Weight:
        assert shard is None
        return self.form(self, shape)

    @classmethod
    def of(cls, build: LayerFactory, form: Callable[[LayerFactory, tuple[int, ...]], Weight]) -> Formats:
        return cls(build.device, build.dtype, build.kernels, build.attn_impl, form)


def rounded(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantizes [..., outputs, inputs] to int8 of the same shape, and scales [..., outputs, 1]."""
    scale = values.float().abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127
    return (values.float() / scale).round().to(torch.int8), scale


@dataclass(frozen=True)
class Bytes:
    """The kernel argument of an `Int8` weight, for `moe_int8`."""

    codes: torch.Tensor
    scale: torch.Tensor


def moe_int8(x, ids, weights, gate_up, down, shared, activation="silu", out=None):
    """Runs `moe_torch` with dequantized int8 experts."""
    dequantized = ((each.codes * each.scale).to(x.dtype) for each in (gate_up, down))
    return moe_torch(x, ids, weights, *dequantized, shared, activation, out)


class Int8(Weight):
    """One byte per element and one scale per output. Slices are quantized while the checkpoint is read."""

    def __init__(self, build: LayerFactory, shape: tuple[int, ...]) -> None:
        super().__init__(shape, build.dtype)
        self.bytes = torch.empty(shape, dtype=torch.int8, device=build.device)
        self.scale = torch.empty((*shape[:-1], 1), device=build.device)

    @property
    def tensor(self) -> torch.Tensor:
        return (self.bytes * self.scale).to(self.dtype)

    @property
    def kernel_arg(self) -> Bytes:  # type: ignore[override]
        return Bytes(self.bytes, self.scale)

    @property
    def device(self) -> torch.device:
        return self.bytes.device

    @property
    def nbytes(self) -> int:
        return self.bytes.nbytes + self.scale.nbytes

    def load_slice(self, part: WeightSlice, tensor: torch.Tensor) -> int:
        if len(part.ranges[-1]) != self.shape[-1]:
            raise ConfigError("holds less than a whole output, whose scale cannot be known")
        codes, scale = rounded(tensor)
        require_finite(scale, tensor)
        self.bytes[part.slices], self.scale[part.slices] = codes, scale
        return codes.numel()

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out = F.linear(x, self.bytes.to(x.dtype)) * self.scale.to(x.dtype).squeeze(-1)
        return out if bias is None else out + bias


class RankWeight(Weight):
    """Shard number `rank` of `ranks`, a range of outputs. A GEMM concatenates the results of all shards in `group`."""

    def __init__(self, build: LayerFactory, shape: tuple[int, ...], rank: int, ranks: int) -> None:
        super().__init__(shape, build.dtype)
        self.own = range(rank * shape[0] // ranks, (rank + 1) * shape[0] // ranks)
        self.codes = torch.empty((len(self.own), *shape[1:]), dtype=build.dtype, device=build.device)
        self.group: list[Weight] = []

    @property
    def tensor(self) -> torch.Tensor:
        return self.codes

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes

    @property
    def size(self) -> int:
        return self.codes.numel()

    def load_slice(self, part: WeightSlice, tensor: torch.Tensor) -> int:
        outputs, inputs = part.ranges
        first, last = max(outputs.start, self.own.start), min(outputs.stop, self.own.stop)
        if first >= last:
            return 0
        codes = self.codes[first - self.own.start : last - self.own.start, inputs.start : inputs.stop]
        codes.copy_(tensor[first - outputs.start : last - outputs.start])
        require_finite(codes, tensor)
        return codes.numel()

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        out = torch.cat([F.linear(x, shard.tensor) for shard in self.group], -1)
        return out if bias is None else out + bias


class Adapted(Weight):
    """A weight of another format, with a low-rank adapter."""

    def __init__(self, base: Weight, rank: int) -> None:
        super().__init__(base.shape, base.dtype)
        self.base = base
        random = torch.Generator().manual_seed(sum(base.shape))
        self.down = torch.randn(rank, base.shape[1], generator=random).to(base.dtype) * 0.1
        self.up = torch.randn(base.shape[0], rank, generator=random).to(base.dtype) * 0.1

    @property
    def tensor(self) -> torch.Tensor:
        return self.base.tensor + self.up @ self.down

    @property
    def nbytes(self) -> int:
        return self.base.nbytes + self.down.nbytes + self.up.nbytes

    @property
    def size(self) -> int:
        return self.base.size

    def load_slice(self, part: WeightSlice, tensor: torch.Tensor) -> int:
        return self.base.load_slice(part, tensor)

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self.base.matmul(x, bias) + F.linear(F.linear(x, self.down), self.up)
