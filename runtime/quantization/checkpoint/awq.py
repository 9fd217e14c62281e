"""The method "awq": int4 with a scale and a zero point per group of inputs.

Version "gemm": `qweight` int32 [inputs, outputs / 8] and `qzeros` int32 [groups, outputs / 8] are packed along the
outputs, in the order `NIBBLES`. `scales` is [groups, outputs].

Version "gemv": `qweight` int32 [outputs, inputs / 8] is packed along the inputs, `qzeros` int32 [outputs, W] along the
groups, and `scales` is [outputs, 8 * W]. Beyond the groups both are padded with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from runtime.errors import ConfigError
from runtime.kernels.quantized_tensor import QuantizedTensor
from runtime.quantization.checkpoint.integers import WordScheme, group_size_of
from runtime.quantization.checkpoint.scheme import (
    CheckpointQuantization,
    Read,
    checked,
    flag_of,
    name_list,
    plain,
    refuse,
    register_method,
)

GEMM, GEMV = "gemm", "gemv"
NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)  # the output of each four bits of a word, from the lowest
POSITIONS = [NIBBLES.index(output) for output in range(len(NIBBLES))]  # the inverse
GEMV_MULTIPLE = {32: 4, 64: 2}  # by group size; W is a multiple of it, else of 1


class Awq(WordScheme):
    def __init__(self, group: int | None, *, asymmetric: bool) -> None:
        super().__init__(4, group, asymmetric=asymmetric)
        self.label = "AWQ int4"

    def shape_of_words(self, words: list[int]) -> list[int]:
        return [words[1] * self.per_word, words[0]]

    def read_quantized(self, read: Read, device: torch.device) -> QuantizedTensor:
        words = read(".qweight")
        outputs, inputs = self.shape_of_words(list(words.shape))
        if self.group is not None and inputs % self.group:
            raise ConfigError(f"has {inputs} inputs, which groups of {self.group} do not divide")
        words = checked(words, ".qweight", list(words.shape), torch.int32).to(device)
        return self._quantized(read, words, outputs, self.groups(inputs))

    def _quantized(self, read: Read, words: torch.Tensor, outputs: int, groups: int) -> QuantizedTensor:
        zeros = checked(read(".qzeros"), ".qzeros", [groups, outputs // self.per_word], torch.int32)
        scales = checked(read(".scales"), ".scales", [groups, outputs], torch.float32).to(words.device)
        codes, zeros = (
            self.unpack(each).view(len(each), -1, self.per_word)[..., POSITIONS].flatten(1) for each in (words, zeros)
        )
        return self.quantized(codes.t().contiguous(), scales.t(), zeros.t())


class AwqGemv(Awq):
    def shape_of_words(self, words: list[int]) -> list[int]:
        return [words[0], words[1] * self.per_word]

    def _quantized(self, read: Read, words: torch.Tensor, outputs: int, groups: int) -> QuantizedTensor:
        multiple = GEMV_MULTIPLE.get(self.group or 0, 1)
        width = -(-groups // (self.per_word * multiple)) * multiple
        zeros = checked(read(".qzeros"), ".qzeros", [outputs, width], torch.int32)
        scales = checked(read(".scales"), ".scales", [outputs, width * self.per_word], torch.float32).to(words.device)
        return self.quantized(self.unpack(words), scales[:, :groups], self.unpack(zeros)[:, :groups])


def _method(config: Mapping[str, Any]) -> CheckpointQuantization:
    version = plain(config.get("version") or config.get("checkpoint_format") or config.get("format") or GEMM).lower()
    if version not in (GEMM, GEMV):
        raise refuse("version", version, f"{GEMM} and {GEMV}")
    if config.get("backend", "autoawq") == "llm-awq":
        raise refuse("backend", config["backend"], "autoawq")
    if config.get("bits") != 4:
        raise refuse("bits", config.get("bits"), "4")
    excluded = name_list(config, "modules_to_not_convert", [])
    asymmetric = flag_of(config, "zero_point", default=True)
    scheme = (Awq if version == GEMM else AwqGemv)(group_size_of(config), asymmetric=asymmetric)
    return CheckpointQuantization.uniform(scheme, lambda module: any(name in module for name in excluded))


register_method("awq", _method)
