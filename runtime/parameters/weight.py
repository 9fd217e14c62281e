"""Model parameters that load themselves from a checkpoint: sharded, quantized or laid out for kernels."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
import torch.nn.functional as F
from torch import nn

from runtime.errors import ConfigError
from runtime.kernels.activation import deinterleave, deinterleave_outputs, interleaved_index
from runtime.kernels.moe_router import NUM_PARTS, split_bf16x3
from runtime.kernels.quantized_tensor import QuantizedTensor
from runtime.parameters.sharding import Index, Shard, WeightSlice

if TYPE_CHECKING:
    from runtime.kernels.ops import LinearKernel


class Weight(ABC):
    """A parameter [..., outputs, inputs], or a vector, that layers compute with in `dtype`.

    Checkpoint tensors are loaded in the coordinates of the full parameter, independent of the format and of the shard
    that this rank stores. A format defines `load_slice` and `tensor`. The GEMMs are derived from these and may be
    overridden.

    Attributes:
        shard: the shard that this rank stores; None for the full parameter.
        shape: shape of the part that this rank stores.
        is_gate_up: the rows are the gate and up rows of a gated MLP, or of a stack of experts.
    """

    shard: Shard | None = None  # None: not sharded
    is_gate_up = False
    _stored = "kernel_arg"  # attribute with the stored values

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape = shape
        self.dtype = dtype

    def with_shard(self, shard: Shard | None) -> Self:
        """Marks this weight as a shard of a parameter and returns it."""
        self.shard = shard
        return self

    @property
    def full_shape(self) -> tuple[int, ...]:
        """Shape of the full parameter, as in a checkpoint."""
        return self.shape if self.shard is None else self.shard.full_shape(self.shape)

    @property
    @abstractmethod
    def tensor(self) -> torch.Tensor:
        """The stored values in `dtype`: the stored tensor itself if unquantized, else dequantized on each access."""

    @property
    def kernel_arg(self) -> Any:
        """The argument of the kernels: `tensor`, unless the format has its own kernels."""
        return self.tensor

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return int(self.kernel_arg.nbytes)

    @property
    def size(self) -> int:
        """Number of stored elements."""
        return math.prod(self.shape)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.kernel_arg.device
        return device

    def select(self, index: int | slice) -> Self:
        """Returns a weight of the matrices at `index` of a stack; it shares their memory."""
        result, part = copy.copy(self), self.kernel_arg[index]
        setattr(result, self._stored, part)
        result.shape = tuple(part.shape)
        return result

    def load(self, index: Index, tensor: torch.Tensor) -> int:
        """Loads `tensor`, of any float dtype and device, to [index] of the full parameter.

        Returns:
            Number of its elements that this rank stores.

        Raises:
            ConfigError: wrong shape, or values that are not finite in `dtype`. The message continues a sentence that
                names the tensor.
        """
        part = WeightSlice.of(self.full_shape, index)
        if tensor.shape != part.shape:
            raise ConfigError(f"is {list(tensor.shape)}, not {list(part.shape)}")
        return self.load_lazily(index, lambda box: tensor[box])

    def load_lazily(self, index: Index, read: Callable[[tuple[slice, ...]], torch.Tensor]) -> int:
        """Does the same as `load`, but reads only the local part: `read(slices)` returns these slices of the tensor."""
        part = WeightSlice.of(self.full_shape, index)
        return sum(
            self.load_slice(stored, read(box).reshape([len(r) for r in stored.ranges]))
            for stored, box in self.local_slices(part)
        )

    def local_slices(self, part: WeightSlice) -> Iterable[tuple[WeightSlice, tuple[slice, ...]]]:
        """Returns the stored slices of a slice of the full parameter, see ``Shard.intersect``."""
        return [(part, part.tensor_slices)] if self.shard is None else self.shard.intersect(part)

    def load_quantized(self, index: Index, packed: QuantizedTensor) -> int:
        """Loads a quantized matrix of a checkpoint, as `load`. A weight of the same format stores it unchanged."""
        return self.load(index, packed.dequantize(torch.float32))

    @abstractmethod
    def load_slice(self, part: WeightSlice, tensor: torch.Tensor) -> int:
        """Loads `tensor`, which has the slice's size in all dimensions, into a slice of the local shard. See `load`."""

    @property
    def active(self) -> Weight:
        """The weight that the current forward uses: this one, or its base if no adapter of the batch changes it."""
        return self

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the product with `x` [rows, inputs], plus `bias` [outputs]: [rows, outputs]."""
        return F.linear(x, self.tensor, bias)

    def matmul_out(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        """Returns `matmul` without a bias, written to `out` if the format can do so without a copy."""
        return self.matmul(x)

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Returns the matrix rows with these ids, [n, inputs], for int64 `ids` [n]."""
        return F.embedding(ids, self.tensor)


