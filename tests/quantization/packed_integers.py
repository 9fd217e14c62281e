"""Writes integers with zero points in the layouts of GPTQ, AWQ and compressed-tensors, by their published definitions.

Nothing of the runtime is used. Each quantizer returns the tensors of a weight by suffix, and the weight by the
definition (code - zero point) * scale, in float64.
"""

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


LLM_INT8 = {"quant_method": "bitsandbytes", "load_in_8bit": True, "load_in_4bit": False, "llm_int8_threshold": 6.0}


def gptq_config(bits: int, group: int, **fields: Any) -> dict[str, Any]:
    base = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, "sym": True, "lm_head": False}
    return base | fields


def awq_config(group: int, **fields: Any) -> dict[str, Any]:
    base = {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}
    return base | fields
