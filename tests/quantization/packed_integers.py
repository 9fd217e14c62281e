"""Writes the layouts of GPTQ, AWQ, bitsandbytes, and compressed-tensors with zero points, as they are published.

Nothing of the runtime is used. Each quantizer returns the tensors of a weight by suffix, and the weight by the
definition in float64: (code - zero point) * scale, or NF4[code] * scale.
"""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Made = tuple[dict[str, torch.Tensor], torch.Tensor]
Quantizer = Callable[[torch.Tensor], Made]
AWQ_OUTPUTS = [0, 2, 4, 6, 1, 3, 5, 7]  # of the nibbles of a word


def quantized(
    weight: torch.Tensor, bits: int, group_of: np.ndarray, symmetric: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns codes [outputs, inputs], zero points and scales [outputs, groups], and the weight by the definition.

    Some zero points are the smallest and the largest number, which real ones rarely are.
    """
    numbers, levels = weight.double().numpy(), 2**bits - 1
    groups = int(group_of.max()) + 1
    codes = np.zeros(numbers.shape, np.int64)
    scales, zeros = np.zeros((len(numbers), groups)), np.full((len(numbers), groups), 2 ** (bits - 1))
    for group in range(groups):
        part = numbers[:, group_of == group]
        span = 2 * np.abs(part).max(1) if symmetric else np.ptp(part, 1)
        scales[:, group] = np.float16(span / levels)
        if not symmetric:
            zeros[:, group] = np.clip(np.round(-part.min(1) / scales[:, group]), 0, levels)
            zeros[group % 5 :: 5, group] = 0
            zeros[group % 7 :: 7, group] = levels
        rounded = np.round(part / scales[:, group, None]) + zeros[:, group, None]
        codes[:, group_of == group] = np.clip(rounded, 0, levels)
    return codes, zeros, scales, (codes - zeros[:, group_of]) * scales[:, group_of]


def words(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Packs numbers [..., n] into int32 [..., ceil(n * bits / 32)], the first in the lowest bits."""
    each = 32 // bits
    numbers = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, -numbers.shape[-1] % each)])
    packed = sum(numbers[..., at::each] << bits * at for at in range(each))
    return packed.astype(np.uint32).view(np.int32)


def tensors(**arrays: np.ndarray) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def _groups(inputs: int, group: int) -> np.ndarray:
    return np.arange(inputs) // (inputs if group == -1 else group)


