"""The method "gptq": integers with 4 or 8 bits, transposed, with zero points and perhaps in activation order.

`qweight` int32 [inputs * bits / 32, outputs] is packed along the inputs, `qzeros` int32 [groups, outputs * bits / 32]
along the outputs. `scales` is [groups, outputs]. `g_idx` int32 [inputs] has the group of each input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from runtime.errors import ConfigError
from runtime.kernels.quantized_tensor import QuantizedTensor
from runtime.quantization.checkpoint.integers import WordScheme, group_size_of
from runtime.quantization.checkpoint.scheme import (
    FIELD,
    CheckpointQuantization,
    QuantScheme,
    Read,
    checked,
    flag_of,
    refuse,
    register_method,
    shown,
)
from runtime.untrusted_patterns import first_matches

V1, V2 = "gptq", "gptq_v2"  # checkpoint_format; v1 stores zero points minus 1
ONES = {4: 0x11111111, 8: 0x01010101}  # a word with a 1 for each integer
EXCLUDED = "-:"  # begins a pattern of `dynamic` whose modules are not quantized
FORMAT_FIELDS = ("bits", "group_size", "sym", "desc_act")  # of `dynamic` that change the format


class Gptq(WordScheme):
    optional_suffixes = (".g_idx",)

    def __init__(self, bits: int, group: int | None, *, asymmetric: bool, v1: bool, in_order: bool) -> None:
        """
        Args:
            v1: zero points are stored minus 1.
            in_order: inputs are in the order of their groups, so that `g_idx` may be missing.
        """
        super().__init__(bits, group, asymmetric=asymmetric)
        self.label = f"GPTQ int{bits}"
        self.v1 = v1
        self.in_order = in_order

    def shape_of_words(self, words: list[int]) -> list[int]:
        return [words[1], words[0] * self.per_word]

    def read_quantized(self, read: Read, device: torch.device) -> QuantizedTensor:
        words = read(".qweight")
        outputs, inputs = self.shape_of_words(list(words.shape))
        groups = self.groups(inputs)
        words = checked(words, ".qweight", list(words.shape), torch.int32)
        zeros = checked(read(".qzeros"), ".qzeros", [groups, -(-outputs // self.per_word)], torch.int32)
        scales = checked(read(".scales"), ".scales", [groups, outputs], torch.float32).to(device)
        if self.v1:
            zeros = zeros + ONES[self.bits]  # of the full word, as it is written: a zero point 0 borrows from the next
        codes, order = self.unpack(words.to(device).t()), self._order(read, inputs, groups)
        if order is not None:
            codes = codes[:, order := order.to(device)]
        return self.quantized(codes, scales.t(), self.unpack(zeros)[:, :outputs].t(), order)

    def _order(self, read: Read, inputs: int, groups: int) -> torch.Tensor | None:
        """Returns the inputs sorted by their group, int64 [inputs]; None if they are sorted."""
        try:
            index = read(".g_idx")
        except KeyError:
            if self.in_order:
                return None
            raise ConfigError("lacks .g_idx, though config.json says desc_act: true") from None
        index = checked(index, ".g_idx", [inputs], torch.int32)
        size = self.group or inputs
        expected = torch.arange(inputs, dtype=torch.int32) // size
        if torch.equal(index, expected):
            return None
        order = index.argsort(stable=True)
        if not torch.equal(index[order], expected):
            raise ConfigError(f"has .g_idx that does not give {size} inputs to each of the groups 0 to {groups - 1}")
        return order


def _method(config: Mapping[str, Any]) -> CheckpointQuantization:
    layout = config.get("checkpoint_format") or config.get("format") or V1
    if layout not in (V1, V2):
        raise refuse("checkpoint_format", layout, f"{V1} and {V2}")
    if config.get("is_marlin_format"):
        raise refuse("is_marlin_format", config["is_marlin_format"], "false, the format of GPTQModel and AutoGPTQ")
    if config.get("pack_dtype", "int32") != "int32":
        raise refuse("pack_dtype", config["pack_dtype"], "int32")
    bits = config.get("bits")
    if type(bits) is not int or bits not in ONES:
        raise refuse("bits", bits, "4 and 8")
    in_order = not flag_of(config, "desc_act", default=False)
    scheme = Gptq(
        bits, group_size_of(config), asymmetric=not flag_of(config, "sym", default=False), v1=layout == V1,
        in_order=in_order,
    )  # fmt: skip
    if not in_order and not flag_of(config, "static_groups", default=False):  # static groups are consecutive inputs
        scheme.needs_one_rank = f"config.json: {FIELD}'s desc_act is true (inputs in activation order)"
    patterns = _dynamic(config)

    def stated(modules: Collection[str]) -> dict[str, QuantScheme | None]:
        """The first pattern that matches a name decides."""
        matched = first_matches([pattern for pattern, _ in patterns], modules, f"config.json: {FIELD}'s dynamic")
        excluded = {name for name, match in matched.items() if patterns[match.pattern][1]}
        return {name: None if name in excluded else scheme for name in modules}

    return CheckpointQuantization((scheme,), stated)


def _dynamic(config: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Returns the patterns of `dynamic`, and whether each excludes modules."""
    dynamic = config.get("dynamic") or {}
    if not isinstance(dynamic, Mapping):
        raise refuse("dynamic", dynamic, "an object of patterns")
    patterns = []
    for pattern, changes in dynamic.items():
        excluded = pattern.startswith(EXCLUDED)
        if not excluded:
            fields = changes if isinstance(changes, Mapping) else {}
            for field in FORMAT_FIELDS:
                if field in fields and fields[field] != config.get(field):
                    supported = f"the same {field} for all modules, and patterns that begin with {EXCLUDED}"
                    raise refuse(f"dynamic {shown(pattern)}", {field: fields[field]}, supported)
        patterns.append((pattern.removeprefix(EXCLUDED).removeprefix("+:"), excluded))
    return patterns


register_method("gptq", _method)