class UnquantizedWeight(Weight):
    """An unquantized parameter. `linear`: the GEMM kernel."""

    __slots__ = ("linear", "tensor")  # an attribute instead of a property saves a call on the host
    _stored = "tensor"
    tensor: torch.Tensor

    def __init__(
        self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, linear: LinearKernel = F.linear
    ) -> None:
        super().__init__(shape, dtype)
        self.linear = linear
        self.tensor = torch.empty(shape, dtype=dtype, device=device)

    def load_slice(self, part: WeightSlice, tensor: torch.Tensor) -> int:
        stored = self.tensor[part.slices]
        stored.copy_(tensor)
        require_finite(stored, tensor)
        return stored.numel()

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return self.linear(x, self.tensor, bias)

    def matmul_out(self, x: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
        return self.matmul(x) if self.linear is not F.linear else torch.mm(x, self.tensor.t(), out=out)


class InterleavedWeight(Weight):
    """Unquantized [2 * width, inputs], or a stack of such, with interleaved gate and up rows
    (``kernels/activation.py``).
    """

    __slots__ = ("kernel_arg",)  # an attribute, like `UnquantizedWeight.tensor`
    kernel_arg: torch.Tensor

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(shape, dtype)
        self.kernel_arg = torch.empty(shape, dtype=dtype, device=device)

    @property
    def tensor(self) -> torch.Tensor:
        return deinterleave(self.kernel_arg)

    def matmul(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        result = deinterleave_outputs(F.linear(x, self.kernel_arg))
        return result if bias is None else result.add_(bias)

    def load_slice(self, part: WeightSlice, tensor: torch.Tensor) -> int:
        *others, _, inputs = part.slices
        at = interleaved_index(part.ranges[-2], self.shape[-2] // 2, self.kernel_arg.device)
        box = self.kernel_arg[(*others, slice(None), inputs)]
        for stack, source in (
            zip(box, tensor, strict=True) if others else [(box, tensor)]
        ):  # one by one, to avoid a copy of the stack
            stored = source.to(self.kernel_arg.device, self.dtype)
            require_finite(stored, source)
            stack.index_copy_(0, at, stored)
        return tensor.numel()


class SplitBF16Weight(Weight):
    """A float32 matrix, stored as three bfloat16 matrices with the same sum (``kernels/moe_router.py``)."""

    __slots__ = ("kernel_arg",)
    kernel_arg: torch.Tensor

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        super().__init__(shape, torch.float32)
        self.kernel_arg = torch.empty(NUM_PARTS, *shape, dtype=torch.bfloat16, device=device)

    @property
    def tensor(self) -> torch.Tensor:
        high, middle, low = self.kernel_arg.to(self.dtype).unbind()
        return high.add(middle + low)

    def load_slice(self, part: WeightSlice, tensor: torch.Tensor) -> int:
        stored = self.kernel_arg[(slice(None), *part.slices)]
        stored.copy_(split_bf16x3(tensor.to(self.dtype)))
        require_finite(stored, tensor)
        return tensor.numel()


class DeferredChecks:
    """Collects the results of `require_finite` for GPU tensors, so that loading does not wait for the GPU per tensor.

    Attributes:
        name: tensor that is being loaded.
    """

    BATCH = 512  # results per wait

    def __init__(self) -> None:
        self.name = ""
        self._results: list[torch.Tensor] = []
        self._names: list[str] = []
        self._zeros: list[torch.Tensor] = []

    def add(self, largest: torch.Tensor) -> None:
        """Adds the largest absolute value of a tensor, [] on the GPU."""
        self._results.append(largest)
        self._names.append(self.name)

    def new_result(self, device: torch.device) -> torch.Tensor:
        """Adds and returns a float32 zero [] on `device`, to which a kernel stores NaN if a value is not finite."""
        if not self._zeros:
            self._zeros = list(torch.zeros(self.BATCH, device=device).unbind())
        self.add(result := self._zeros.pop())
        return result

    def failed(self, *, wait: bool = True) -> str | None:
        """Returns the first tensor with values that are not finite; None if there is none.

        Without `wait`, it checks the results only if there are at least BATCH of them.
        """
        if not self._results or not (wait or len(self._results) >= self.BATCH):
            return None
        results = torch.stack(self._results).isfinite().tolist()
        names = [name for name, is_finite in zip(self._names, results, strict=True) if not is_finite]
        self._results, self._names = [], []
        return names[0] if names else None


_deferred: ContextVar[DeferredChecks | None] = ContextVar("deferred_checks", default=None)


@contextmanager
def defer_checks() -> Iterator[DeferredChecks]:
    """Makes `require_finite` add its results for GPU tensors to the object that this yields, instead of raising."""
    checks = DeferredChecks()
    token = _deferred.set(checks)
    try:
        yield checks
    finally:
        _deferred.reset(token)


def require_finite(stored: torch.Tensor, source: torch.Tensor) -> None:
    """Raises ConfigError unless all of `stored`, converted from `source`, is finite; the message names no tensor."""
    # NaN if any value is NaN; one kernel instead of the five of isfinite and all
    largest, checks = torch.linalg.vector_norm(stored, ord=math.inf), _deferred.get()
    if checks is not None and largest.is_cuda:
        checks.add(largest)
    elif not bool(torch.isfinite(largest)):
        _raise_not_finite(source, stored.dtype)


def require_no_overflow(
    store: Callable[[torch.Tensor], None], source: torch.Tensor, dtype: torch.dtype, device: torch.device
) -> None:
    """Does the same as `require_finite`, for a kernel that checks the values it stores.

    Args:
        store: launches the kernel; its argument is a float32 zero [] on `device`, to which the kernel stores NaN if
            `source` has values that are not finite in `dtype`.
    """
    checks = _deferred.get()
    if checks is not None and device.type == "cuda":
        store(checks.new_result(device))
        return
    result = torch.zeros((), device=device)
    store(result)
    if not bool(torch.isfinite(result)):
        _raise_not_finite(source, dtype)


def _raise_not_finite(source: torch.Tensor, dtype: torch.dtype) -> NoReturn:
    if not bool(torch.isfinite(source).all()):
        raise ConfigError("holds NaN or infinite values")
    raise ConfigError(f"holds values too large for {dtype}; choose another --dtype")


def tensor_of(weight: Weight | None) -> torch.Tensor | None:
    return None if weight is None else weight.tensor


def named_weights(module: nn.Module) -> dict[str, Weight]:
    """Returns the weights of a module and its submodules by path, such as "layers.0.self_attn.qkv_proj.weight"."""
    return {
        f"{path}.{name}" if path else name: weight
        for path, part in module.named_modules()
        for name, weight in vars(part).items()
        if isinstance(weight, Weight)
    }