def gptq(bits: int, group: int, *, sym: bool, v2: bool = False, act: bool = False, index: bool = True) -> Quantizer:
    """`act`: inputs are in activation order; `index`: write g_idx."""

    def made(weight: torch.Tensor) -> Made:
        group_of = _groups(weight.shape[1], group)
        if act:
            group_of = group_of[np.random.default_rng(weight.shape[1]).permutation(len(group_of))]
        codes, zeros, scales, definition = quantized(weight, bits, group_of, sym)
        ones = 0 if v2 else sum(1 << bits * at for at in range(32 // bits))
        qzeros = (words(zeros.T, bits).view(np.uint32) - np.uint32(ones)).view(np.int32)
        parts = tensors(qweight=words(codes, bits).T, qzeros=qzeros, scales=scales.T.astype(np.float16))
        if index:
            parts |= tensors(g_idx=group_of.astype(np.int32))
        return parts, torch.from_numpy(definition)

    return made


def awq(group: int, version: str = "gemm", *, zero_point: bool = True) -> Quantizer:
    def made(weight: torch.Tensor) -> Made:
        codes, zeros, scales, definition = quantized(weight, 4, _groups(weight.shape[1], group), not zero_point)
        if version == "gemm":
            qweight, qzeros = (
                words(part.T.reshape(part.shape[1], -1, 8)[..., AWQ_OUTPUTS], 4)[..., 0] for part in (codes, zeros)
            )
            scales = scales.T
        else:
            multiple = {32: 4, 64: 2}.get(group, 1)
            width = -(-zeros.shape[1] // (8 * multiple)) * multiple
            padding = [(0, 0), (0, 8 * width - zeros.shape[1])]
            qweight, qzeros, scales = words(codes, 4), words(np.pad(zeros, padding), 4), np.pad(scales, padding)
        return tensors(qweight=qweight, qzeros=qzeros, scales=scales.astype(np.float16)), torch.from_numpy(definition)

    return made


def packed(bits: int, group: int, *, symmetric: bool) -> Quantizer:
    """Returns a quantizer for compressed-tensors, format pack-quantized."""

    def made(weight: torch.Tensor) -> Made:
        codes, zeros, scales, definition = quantized(weight, bits, _groups(weight.shape[1], group), symmetric)
        parts = tensors(weight_packed=words(codes, bits), weight_scale=scales.astype(np.float16))
        if not symmetric:
            parts |= tensors(weight_zero_point=words(zeros.T, bits).T)
        return parts | {"weight_shape": torch.tensor(weight.shape)}, torch.from_numpy(definition)

    return made


def int8_with_zero_points(weight: torch.Tensor) -> Made:
    """Returns the tensors of compressed-tensors, format int-quantized: unpacked, and signed."""
    codes, zeros, scales, definition = quantized(weight, 8, _groups(weight.shape[1], -1), False)
    signed = {"weight": (codes - 128).astype(np.int8), "weight_zero_point": (zeros - 128).astype(np.int8)}
    return tensors(**signed, weight_scale=scales.astype(np.float16)), torch.from_numpy(definition)


def llm_int8(weight: torch.Tensor) -> Made:
    """Returns the tensors of bitsandbytes: int8, and the largest value of each output, which has code 127."""
    largest = weight.abs().amax(1).numpy().astype(np.float32)
    codes = np.round(weight.double().numpy() * 127 / largest[:, None].astype(np.float64)).astype(np.int8)
    definition = codes * (largest / np.float32(127)).astype(np.float64)[:, None]
    parts = tensors(weight=codes, SCB=largest, weight_format=np.zeros((), np.uint8))
    return parts, torch.from_numpy(definition)


NF4 = np.array([-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
                -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
                0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
                1.0], np.float32)  # fmt: skip


def nf4(block: int, *, nested: bool) -> Quantizer:
    """Returns a quantizer to NF4 in blocks of a row. `nested`: scales are quantized too, in blocks of 256."""

    def made(weight: torch.Tensor) -> Made:
        blocks = weight.float().numpy().reshape(-1, block)
        scales = np.abs(blocks).max(1)
        state = {"quant_type": "nf4", "blocksize": block, "dtype": "bfloat16", "shape": list(weight.shape)}
        parts = {"weight.quant_map": NF4.copy()}
        if nested:
            offset, values = np.float32(scales.mean()), np.linspace(-1, 1, 256, dtype=np.float32)
            groups = np.arange(len(scales)) // 256
            largest = np.array([np.abs(scales - offset)[groups == n].max() for n in range(groups.max() + 1)])
            indexes = np.abs((scales - offset) / largest[groups] - values[:, None]).argmin(0).astype(np.uint8)
            scales = values[indexes] * largest[groups] + offset
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": float(offset)}
            parts |= {"weight.absmax": indexes, "weight.nested_absmax": largest, "weight.nested_quant_map": values}
        else:
            parts["weight.absmax"] = scales
        codes = np.abs(blocks / scales[:, None] - NF4[:, None, None]).argmin(0)
        definition = (NF4.astype(np.float64)[codes] * scales[:, None].astype(np.float64)).reshape(weight.shape)
        octets = codes.reshape(-1, 2)
        parts["weight"] = (octets[:, 0] << 4 | octets[:, 1]).astype(np.uint8)[:, None]
        parts["weight.quant_state.bitsandbytes__nf4"] = np.frombuffer(json.dumps(state).encode(), np.uint8).copy()
        return tensors(**parts), torch.from_numpy(definition)

    return made


LOADED_NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
LLM_INT8 = {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False, "llm_int8_threshold": 6.0}


def gptq_config(bits: int, group: int, **fields: Any) -> dict[str, Any]:
    base = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": True, "lm_head": False}
    return base | fields


def awq_config(group: int, **fields: Any) -> dict[str, Any]:
    base = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return base | fields
