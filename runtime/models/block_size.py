"""The block size of a checkpoint, with its source."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runtime.models.base import ModelFamily, ModelInfo

FIELDS = ("block_size", "bd_size", "canvas_length")  # the one of config.json that the family reads
NAMED = ("4", "8", "16", "32", "64")  # sizes of published repositories; other numbers of a name mean something else
_IN_NAME = re.compile(r"(?<![A-Za-z0-9.])[bB](\d{1,4})(?![A-Za-z0-9]|\.\d)")


@dataclass(frozen=True)
class BlockSize:
    """Tokens per block, and where the number is from, as text."""

    tokens: int
    source: str


def resolve_block_size(
    flag: int | None, family: ModelFamily[Any], facts: ModelInfo, config: Mapping[str, Any], names: Sequence[str]
) -> BlockSize:
    """Returns the block size of the flag, else of config.json, else of the name, else of the family.

    Args:
        flag: value of --block-size.
        config: content of config.json.
        names: names of the repository (``weights.repository``).
    """
    if flag is not None:
        return BlockSize(flag, "--block-size")
    if any(config.get(field) is not None for field in FIELDS):
        return BlockSize(facts.block_size, "config.json")
    for name in names if family.block_size_in_name else ():
        found = [number for number in _IN_NAME.findall(name.rpartition("/")[2]) if number in NAMED]
        if found:
            return BlockSize(int(found[-1]), f"the name {name}, as config.json has none")
    return BlockSize(facts.block_size, f"the {family.key} family, as config.json has none")
