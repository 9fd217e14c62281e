"""Integers with 4 or 8 bits that checkpoints pack into int32 words."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch

from runtime.errors import ConfigError
from runtime.kernels.quantized_tensor import GroupQuantized, pack
from runtime.quantization.checkpoint.scheme import QuantScheme, Read, refuse
from runtime.quantization.int4_int8 import GROUP, GROUP_SIZES, format_key

STORED_GROUPS = (*GROUP_SIZES, 256, 512, 1024)  # a scale of 256 inputs is stored twice, for 128 each


class IntegerScheme(QuantScheme):
    """Integers with a scale per group of inputs, and a zero point per group unless they are symmetric.

    Attributes:
        bits: 4 or 8.
        group: inputs per scale; None for one scale per output.
        asymmetric: whether there are zero points.
    """

    def __init__(self, bits: int, group: int | None, *, asymmetric: bool) -> None:
        self.bits, self.group, self.asymmetric = bits, group, asymmetric
        self.stored_group = group if group in GROUP_SIZES or (group is None and bits == 8) else GROUP
        self.label = self.flag = f"int{bits}"
        self.format = format_key(bits, self.stored_group, asymmetric=asymmetric)

    @property
    def middle(self) -> int:
        """The zero point of symmetric integers."""
        return 1 << (self.bits - 1)

    @property
    def per_word(self) -> int:
        """Integers in an int32 word."""
        return 32 // self.bits

    def groups(self, inputs: int) -> int:
        """Scales of an output in the checkpoint."""
        return 1 if self.group is None else -(-inputs // self.group)

    def unpack(self, words: torch.Tensor) -> torch.Tensor:
        """Unpacks int32 words [..., n] to uint8 [..., n * 32 / bits], the integers in the lowest bits first."""
        # flat, because a dimension of size 1 may have any stride
        octets = words.contiguous().flatten().view(torch.uint8).view(*words.shape[:-1], 4 * words.shape[-1])
        return octets if self.bits == 8 else torch.stack((octets & 15, octets >> 4), -1).flatten(-2)

    def quantized(
        self, codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, order: torch.Tensor | None = None
    ) -> GroupQuantized:
        """Returns the weight in its format.

        Args:
            codes: uint8 [outputs, inputs], with the offset of `middle`.
            scales: float32 [outputs, `groups`].
            zeros: uint8 [outputs, `groups`], the same numbers as codes, on any device; None for `middle`.
            order: as in `GroupQuantized`.

        Raises:
            ConfigError: `zeros` has other numbers than `middle`, but the format is symmetric.
        """
        inputs = codes.shape[1]
        if not self.asymmetric and zeros is not None:
            if bool((zeros != self.middle).any()):
                raise ConfigError(f"has zero points other than {self.middle}, though config.json says it is symmetric")
            zeros = None
        stored = self.stored_group or inputs
        groups = -(-inputs // stored)
        repeats = groups if self.group is None else max(1, self.group // stored)
        scales = scales.repeat_interleave(repeats, 1)[:, :groups]
        if zeros is not None:
            zeros = zeros.to(codes.device).repeat_interleave(repeats, 1)[:, :groups]
        if self.bits == 4:
            return GroupQuantized(pack(codes.view(torch.int8) - 8, stored), scales, inputs, stored, zeros, order)
        signed = None if zeros is None else (zeros ^ 128).view(torch.int8)
        return GroupQuantized((codes ^ 128).view(torch.int8), scales, inputs, stored, signed, order)


class WordScheme(IntegerScheme):
    """A weight whose words are the matrix `.qweight`, beside zero points and scales."""

    suffixes = (".qweight", ".qzeros", ".scales")

    def shape(self, shape_of: Callable[[str], list[int]], read: Read) -> list[int]:
        words = shape_of(".qweight")
        if len(words) != 2:
            raise ConfigError(f"has .qweight of {words}, not a matrix")
        return self.shape_of_words(words)

    @abstractmethod
    def shape_of_words(self, words: list[int]) -> list[int]:
        """Returns the outputs and inputs of a weight from the shape of its words."""


def group_size_of(config: Mapping[str, Any]) -> int | None:
    """Returns a config's inputs per scale, None for one scale per output. Raises ConfigError if it is unsupported."""
    size = config.get("group_size")
    if type(size) is not int or size not in (-1, *STORED_GROUPS):
        raise refuse("group_size", size, f"{', '.join(map(str, STORED_GROUPS))}, and -1 for one scale per output")
    return None if size == -1 else size
