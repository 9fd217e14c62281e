"""JSON as a model writes it, a piece at a time: where an object ends, and whether it is one."""

from __future__ import annotations

import json
import re
from typing import Any

_STRUCTURE = re.compile(r'["\\{}\[\]]')


class Brackets:
    """How deep in brackets a text is, outside of its strings."""

    def __init__(self) -> None:
        self.depth = 0
        self._quoted = False
        self._escaped = False

    def feed(self, text: str, until: int = 0) -> int | None:
        """The place in `text` after the bracket that brings the depth to `until`, and no further is read; None if none
        does. Brackets of different kinds count alike: what the text is worth, a parser says."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = _STRUCTURE.search(text, at)
            if found is None:
                return None
            at, char = found.end(), found[0]
            if self._quoted:
                self._escaped = char == "\\"
                self._quoted = char != '"'
            elif char == '"':
                self._quoted = True
            elif char in "{[":
                self.depth += 1
            elif char in "}]":
                self.depth -= 1
                if self.depth <= until:
                    return at
        return None


def parsed(text: str) -> Any:
    """The value of a JSON text. Raises ValueError for anything else: NaN, an infinity, nesting without end."""

    def wrong(name: str) -> Any:
        raise ValueError(name)

    try:
        return json.loads(text, parse_constant=wrong)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def written(value: Any) -> str:
    """A value as JSON. Raises ValueError for a number that JSON cannot have."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can write
        return json.dumps(value, allow_nan=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return text
