"""Checks sizes before weights are drawn: lower limits, and the memory of this host."""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from typing import cast

import torch
from torch import nn

from runtime.bench.model_shapes import architecture
from runtime.config import parse
from runtime.distributed.gpu import require_gpu
from runtime.engine.fit import available_memory
from runtime.errors import ConfigError
from runtime.layers.layer_factory import LayerFactory
from runtime.models.base import Model, resolve_family
from runtime.parameters.weight import named_weights
from runtime.quantization.checkpoint.scheme import quantization_of
from runtime.weights.weight_formats import meta_model

NOTED = 4e9  # bytes from which the size of random weights is printed


def check_positive(args: argparse.Namespace, *names: str) -> None:
    """Raises ConfigError for the first of these arguments, numbers or lists of numbers, that is below 1."""
    for name in names:
        value = getattr(args, name)
        numbers = value if isinstance(value, list) else [value]
        if any(number is not None and number < 1 for number in numbers):
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 1")


def above_zero(text: str) -> float:
    """Parses an argument that is a number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:  # NaN is neither
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def check_weights(model: Model, build: LayerFactory) -> None:
    """Raises ConfigError if this host has no memory for the weights of a model on the CPU, before they are drawn.

    Args:
        model: Its weights are allocated, but the system has given no memory to them yet.
        build: The factory that created it. All ranks of its group are on this host.
    """
    size = sum(weight.nbytes for weight in named_weights(cast(nn.Module, model)).values()) * build.group.size
    name = str(build.dtype).removeprefix("torch.")
    check_memory(build.device, size, f"the weights in {name}", "choose a smaller --arch, --dtype or --quantization")
    if size > NOTED and build.group.rank == 0:
        print(f"creating {size / 1e9:.1f} GB of random weights", file=sys.stderr, flush=True)


def check_served_weights(arch: str, server_args: str) -> None:
    """Raises ConfigError if a server with these flags has no memory for random weights of the shape `arch` on the CPU.

    It is called before files are written and the server is started.
    """
    engine = parse(shlex.split(server_args), {}).engine
    if engine.device == "cuda":
        require_gpu("--server-args --device cuda")
    if engine.device != "cpu" and torch.cuda.is_available():
        return
    name = engine.dtype or "float32"
    config = architecture(arch)
    family = resolve_family(None, config)
    model = meta_model(family, family.parse(config), getattr(torch, name), quantization_of(config, engine.quantization))
    size = sum(weight.nbytes for weight in named_weights(cast(nn.Module, model)).values())
    advice = "use a machine with a GPU, or choose a smaller --arch"
    check_memory(torch.device("cpu"), size, f"--arch {arch}: the weights in {name}", advice)


def check_memory(device: torch.device, size: float, what: str, advice: str) -> None:
    """Raises ConfigError if `size` bytes on the CPU are more than this host has available.

    Args:
        device: Device of the allocation. Nothing is checked on a GPU, whose allocator raises an error itself.
        size: Bytes.
        what: The subject of the error message, in the plural.
        advice: The fix that the message names.
    """
    available = available_memory()
    if device.type == "cpu" and available is not None and size > available:
        raise ConfigError(
            f"{what} take {size / 1e9:.1f} GB, and this host has {available / 1e9:.1f} GB of memory available; {advice}"
        )
