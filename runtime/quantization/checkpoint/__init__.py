"""Checkpoints with quantized weights, one file per published method."""

from runtime.quantization.checkpoint import (  # noqa: F401  they register themselves
    awq,
    bitsandbytes,
    compressed_tensors,
    fp8,
    gptq,
    modelopt,
)
