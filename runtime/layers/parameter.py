"""What a layer holds of a checkpoint: in the checkpoint's coordinates, in a format of its own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.nn.functional as F
from torch import nn

from runtime.errors import ConfigError
from runtime.kernels.interleave import deinterleave, deinterleave_outputs, interleaved_index
from runtime.kernels.moe_router_gemm import NUM_PARTS, split_bf16x3
from runtime.kernels.quant_reference import QuantizedTensor
from runtime.layers.lm_head import head_logits
from runtime.layers.sharding import Index, Part, Share

if TYPE_CHECKING:
    from runtime.kernels.signatures import LinearKernel


class Weight(ABC):
    """A matrix [..., outputs, inputs], or a vector, that a checkpoint fills and layers compute with in `dtype`.

    It is filled in the coordinates of the whole, whatever of it this process keeps (`shape`), and in whatever format.
    A format says how it takes a part of what is kept and what `tensor` is; the products below follow from that, and it
    has its own where it has better ones.
    """

    share: Share | None = None  # None: all of it is kept

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape = shape
        self.dtype = dtype

    def sharing(self, share: Share | None) -> Self:
        """This weight, as a share of a whole."""
        self.share = share
        return self

    @property
    def whole(self) -> tuple[int, ...]:
        """The sizes that a checkpoint has."""
        return self.shape if self.share is None else self.share.whole(self.shape)

    @property
    @abstractmethod
    def tensor(self) -> torch.Tensor:
        """What is kept here, of `dtype`. Plain: the very tensor; others make it anew."""

    @property
    def operand(self) -> Any:
        """What the build's kernels are given of it: `tensor`, unless the format has kernels of its own."""
        return self.tensor

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes on the device."""

    @property
    def size(self) -> int:
        """How many of the whole's elements are kept here."""
        return math.prod(self.shape)

    def fill(self, index: Index, tensor: torch.Tensor) -> int:
        """Take `tensor`, of any float dtype and device, as the whole's [index]; return how many of its elements are
        kept here. ConfigError, worded to follow a tensor's name, for a wrong shape and for what is not finite here."""
        part = Part.of(self.whole, index)
        if tensor.shape != part.shape:
            raise ConfigError(f"is {list(tensor.shape)}, not {list(part.shape)}")
        return self.fill_from(index, lambda box: tensor[box])

    def fill_from(self, index: Index, read: Callable[[tuple[slice, ...]], torch.Tensor]) -> int:
        """The same of a tensor of which only what is kept here is read: `read(box)` gives a box of it."""
        part = Part.of(self.whole, index)
        return sum(self.take(kept, read(box).reshape([len(r) for r in kept.ranges])) for kept, box in self.pieces(part))

    def pieces(self, part: Part) -> Iterable[tuple[Part, tuple[slice, ...]]]:
        """What of a part of the whole is kept here, see ``Share.pieces``."""
        return [(part, part.box)] if self.share is None else self.share.pieces(part)

    def fill_packed(self, index: Index, packed: QuantizedTensor) -> int:
        """`fill` with a matrix of few bits that a checkpoint holds. Its own format keeps it as it is."""
        return self.fill(index, packed.dequantize(torch.float32))

    @abstractmethod
    def take(self, part: Part, tensor: torch.Tensor) -> int:
        """See `fill`; `part` is one of what is kept, and `tensor` has as many dimensions and the part's sizes."""

    @property
    def current(self) -> Weight:
        """What the forward under way computes with: this, or, of one that adapters may change and do not, its base."""
        return self

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """[rows, inputs] -> [rows, outputs], plus `bias` [outputs]."""
        return F.linear(x, self.tensor, bias)

    def into(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """`matmul` without a bias, written to `out` by whoever needs no copy for it."""
        return self.matmul(x)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """int64 [rows] -> [rows, inputs], the outputs of these ids."""
        return F.embedding(ids, self.tensor)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, inputs] -> [n, outputs], see `head_logits`."""
        return head_logits(hidden, self.tensor)


class PlainWeight(Weight):
    """One tensor of the whole. `linear`: what multiplies by it."""

    __slots__ = ("linear", "tensor")  # an attribute in the property's place: reading it costs the host no call
    tensor: torch.Tensor

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, linear: LinearKernel = F.linear
    ) -> None:
        super().__init__(shape, dtype)
        self.linear = linear
        self.tensor = torch.empty(shape, dtype=dtype, device=device)

    @classmethod
    def of(cls, kept: torch.Tensor) -> PlainWeight:
        """One that fills `kept`."""
        made = cls(tuple(kept.shape), kept.dtype, torch.device("meta"))
        made.tensor = kept
        return made

    @property
    def nbytes(self) -> int:
        return self.tensor.nbytes

    def take(self, part: Part, tensor: torch.Tensor) -> int:
        kept = self.tensor[part.slices]
        kept.copy_(tensor)
        require_finite(kept, tensor)
        return kept.numel()

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self.linear(x, self.tensor, bias)

    def into(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        return self.matmul(x) if self.linear is not F.linear else torch.mm(x, self.tensor.t(), out=out)


class TurnsWeight(Weight):
    """One tensor of the whole, [2 * width, inputs] or a stack of such, whose gate and up rows lie in turns
    (``kernels/interleave.py``)."""

    __slots__ = ("operand",)  # as a plain weight's tensor
    operand: torch.Tensor

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(shape, dtype)
        self.operand = torch.empty(shape, dtype=dtype, device=device)

    @classmethod
    def of(cls, kept: torch.Tensor) -> TurnsWeight:
        """One that fills `kept`."""
        made = cls(tuple(kept.shape), kept.dtype, torch.device("meta"))
        made.operand = kept
        return made

    @property
    def tensor(self) -> torch.Tensor:
        return deinterleave(self.operand)

    @property
    def nbytes(self) -> int:
        return self.operand.nbytes

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        made = deinterleave_outputs(F.linear(x, self.operand))
        return made if bias is None else made.add_(bias)

    def take(self, part: Part, tensor: torch.Tensor) -> int:
        *others, _, inputs = part.slices
        at = interleaved_index(part.ranges[-2], self.shape[-2] // 2, self.operand.device)
        box = self.operand[(*others, slice(None), inputs)]
        for stack, given in zip(box, tensor, strict=True) if others else [(box, tensor)]:  # no copy of all of them
            kept = given.to(self.operand.device, self.dtype)
            require_finite(kept, given)
            stack.index_copy_(0, at, kept)
        return tensor.numel()


class PartsWeight(Weight):
    """A float32 matrix as three of bfloat16 that sum up to it (``kernels/moe_router_gemm.py``)."""

    __slots__ = ("operand",)
    operand: torch.Tensor

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        super().__init__(shape, torch.float32)
        self.operand = torch.empty(NUM_PARTS, *shape, dtype=torch.bfloat16, device=device)

    @property
    def tensor(self) -> torch.Tensor:
        high, middle, low = self.operand.to(self.dtype).unbind()
        return high.add(middle + low)

    @property
    def nbytes(self) -> int:
        return self.operand.nbytes

    def take(self, part: Part, tensor: torch.Tensor) -> int:
        kept = self.operand[(slice(None), *part.slices)]
        kept.copy_(split_bf16x3(tensor.to(self.dtype)))
        require_finite(kept, tensor)
        return tensor.numel()


def require_finite(kept: torch.Tensor, given: torch.Tensor) -> None:
    """ConfigError, worded to follow a tensor's name, unless all of `kept`, made of `given`, is finite."""
    if not bool(torch.isfinite(kept).all()):
        if not bool(torch.isfinite(given).all()):
            raise ConfigError("holds NaN or infinite values")
        raise ConfigError(f"holds values too large for {kept.dtype}; choose another --dtype")


def tensor_of(weight: Weight | None) -> torch.Tensor | None:
    return None if weight is None else weight.tensor


def weights_of(module: nn.Module) -> dict[str, Weight]:
    """What a module and those in it hold, by where: "layers.0.attention.qkv.weight"."""
    return {
        f"{path}.{name}" if path else name: held
        for path, part in module.named_modules()
        for name, held in vars(part).items()
        if isinstance(held, Weight)
    }
