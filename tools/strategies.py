"""Writes what the operator, whose image has no torch, knows of the runtime's decoding strategies (`make crds`)."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from runtime.strategies import DecodingContext, make_strategy, strategies
from unmask_operator.api.flags import camel

_BLOCK = 64
_CONTEXT = DecodingContext(block_size=_BLOCK, buffer_size=1, prefix_caching=True, max_model_len=_BLOCK + 16)


def text() -> str:
    made = {name: make_strategy(name, (name,), _CONTEXT) for name in strategies()}
    any_page = [camel(name) for name, strategy in made.items() if strategy.tiling.from_prompt]
    own_step = [camel(name) for name, strategy in made.items() if strategy.max_rows() < 2 * _BLOCK]
    return f'''"""The runtime's decoding strategies. Written by `make crds` from its registry."""

from typing import Literal

DecodingStrategy = Literal[{_lines([camel(name) for name in made])}]  # as the resource spells them

NAMES = ({_lines(made)})  # as the flag does

# blocks that tile from the prompt's end begin anywhere in a page
ANY_PAGE = ({_lines(any_page)})

# a step of a request is not bufferSize and one more blocks
OWN_STEP = ({_lines(own_step)})
'''


def _lines(names: Iterable[str]) -> str:
    return "\n" + "".join(f'    "{name}",\n' for name in names)


if __name__ == "__main__":
    sys.stdout.write(text())
