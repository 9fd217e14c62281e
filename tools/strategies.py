"""Generates lists of the runtime's decoding strategies for modules that do not import torch (`make crds`)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from runtime.scheduling.strategy import DecodingContext
from runtime.strategies.registry import make_strategy, strategies

_BLOCK = 64
_CONTEXT = DecodingContext(block_size=_BLOCK, buffer_size=1, prefix_caching=True, max_model_len=_BLOCK + 16)
_TITLE = '"""The runtime\'s decoding strategies. Written by `make crds` from its registry."""'


def camel(value: str) -> str:
    """Converts a flag's value to the spelling of the resource: triton_grouped -> TritonGrouped."""
    return "".join(part[:1].upper() + part[1:] for part in value.split("_"))


def names() -> str:
    """Returns the module with the names of all strategies, for the operator."""
    return f"""{_TITLE}

from typing import Literal

DecodingStrategy = Literal[{_lines(strategies())}]
"""


def rules() -> str:
    """Returns the module with the strategies that are exempt from rules of the resource's schema."""
    made = {name: make_strategy(name, (name,), _CONTEXT) for name in strategies()}
    any_page = [name for name, strategy in made.items() if strategy.block_layout.from_prompt]
    own_step = [name for name, strategy in made.items() if strategy.max_rows() < 2 * _BLOCK]
    return f"""{_TITLE}

# blocks start at the end of the prompt, so their size is independent of the page size
ANY_PAGE = ({_lines(any_page)})

# a step of one request does not have bufferSize + 1 blocks
OWN_STEP = ({_lines(own_step)})
"""


def _lines(flags: Iterable[str]) -> str:
    return "\n" + "".join(f'    "{camel(name)}",\n' for name in flags)


if __name__ == "__main__":
    modules = {"names": names, "rules": rules}
    parser = argparse.ArgumentParser(prog="python -m tools.strategies", description="Prints a generated module.")
    parser.add_argument("module", choices=modules, help="names: that of the operator; rules: that of the schema")
    sys.stdout.write(modules[parser.parse_args().module]())
