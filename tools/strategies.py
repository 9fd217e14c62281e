"""Writes what is known of the runtime's decoding strategies where no torch is loaded (`make crds`)."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from runtime.strategies import DecodingContext, make_strategy, strategies

_BLOCK = 64
_CONTEXT = DecodingContext(block_size=_BLOCK, buffer_size=1, prefix_caching=True, max_model_len=_BLOCK + 16)
_TITLE = '"""The runtime\'s decoding strategies. Written by `make crds` from its registry."""'


def camel(value: str) -> str:
    """A flag's value as the resource spells it: triton_grouped -> TritonGrouped."""
    return "".join(part[:1].upper() + part[1:] for part in value.split("_"))


def names() -> str:
    """For the operator: those there are."""
    return f"""{_TITLE}

from typing import Literal

DecodingStrategy = Literal[{_lines(strategies())}]
"""


def rules() -> str:
    """For the rules of the resource's schema: those to which one does not apply."""
    made = {name: make_strategy(name, (name,), _CONTEXT) for name in strategies()}
    any_page = [name for name, strategy in made.items() if strategy.tiling.from_prompt]
    own_step = [name for name, strategy in made.items() if strategy.max_rows() < 2 * _BLOCK]
    return f"""{_TITLE}

# blocks that tile from the prompt's end begin anywhere in a page
ANY_PAGE = ({_lines(any_page)})

# a step of a request is not bufferSize and one more blocks
OWN_STEP = ({_lines(own_step)})
"""


def _lines(flags: Iterable[str]) -> str:
    return "\n" + "".join(f'    "{camel(name)}",\n' for name in flags)


if __name__ == "__main__":
    sys.stdout.write({"names": names, "rules": rules}[sys.argv[1]]())
