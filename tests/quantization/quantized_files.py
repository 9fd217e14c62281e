"""Writes quantized checkpoints in published layouts, and unquantized ones with their dequantized weights.

The source is an unquantized checkpoint. Nothing of the runtime is used.
"""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from tests.quantization import packed_integers
from tests.quantization.packed_integers import LLM_INT8, LOADED_NF4, awq_config, gptq_config

Tensors = dict[str, torch.Tensor]
Made = tuple[Tensors, torch.Tensor]  # tensors of a weight by suffix, and the dequantized weight
UNQUANTIZED = (
    "word_embeddings.weight",
    "embed_tokens.weight",
    "lm_head.weight",
    "mlp.gate.weight",
    "norm.weight",
    "layernorm.weight",
)
WEIGHTS = {"dynamic": False, "symmetric": True, "actorder": None, "observer": "minmax", "block_structure": None}


def int4(group: int | None) -> Callable[[torch.Tensor], Made]:
    """Returns a quantizer for compressed-tensors, format pack-quantized."""

    def made(weight: torch.Tensor) -> Made:
        outputs, inputs = weight.shape
        size = group or inputs
        codes, scales = np.zeros((outputs, inputs), np.int64), torch.zeros(outputs, inputs // size)
        for row in range(outputs):
            for number in range(inputs // size):
                part = slice(number * size, (number + 1) * size)
                scales[row, number] = (weight[row, part].abs().max() / 7.5).bfloat16()
                codes[row, part] = (weight[row, part] / scales[row, number]).round().clamp(-8, 7).numpy()
        packed = np.zeros((outputs, -(-inputs // 8)), np.uint32)
        for column in range(inputs):
            packed[:, column // 8] |= ((codes[:, column] + 8) << 4 * (column % 8)).astype(np.uint32)
        tensors = {
            "weight_packed": torch.from_numpy(packed.view(np.int32)),
            "weight_scale": scales.bfloat16(),
            "weight_shape": torch.tensor([outputs, inputs]),
        }
        return tensors, torch.from_numpy(codes).float() * scales.repeat_interleave(size, 1)

    return made


def blocks(ending: str, rows: int) -> Callable[[torch.Tensor], Made]:
    """Returns a quantizer to e4m3 with one scale per block of `rows` x 128."""

    def made(weight: torch.Tensor) -> Made:
        outputs, inputs = weight.shape
        scales = torch.zeros(-(-outputs // rows), -(-inputs // 128))
        values, unquantized = torch.zeros(outputs, inputs, dtype=torch.float8_e4m3fn), torch.zeros(outputs, inputs)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                box = slice(i * rows, (i + 1) * rows), slice(j * 128, (j + 1) * 128)
                scales[i, j] = weight[box].abs().max() / 448
                values[box] = (weight[box] / scales[i, j]).to(torch.float8_e4m3fn)
                unquantized[box] = values[box].float() * scales[i, j]
        return {"weight": values, ending: scales}, unquantized

    return made


def scaled(kind: torch.dtype, each: bool, static: bool = False) -> Callable[[torch.Tensor], Made]:
    """Returns a quantizer to e4m3 or int8 with one scale per output (`each`) or per tensor."""

    def made(weight: torch.Tensor) -> Made:
        limit = 448 if kind == torch.float8_e4m3fn else 127
        scale = (weight.abs().amax(1, keepdim=True) if each else weight.abs().max()[None]) / limit
        values = weight / scale
        values = (values if kind == torch.float8_e4m3fn else values.round()).to(kind)
        spare = {"input_scale": torch.tensor([0.5])} if static else {}
        return {"weight": values, "weight_scale": scale} | spare, values.float() * scale

    return made


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def e4m3_numbers() -> np.ndarray:
    """Returns the numbers of the bytes 0 to 126 of e4m3, in float64: four bits of exponent, three of mantissa."""
    byte = np.arange(127)
    exponent, mantissa = byte >> 3, byte & 7
    return np.where(exponent, 2.0 ** (exponent - 7.0) * (1 + mantissa / 8), 2.0**-6 * mantissa / 8)


def e2m1_bytes(codes: np.ndarray) -> torch.Tensor:
    """Packs codes [outputs, inputs] two per byte, even inputs in the low bits."""
    return torch.from_numpy((codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8))


def nearest(x: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    return np.abs(x[..., None] - numbers).argmin(-1)


def nvfp4(divides: bool) -> Callable[[torch.Tensor], Made]:
    """Returns a quantizer of ModelOpt, or of compressed-tensors, which divides by the scale of the tensor."""

    def made(weight: torch.Tensor) -> Made:
        groups = weight.double().numpy().reshape(len(weight), -1, 16)
        factor = np.abs(groups).max() / (6 * 448)
        stored = np.float32(1 / factor if divides else factor)
        factor = 1 / np.float64(stored) if divides else np.float64(stored)
        numbers = e4m3_numbers()
        scales = nearest(np.abs(groups).max(-1) / 6 / factor, numbers)
        steps = (numbers[scales] * factor)[..., None]
        codes = nearest(groups / np.where(steps, steps, 1), E2M1)
        names = ("weight_packed", "weight_global_scale") if divides else ("weight", "weight_scale_2")
        tensors = {
            names[0]: e2m1_bytes(codes.reshape(weight.shape)),
            "weight_scale": torch.from_numpy(scales.astype(np.uint8)).view(torch.float8_e4m3fn),
            names[1]: torch.from_numpy(np.array([stored] if divides else stored)),
            "input_global_scale" if divides else "input_scale": torch.tensor([0.5]),
        }
        return tensors, torch.from_numpy((E2M1[codes] * steps).reshape(weight.shape)).float()

    return made


def mxfp4(weight: torch.Tensor) -> Made:
    groups = weight.double().numpy().reshape(len(weight), -1, 32)
    powers = np.ceil(np.log2(np.maximum(np.abs(groups).max(-1), 2.0**-100) / 6))
    codes = nearest(groups / 2.0 ** powers[..., None], E2M1)
    dequantized = torch.from_numpy((E2M1[codes] * 2.0 ** powers[..., None]).reshape(weight.shape)).float()
    scales = torch.from_numpy((powers + 127).astype(np.uint8))
    return {"weight_packed": e2m1_bytes(codes.reshape(weight.shape)), "weight_scale": scales}, dequantized


def modelopt_blocks(weight: torch.Tensor) -> Made:
    tensors, dequantized = blocks("weight_scale", 128)(weight)
    return tensors | {"weight_scale": tensors["weight_scale"][:, None, :, None]}, dequantized


def modelopt(algo: str, **fields: Any) -> dict[str, Any]:
    producer = {"name": "modelopt", "version": "0.47.0"}
    cache = {"num_bits": 8, "type": "float", "dynamic": False}
    return {
        "quant_method": "modelopt", "quant_algo": algo, "ignore": ["lm_head"], "kv_cache_scheme": cache,
        "producer": producer,
    } | fields  # fmt: skip


def compressed(format: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": WEIGHTS | weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": group},
        "ignore": ["lm_head"], "kv_cache_scheme": None, "quantization_status": "compressed",
    }  # fmt: skip


FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
INT, FLOAT = {"type": "int"}, {"type": "float", "num_bits": 8}
E4M3 = torch.float8_e4m3fn
# quantization_config of config.json, quantizer, and name of the format in the runtime
LAYOUTS: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], Made], str]] = {
    "int4, groups of 128": (compressed("pack-quantized", num_bits=4, strategy="group", group_size=128, **INT),
                            int4(128), "int4"),
    "int4, groups of 32": (compressed("pack-quantized", num_bits=4, strategy="group", group_size=32, **INT), int4(32),
                           "int4_32"),
    "int4, outputs": (compressed("pack-quantized", num_bits=4, strategy="channel", group_size=None, **INT), int4(None),
                      "int4"),
    "int8, outputs": (compressed("int-quantized", num_bits=8, strategy="channel", **INT), scaled(torch.int8, True),
                      "int8"),
    "fp8, outputs": (compressed("float-quantized", strategy="channel", **FLOAT), scaled(E4M3, True), "fp8"),
    "fp8, tensors": (compressed("float-quantized", strategy="tensor", **FLOAT), scaled(E4M3, False, True), "fp8"),
    "fp8, compressed blocks": (
        compressed("float-quantized", strategy="block", **FLOAT | {"block_structure": [64, 128]}),
        blocks("weight_scale", 64), "fp8_blocks",
    ),
    "fp8, blocks": (FP8 | {"weight_block_size": [128, 128]}, blocks("weight_scale_inv", 128), "fp8_blocks"),
    "nvfp4, modelopt": (modelopt("NVFP4", group_size=16), nvfp4(False), "nvfp4"),
    "nvfp4, compressed": (compressed("nvfp4-pack-quantized", num_bits=4, strategy="tensor_group", group_size=16,
                                     type="float"), nvfp4(True), "nvfp4"),
    "mxfp4": (compressed("mxfp4-pack-quantized", num_bits=4, strategy="group", group_size=32, type="float"), mxfp4,
              "nvfp4"),
    "fp8, modelopt": (modelopt("FP8"), scaled(E4M3, False, True), "fp8"),
    "fp8, modelopt channels": (modelopt("FP8_PER_CHANNEL_PER_TOKEN"), scaled(E4M3, True), "fp8"),
    "fp8, modelopt blocks": (modelopt("FP8_PB_WO"), modelopt_blocks, "fp8_blocks"),
    "fp8, one scale": (FP8 | {"activation_scheme": "static"}, scaled(E4M3, False, True), "fp8"),
    "int4, zero points": (
        compressed("pack-quantized", num_bits=4, strategy="group", group_size=32, symmetric=False, **INT),
        packed_integers.packed(4, 32, symmetric=False), "int4_32_asymmetric",
    ),
    "int4, outputs, zero points": (
        compressed("pack-quantized", num_bits=4, strategy="channel", symmetric=False, **INT),
        packed_integers.packed(4, -1, symmetric=False), "int4_asymmetric",
    ),
    "int8, packed": (
        compressed("pack-quantized", num_bits=8, strategy="channel", **INT),
        packed_integers.packed(8, -1, symmetric=True), "int8",
    ),
    "int8, packed groups of 32": (
        compressed("pack-quantized", num_bits=8, strategy="group", group_size=32, **INT),
        packed_integers.packed(8, 32, symmetric=True), "int8_32",
    ),
    "int8, packed, zero points": (
        compressed("pack-quantized", num_bits=8, strategy="group", group_size=32, symmetric=False, **INT),
        packed_integers.packed(8, 32, symmetric=False), "int8_32_asymmetric",
    ),
    "int8, zero points": (
        compressed("int-quantized", num_bits=8, strategy="channel", symmetric=False, **INT),
        packed_integers.int8_with_zero_points, "int8_asymmetric",
    ),
    "GPTQ": (gptq_config(4, 32), packed_integers.gptq(4, 32, sym=True), "int4_32"),
    "GPTQ, groups of 256": (gptq_config(4, 256), packed_integers.gptq(4, 256, sym=True), "int4"),
    "GPTQ, zero points": (gptq_config(4, 32, sym=False), packed_integers.gptq(4, 32, sym=False),
                          "int4_32_asymmetric"),
    "GPTQ v2, zero points": (
        gptq_config(4, 64, sym=False, checkpoint_format="gptq_v2"), packed_integers.gptq(4, 64, sym=False, v2=True),
        "int4_64_asymmetric",
    ),
    "GPTQ, outputs, without g_idx": (gptq_config(4, -1, sym=False),
                                     packed_integers.gptq(4, -1, sym=False, index=False), "int4_asymmetric"),
    "GPTQ, 8 bits": (gptq_config(8, 32), packed_integers.gptq(8, 32, sym=True), "int8_32"),
    "GPTQ, 8 bits, outputs, zero points": (gptq_config(8, -1, sym=False), packed_integers.gptq(8, -1, sym=False),
                                           "int8_asymmetric"),
    "bitsandbytes int8": (LLM_INT8, packed_integers.llm_int8, "int8"),
    "bitsandbytes NF4": (LOADED_NF4, packed_integers.nf4(64, nested=False), "nf4"),
    "bitsandbytes NF4, nested, blocks of 128": (LOADED_NF4, packed_integers.nf4(128, nested=True), "nf4"),
    "AWQ": (awq_config(32), packed_integers.awq(32), "int4_32_asymmetric"),
    "AWQ, symmetric": (awq_config(32, zero_point=False), packed_integers.awq(32, zero_point=False), "int4_32"),
    "AWQ gemv": (awq_config(32, version="GEMV"), packed_integers.awq(32, "gemv"), "int4_32_asymmetric"),
}  # fmt: skip
# With inputs in activation order, which experts and several ranks do not support.
ACTIVATION_ORDER: dict[str, tuple[dict[str, Any], Callable[[torch.Tensor], Made], str]] = {
    "GPTQ, activation order": (gptq_config(4, 32, desc_act=True), packed_integers.gptq(4, 32, sym=True, act=True),
                               "int4_32"),
    "GPTQ, activation order, zero points": (
        gptq_config(4, 32, sym=False, desc_act=True), packed_integers.gptq(4, 32, sym=False, act=True),
        "int4_32_asymmetric",
    ),
}  # fmt: skip


def mixed(layouts: Mapping[str, str]) -> dict[str, Any]:
    """Returns the config of compressed-tensors with a group of modules, a target, per layout of that method."""
    groups = {}
    for target, layout in layouts.items():
        stated = LAYOUTS[layout][0]
        groups[target] = stated["config_groups"]["group_0"] | {"targets": [target], "format": stated["format"]}
    return compressed("mixed-precision") | {"config_groups": groups}


def write_both(
    layout: str | Mapping[str, str], source: Path, directory: Path,
    is_unquantized: Callable[[str], bool] = lambda name: False,
) -> tuple[Path, Path]:  # fmt: skip
    """Writes the checkpoint of `source` in a layout, and an unquantized one with the same weights.

    `layout` may have several: the layout of modules that a regular expression after "re:" matches, in this order.
    """
    layouts, known = {"re:": layout} if isinstance(layout, str) else layout, LAYOUTS | ACTIVATION_ORDER
    stated = known[layout][0] if isinstance(layout, str) else mixed(layout)
    config = json.loads((source / "config.json").read_text())
    quantized: Tensors = {}
    unquantized: Tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if tensor.dim() != 2 or name.endswith(UNQUANTIZED) or is_unquantized(name):
            quantized[name] = unquantized[name] = tensor
            continue
        module = name.removesuffix(".weight")
        own = next(each for target, each in layouts.items() if re.match(target.removeprefix("re:"), module))
        parts, unquantized[name] = known[own][1](tensor.float())
        quantized |= {f"{module}.{ending}": part.contiguous() for ending, part in parts.items()}
    for folder, tensors, more in (("kept", quantized, {"quantization_config": stated}), ("whole", unquantized, {})):
        (directory / folder).mkdir(parents=True)
        (directory / folder / "config.json").write_text(json.dumps(config | more))
        save_file(tensors, directory / folder / "model.safetensors", metadata={"format": "pt"})
    return directory / "kept", directory / "whole"
