"""Checkpoints whose weights are quantised already: how each published method keeps them, one file each."""

from runtime.quantization.checkpoint import compressed_tensors, fp8  # noqa: F401  they register themselves
from runtime.quantization.checkpoint.scheme import Scheme, quantization_of, scheme_of

__all__ = ["Scheme", "quantization_of", "scheme_of"]
