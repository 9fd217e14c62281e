"""Grammars in GBNF's notation, as the grammar engine reads them.

The translation is not `request/structured.py`'s, which runs on a server's event loop: 64 KiB of rules take seconds,
of line ends twenty. Here it is where a grammar is compiled, and in the trial of one under its limit of time.
"""

from __future__ import annotations

import json
from typing import Any

from runtime.request.checks import shown
from runtime.request.structured import GBNF, MAX_CHARS

_MARK = f'"{GBNF}": "'  # within a text of JSON its quotation marks would be escaped


def readable(text: str) -> str:
    """The text of a grammar, each of its parts in Lark's notation. Raises ValueError: why one cannot be."""
    if _MARK not in text:
        return text
    parts = [_translated(part) if GBNF in part else part for part in json.loads(text)["grammars"]]
    return json.dumps({"grammars": parts}, ensure_ascii=False)


def _translated(part: dict[str, Any]) -> dict[str, Any]:
    from llguidance.gbnf_to_lark import any_to_lark

    try:
        lark = any_to_lark(part[GBNF])
    except Exception as error:
        raise ValueError(f"it is not a readable grammar: {shown(str(error))}") from None
    if len(lark) > MAX_CHARS:
        raise ValueError(f"it has {len(lark)} characters in Lark's notation, at most {MAX_CHARS}; send a smaller one")
    return {name: value for name, value in part.items() if name != GBNF} | {"lark_grammar": lark}
