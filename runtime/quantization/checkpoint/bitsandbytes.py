"""The method "bitsandbytes": int8 with a largest value per output, `SCB` float32 [outputs], as of LLM.int8().

Activations are not quantized, so outliers need no threshold.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime.errors import ConfigError
from runtime.kernels.quantized_tensor import GroupQuantized, QuantizedTensor
from runtime.quantization.checkpoint.integers import checked, flag_of
from runtime.quantization.checkpoint.scheme import (
    WEIGHT,
    CheckpointQuantization,
    QuantScheme,
    Read,
    name_list,
    refuse,
    register_method,
)

LARGEST, LAYOUT = ".SCB", ".weight_format"
ROWS = 0  # the layout of rows one after another; others were for older GPUs


class LlmInt8(QuantScheme):
    label = "bitsandbytes int8"
    format = "int8"
    flag = "int8"
    suffixes = (WEIGHT, LARGEST)
    optional_suffixes = (LAYOUT,)

    def read_quantized(self, read: Read, device: torch.device) -> QuantizedTensor:
        values = read(WEIGHT)
        if values.dtype != torch.int8 or values.dim() != 2:
            raise ConfigError(f"is {values.dtype} {list(values.shape)} with {LARGEST}, not a matrix of torch.int8")
        outputs, inputs = values.shape
        largest = checked(read(LARGEST), LARGEST, [outputs], torch.float32).to(device)
        try:
            layout = read(LAYOUT).flatten().tolist()
        except KeyError:
            layout = [ROWS]
        if layout != [ROWS]:
            raise ConfigError(f"has {LAYOUT} {layout}, not {ROWS} (rows); save it again with the current bitsandbytes")
        return GroupQuantized(values.to(device), largest[:, None] / 127, inputs, inputs)


def _method(config: Mapping[str, Any]) -> CheckpointQuantization:
    if not flag_of(config, "load_in_8bit", default=False):
        raise refuse("load_in_8bit", config.get("load_in_8bit"), "true; NF4 and FP4 are not read")
    names = name_list(config, "llm_int8_skip_modules", [])
    return CheckpointQuantization.uniform(LlmInt8(), lambda module: any(name in module for name in names))


register_method("bitsandbytes", _method)
