"""What every layer of a model is made from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ParamSpec, Protocol, TypeVar

import torch
from torch import nn

from runtime.errors import ConfigError
from runtime.kernels.dispatch import Kernels, select_kernels

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Calls(Protocol[P, R_co]):
    """What calling a module takes and gives, which torch's own types leave open: as its `forward`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


@dataclass(frozen=True)
class Build:
    """Where a model's parameters lie and in which dtype, and what computes with them: one for a whole model, handed to
    each layer's constructor. `attn_impl` names an attention implementation (``layers/attention_dispatch.py``)."""

    device: torch.device
    dtype: torch.dtype
    kernels: Kernels
    attn_impl: str

    @classmethod
    def choose(cls, device: torch.device | str, dtype: torch.dtype, attn_impl: str | None = None) -> Build:
        """With the kernels that fit, and, unless it is named, the attention. ConfigError for a dtype of no floats."""
        if not dtype.is_floating_point:
            raise ConfigError(f"--dtype {dtype} is not a floating point type")
        device = torch.device(device)
        default = "triton_grouped" if device.type == "cuda" else "torch"
        return cls(device, dtype, select_kernels(device, dtype), attn_impl or default)

    def parameter(self, *shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
        """An unfilled parameter without gradient, in the model's dtype unless another is given."""
        return nn.Parameter(torch.empty(*shape, device=self.device, dtype=dtype or self.dtype), requires_grad=False)
