"""Incremental reading of JSON that a model writes."""

from __future__ import annotations

import json
import re
from typing import Any

_STRUCTURE = re.compile(r'["\\{}\[\]]')


class BracketCounter:
    """Nesting depth of brackets outside of strings."""

    def __init__(self) -> None:
        self.depth = 0
        self._quoted = False
        self._escaped = False

    def feed(self, text: str, until: int = 0) -> int | None:
        """Reads `text` up to the bracket that brings the depth to `until`.

        All kinds of brackets count alike; whether the text is JSON is decided when it is parsed.

        Returns:
            The offset after that bracket; None if there is none.
        """
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


def parse_json(text: str) -> Any:
    """Parses JSON. Raises ValueError for anything else, including NaN, infinities and unlimited nesting."""

    def wrong(name: str) -> Any:
        raise ValueError(name)

    try:
        return json.loads(text, parse_constant=wrong)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def dump_json(value: Any) -> str:
    """Serializes a value to JSON. Raises ValueError for a number that JSON does not have."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate must be escaped
        return json.dumps(value, allow_nan=False)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return text
