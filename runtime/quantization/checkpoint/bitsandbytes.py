"""The method "bitsandbytes": int8 with a largest value per output, as of LLM.int8(), and NF4.

int8 has `SCB` float32 [outputs]. Activations are not quantized, so outliers need no threshold.

NF4 has `weight` uint8 [outputs * inputs / 2, 1], row by row, the first code of a byte in the high bits, and
`weight.absmax` with a scale per block of values. With double quantization it is uint8: an index into
`weight.nested_quant_map` float32 [256], times `weight.nested_absmax` of its block, plus an offset. Sizes and the offset
are JSON in `weight.quant_state.bitsandbytes__nf4`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from runtime.errors import ConfigError
from runtime.kernels.quantized_tensor import NF4, GroupQuantized, QuantizedTensor, nf4_values, pack
from runtime.quantization.checkpoint.scheme import (
    WEIGHT,
    CheckpointQuantization,
    QuantScheme,
    Read,
    checked,
    flag_of,
    name_list,
    read_matrix,
    refuse,
    register_method,
    shown,
)
from runtime.quantization.int4_int8 import NF4_GROUP

LARGEST, LAYOUT = ".SCB", ".weight_format"
SCALES, VALUES = ".weight.absmax", ".weight.quant_map"
NESTED_SCALES, NESTED_VALUES = ".weight.nested_absmax", ".weight.nested_quant_map"
STATE = ".weight.quant_state.bitsandbytes__nf4"
STATE_BYTES = 1 << 16  # maximum size of the JSON; it has a dozen fields
ROWS = 0  # the layout of rows one after another; others were for older GPUs


class LlmInt8(QuantScheme):
    label = "bitsandbytes int8"
    format = "int8"
    flag = "int8"
    suffixes = (WEIGHT, LARGEST)
    optional_suffixes = (LAYOUT,)

    def read_quantized(self, read: Read, device: torch.device) -> QuantizedTensor:
        values = read_matrix(read, torch.int8, LARGEST)
        outputs, inputs = values.shape
        # Divided here: torch multiplies by the reciprocal on a GPU, which rounds otherwise.
        scales = checked(read(LARGEST), LARGEST, [outputs], torch.float32).cpu() / 127
        try:
            layout = read(LAYOUT).flatten()[:2].tolist()
        except KeyError:
            layout = [ROWS]
        if layout != [ROWS]:
            raise ConfigError(f"has {LAYOUT} {layout}, not {ROWS} (rows); save it again with the current bitsandbytes")
        return GroupQuantized(values.to(device), scales[:, None].to(device), inputs, inputs)


class Nf4(QuantScheme):
    label = "NF4"
    format = "nf4"
    flag = "nf4"
    suffixes = (WEIGHT, SCALES, VALUES, STATE)
    optional_suffixes = (NESTED_SCALES, NESTED_VALUES)

    def shape(self, shape_of: Callable[[str], list[int]], read: Read) -> list[int]:
        return _state(read).shape

    def read_quantized(self, read: Read, device: torch.device) -> QuantizedTensor:
        state = _state(read)
        outputs, inputs = state.shape
        if inputs % state.block:
            raise ConfigError(f"has {inputs} inputs, which blocks of {state.block} do not divide")
        values = checked(read(VALUES), VALUES, [len(NF4)], torch.float32)
        if not torch.equal(values, nf4_values(torch.float32, values.device)):
            raise ConfigError(f"has {VALUES} {values.tolist()}, not the values of NF4")
        octets = checked(read(WEIGHT), WEIGHT, [outputs * inputs // 2, 1], torch.uint8).to(device)
        scales = _scales(read, outputs * inputs // state.block, state).view(outputs, -1).to(device)
        codes = torch.stack((octets >> 4, octets & 15), -1).view(outputs, inputs)
        packed = pack(codes.view(torch.int8) - 8, NF4_GROUP)
        scales = scales.repeat_interleave(state.block // NF4_GROUP, 1)
        return GroupQuantized(packed, scales, inputs, NF4_GROUP, is_nf4=True)


class _State(NamedTuple):
    """Attributes: shape of the weight; values per scale; scales per nested scale and their offset."""

    shape: list[int]
    block: int
    nested_block: int
    nested_offset: float


def _state(read: Read) -> _State:
    """Reads `STATE`. Raises ConfigError if it is no JSON object with these fields."""
    stored = read(STATE)
    try:
        if stored.dtype != torch.uint8 or stored.numel() > STATE_BYTES:
            raise ValueError
        fields = json.loads(bytes(stored.flatten().tolist()))
        kind, block, shape = fields["quant_type"], fields["blocksize"], fields["shape"]
        nested = fields.get("nested_blocksize", 1), float(fields.get("nested_offset", 0.0))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise ConfigError(f"has {STATE} that is no JSON object with quant_type, blocksize and shape") from None
    sizes = [block, nested[0], *(shape if isinstance(shape, list) else [None])]
    valid = all(type(size) is int and 0 < size < 1 << 31 for size in sizes) and math.isfinite(nested[1])
    if kind != "nf4" or not valid or len(shape) != 2 or block % NF4_GROUP:
        raise ConfigError(
            f"has {STATE} {shown(fields)}, not nf4 in blocks of a multiple of {NF4_GROUP}, with two sizes"
        )
    return _State(shape, block, *nested)


def _scales(read: Read, count: int, state: _State) -> torch.Tensor:
    """Returns float32 [count]."""
    stored = read(SCALES)
    if stored.dtype != torch.uint8:
        return checked(stored, SCALES, [count], torch.float32)
    nested_count = -(-count // state.nested_block)
    try:
        values, scales = read(NESTED_VALUES), read(NESTED_SCALES)
    except KeyError:
        raise ConfigError(f"has {SCALES} of torch.uint8, but lacks {NESTED_VALUES} or {NESTED_SCALES}") from None
    values = checked(values, NESTED_VALUES, [256], torch.float32)
    scales = checked(scales, NESTED_SCALES, [nested_count], torch.float32)
    scales = scales[torch.arange(count) // state.nested_block]
    return values[checked(stored, SCALES, [count], torch.uint8).int()] * scales + state.nested_offset


def _method(config: Mapping[str, Any]) -> CheckpointQuantization:
    scheme: QuantScheme
    if flag_of(config, "load_in_8bit", default=False):
        scheme = LlmInt8()
    elif not flag_of(config, "load_in_4bit", default=False):
        raise refuse("load_in_4bit", False, "true for it or for load_in_8bit")
    elif config.get("bnb_4bit_quant_type", "fp4") != "nf4":
        raise refuse("bnb_4bit_quant_type", config.get("bnb_4bit_quant_type", "fp4"), "nf4")
    elif config.get("bnb_4bit_quant_storage", "uint8") != "uint8":
        raise refuse("bnb_4bit_quant_storage", config["bnb_4bit_quant_storage"], "uint8")
    else:
        scheme = Nf4()
    names = name_list(config, "llm_int8_skip_modules", [])
    return CheckpointQuantization.uniform(scheme, lambda module: any(name in module for name in names))


register_method("bitsandbytes", _method)
