"""Checkpoints with quantized weights, one file per published method."""

from runtime.quantization.checkpoint import compressed_tensors, fp8, modelopt  # noqa: F401  they register themselves
